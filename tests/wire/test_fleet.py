"""The configuration of a fleet: what it says, and what is wrong with it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stoker.core.fleet import Fleet
from stoker.core.offer import SpotPolicy
from stoker.core.resources import parse_request
from stoker.wire.configuration import TaskConfiguration, json_schema, load_any
from stoker.wire.fleet import FleetConfiguration, Nodes, to_json, to_policy
from stoker.wire.model import Invalid

FULL = """
type: fleet
name: cloud
backends: [dummy]
nodes: 1..8
resources: {cpu: 2..16, gpu: A100}
idle_duration: 10m
spot_policy: spot
max_price: 2.5
placement: cluster
blocks: auto
allow_privileged: true
tags: {team: vision, budget: 3}
"""


def fleet(text: str) -> FleetConfiguration:
    read = load_any(text)
    assert isinstance(read, FleetConfiguration)
    return read


def test_every_key_is_understood() -> None:
    configuration = fleet(FULL)
    assert to_policy(configuration) == Fleet(
        1, 8, 600.0, False, ("dummy",), SpotPolicy.SPOT, 2.5, False, True, "auto",
        parse_request({"cpu": "2..16", "gpu": "A100"}), allow_privileged=True,
    )  # fmt: skip
    assert configuration.tags == {"team": "vision", "budget": "3"}
    assert FleetConfiguration.model_validate(json.loads(json.dumps(to_json(configuration)))) == configuration


def test_what_is_left_out_has_a_meaning() -> None:
    policy = to_policy(fleet("type: fleet\nname: cloud\nbackends: [dummy]\nnodes: 2"))
    assert policy == Fleet(2, 2, 300.0, backends=("dummy",), blocks=1)
    own = to_policy(fleet("type: fleet\nname: local\nbackends: [local]"))
    assert own == Fleet(idle_duration_s=None, blocks="auto")
    assert to_policy(fleet("{type: fleet, name: local, backends: [local], blocks: 4}")).blocks == 4


@pytest.mark.parametrize(
    ("said", "nodes"),
    [("2", (2, 2)), ("'2'", (2, 2)), ("0..8", (0, 8)), ("0..", (0, None)), ("..8", (0, 8)), ("' 1 .. 3 '", (1, 3))],
)
def test_how_many_nodes(said: str, nodes: tuple[int, int | None]) -> None:
    read = fleet(f"type: fleet\nname: a\nbackends: [dummy]\nnodes: {said}")
    assert read.nodes == Nodes(*nodes)
    assert FleetConfiguration.model_validate(to_json(read)) == read


def test_how_long_a_machine_may_be_idle() -> None:
    base = "type: fleet\nname: a\nbackends: [dummy]\nnodes: 2\nidle_duration: "
    assert [fleet(base + said).idle_duration for said in ("off", "0", "90", "1h")] == [None, 0.0, 90.0, 3600.0]


BASE = "type: fleet\nname: a\nbackends: [dummy]\nnodes: 2\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "message", "hint"),
    [
        (BASE + "nods: 3", 5, "nods", "no such key", "Did you mean nodes?"),
        ("type: fleet\nname: a\nbackends: [dumy]\nnodes: 2", 3, "backends.0", "expected 'dummy' or 'local'", "dummy?"),
        ("type: fleet\nname: a\nbackends: [ssh]\nnodes: 2", 3, "backends", "hosts of yours are named", "Write ssh"),
        ("type: fleet\nname: a\nbackends: []\nnodes: 2", 3, "backends", "at least 1", ""),
        ("type: fleet\nname: a\nbackends: [dummy]", 1, "nodes", "it is missing", "0..8"),
        ("type: fleet\nname: a\nnodes: 2", 1, "backends", "it is missing", ""),
        ("type: fleet\nbackends: [dummy]\nnodes: 2", 1, "name", "it is missing", ""),
        (BASE.replace("2", "5..2"), 4, "nodes", "ends before it begins", "Write 2"),
        (BASE.replace("2", "many"), 4, "nodes", "expected a number of machines or a range, got 'many'", "Write 2"),
        (BASE.replace("2", "-1"), 4, "nodes", "expected a number of machines", "Write 2"),
        (BASE.replace("2", "1.5"), 4, "nodes", "expected a number of machines", "Write 2"),
        (BASE.replace("2", "0"), 4, "nodes", "never have a machine", "delete"),
        (BASE.replace("2", "99999"), 4, "nodes", "at most 10,000", "Write 2"),
        (BASE.replace("2", "true"), 4, "nodes", "got true", "Write 2"),
        (BASE + "idle_duration: soon", 5, "idle_duration", "expected a length of time", "or off"),
        (BASE + "spot_policy: ondemand", 5, "spot_policy", "expected 'spot', 'on-demand' or 'auto'", "on-demand?"),
        (BASE + "max_price: 0", 5, "max_price", "expected more than 0", ""),
        (BASE + "max_price: cheap", 5, "max_price", "expected a number", ""),
        (BASE + "placement: clustr", 5, "placement", "expected 'any' or 'cluster'", "Did you mean cluster?"),
        (BASE + "blocks: atuo", 5, "blocks", "expected auto or 1 to", "Did you mean auto?"),
        (BASE + "blocks: 0", 5, "blocks", "expected auto or 1 to", "such as 4"),
        (BASE + "resources: {cpuu: 2}", 5, "resources.cpuu", "no such key", "Did you mean cpu?"),
        (BASE + "tags: [a]", 5, "tags", "expected a map", "team"),
        (BASE + "tags: {'1 x': a}", 5, "tags", "no name of a tag", "team"),
        (BASE + 'tags: {a: "b\\0"}', 5, "tags", "can be printed", "team"),
        (BASE + "tags: {a: [b]}", 5, "tags", "a: expected text", "team"),
        ("type: fleet\nname: local\nbackends: [dummy]\nnodes: 2", 2, "name", "own host is fleet local", "[local]"),
        ("type: fleet\nname: mine\nbackends: [local]", 2, "name", "own host is fleet local", "name: local"),
        ("type: fleet\nname: local\nbackends: [local]\nnodes: 2", 4, "nodes", "one machine", "Leave it out"),
        ("type: fleet\nname: local\nbackends: [local]\nmax_price: 2", 4, "max_price", "is what it is", "Leave it out"),
        (
            "type: flet\ncommands: [x]",
            1,
            "type",
            "expected 'task', 'fleet' or 'volume', got 'flet'",
            "Did you mean fleet?",
        ),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, line: int, key: str, message: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_any(text)
    problem = refused.value.problems[0]
    assert (problem.key, problem.line) == (key, line)
    assert message in problem.message
    assert hint in problem.hint


def test_a_task_is_read_as_a_task() -> None:
    assert isinstance(load_any("{type: task, commands: [x]}"), TaskConfiguration)


def test_the_schema_for_editors_knows_every_key_and_says_what_it_is_for() -> None:
    schema = json_schema(FleetConfiguration)
    known = {line.partition(":")[0] for line in FULL.split("\n") if line}
    assert set(schema["properties"]) == {*known, "ssh_config"}
    assert schema["required"] == ["type", "name"]
    for key in set(schema["properties"]) - {"type"}:
        assert "description" in json.dumps(schema["properties"][key]), key


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0..2", "auto"])
    | st.lists(st.sampled_from(["dummy", "local"]), max_size=2)
    | st.dictionaries(st.text(max_size=5), st.integers())
)
KEYS = ["name", "backends", "nodes", "idle_duration", "max_price", "blocks", "tags", "resources"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_whatever_is_sent_is_understood_or_refused(value: dict[str, Any]) -> None:
    try:
        read = FleetConfiguration.model_validate({"type": "fleet", "name": "a", "backends": ["dummy"], **value})
    except ValidationError:
        return
    assert FleetConfiguration.model_validate(json.loads(json.dumps(to_json(read)))) == read
    to_policy(read)
