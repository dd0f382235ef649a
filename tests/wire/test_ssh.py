"""`ssh_config`: what it says, and what is wrong with it."""

import json

import pytest

from stoker.core.fleet import Fleet
from stoker.core.route import Hop, Route
from stoker.wire.configuration import json_schema, load_any
from stoker.wire.fleet import FleetConfiguration, to_json, to_policy
from stoker.wire.model import Invalid
from stoker.wire.ssh import SshConfig, shown

FULL = """
type: fleet
name: office
blocks: 2
ssh_config:
  user: root
  port: 2222
  identity_file: ~/.ssh/id
  network: 10.0.0.0/24
  proxy_jump: {host: gate.example.org, user: door, identity_file: ~/.ssh/gate}
  hosts:
    - GPU-1.example.org
    - {host: 192.0.2.7, user: ann, port: 22, identity_file: other, ip: 10.0.0.7, blocks: auto}
"""
BASE = "type: fleet\nname: a\nssh_config:\n  user: root\n  hosts: [h1]\n"


def ssh(text: str) -> SshConfig:
    read = load_any(text)
    assert isinstance(read, FleetConfiguration) and read.ssh_config is not None
    return read.ssh_config


def test_every_key_is_understood() -> None:
    gate = Hop("gate.example.org", "door", 22, "~/.ssh/gate")
    assert list(ssh(FULL).routes()) == [
        (Route(Hop("gpu-1.example.org", "root", 2222, "~/.ssh/id"), gate, "", "10.0.0.0/24"), None),
        (Route(Hop("192.0.2.7", "ann", 22, "other"), gate, "10.0.0.7", "10.0.0.0/24"), "auto"),
    ]
    assert [route.place for route, _ in ssh(FULL).routes()] == [
        "gpu-1.example.org:2222 via gate.example.org", "192.0.2.7 via gate.example.org",
    ]  # fmt: skip


def test_a_gate_may_be_a_name_alone_as_a_host_may() -> None:
    (route, _), *_ = ssh(BASE + "  proxy_jump: Gate.example.org").routes()
    assert route.jump == Hop("gate.example.org", "root", 22, "")


def test_it_is_stored_and_read_again() -> None:
    read = load_any(FULL)
    assert isinstance(read, FleetConfiguration)
    assert FleetConfiguration.model_validate(json.loads(json.dumps(to_json(read)))) == read
    policy = to_policy(read)
    places = (("gpu-1.example.org:2222 via gate.example.org", None), ("192.0.2.7 via gate.example.org", "auto"))
    assert policy == Fleet(idle_duration_s=None, blocks=2, hosts=places)
    assert Fleet.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_what_is_compared_is_a_line_a_host() -> None:
    assert dict(shown(ssh(BASE))) == {"host h1": "as root"}
    assert dict(shown(ssh(FULL)))["host 192.0.2.7 via gate.example.org"] == (
        "as ann with other at 10.0.0.7 blocks auto through door@gate.example.org with ~/.ssh/gate"
    )


@pytest.mark.parametrize(
    ("text", "line", "key", "message", "hint"),
    [
        (BASE + "  hots: [a]", 6, "ssh_config.hots", "no such key", "Did you mean hosts?"),
        (BASE.replace("h1", "{hostname: h1}"), 5, "ssh_config.hosts.0.hostname", "no such key", "Did you mean host?"),
        (BASE.replace("[h1]", "[]"), 5, "ssh_config.hosts", "at least 1", ""),
        (BASE.replace("[h1]", "h1"), 5, "ssh_config.hosts", "expected a list, got 'h1'", 'Write ["h1"].'),
        (BASE.replace("h1", "h1, H1"), 5, "ssh_config.hosts.1", "h1 is there already, as number 1", "Name it once."),
        (BASE.replace("h1", "ann@h1"), 5, "ssh_config.hosts.0", "expected a host alone", "{host: h1, user: ann}"),
        (BASE.replace("h1", "'h1:2222'"), 5, "ssh_config.hosts.0", "expected a host alone", "{host: h1, port: 2222}"),
        (BASE.replace("h1", "10.0.0"), 5, "ssh_config.hosts.0", "expected the name or the address", "10.0.0.7"),
        (BASE.replace("h1", "'a b'"), 5, "ssh_config.hosts.0", "expected the name or the address", "10.0.0.7"),
        (BASE.replace("h1", "-oProxyCommand=x"), 5, "ssh_config.hosts.0", "expected the name or the address", ""),
        (BASE.replace("  user: root\n", ""), 3, "ssh_config.user", "it is missing", "user: root"),
        (BASE.replace("root", "'a b'"), 4, "ssh_config.user", "expected the name of a user", "For example root"),
        (BASE + "  port: 0", 6, "ssh_config.port", "expected at least 1", ""),
        (BASE + "  port: '22'", 6, "ssh_config.port", "expected a whole number", ""),
        (BASE + "  network: 10.0.0.7/24", 6, "ssh_config.network", "expected a network", "Did you mean 10.0.0.0/24?"),
        (BASE + "  network: lan", 6, "ssh_config.network", "expected a network", "10.0.0.0/16"),
        (BASE.replace("h1", "{host: h1, ip: lan}"), 5, "ssh_config.hosts.0.ip", "expected an IP address", "10.0.0.7"),
        (
            BASE.replace("h1", "{host: h1, ip: 10.0.0.7}") + "  network: 10.1.0.0/16", 5, "ssh_config.hosts.0.ip",
            "10.0.0.7 is not in the network 10.1.0.0/16", "Correct one of the two",
        ),
        (BASE.replace("h1", "{host: h1, blocks: 0}"), 5, "ssh_config.hosts.0.blocks", "expected auto or 1 to", "4"),
        (BASE + "  proxy_jump: ann@g", 6, "ssh_config.proxy_jump", "expected a host alone", "{host: g, user: ann}"),
        (BASE + "  proxy_jump: {hst: g}", 6, "ssh_config.proxy_jump.hst", "no such key", "Did you mean host?"),
        (BASE + "nodes: 2", 6, "nodes", "its hosts are named in ssh_config", "Leave it out"),
        (BASE + "backends: [dummy]", 6, "backends", "its hosts are named in ssh_config", "Leave it out"),
        (BASE.replace("name: a", "name: local"), 2, "name", "own host is fleet local", "another name"),
        ("type: fleet\nname: a\nssh_config: [h1]", 3, "ssh_config", "expected a map", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_where_it_is(text: str, line: int, key: str, message: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_any(text)
    problem = refused.value.problems[0]
    assert (problem.key, problem.line) == (key, line)
    assert message in problem.message
    assert hint in problem.hint


def test_the_schema_for_editors_takes_a_name_for_a_host() -> None:
    schema = json_schema(FleetConfiguration)
    hosts = schema["$defs"]["SshConfig"]["properties"]["hosts"]
    assert {"type": "string", "minLength": 1, "maxLength": 253} in hosts["items"]["anyOf"]
    for name in ("SshConfig", "SshHost", "ProxyJump"):
        for key, told in schema["$defs"][name]["properties"].items():
            assert "description" in json.dumps(told) or "$ref" in json.dumps(told), (name, key)
