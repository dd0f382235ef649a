"""What people write is understood, or refused with the line, the key, what was expected and the nearest name."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.gang import OnNoCapacity
from stoker.core.policy import Disconnect, Policy, StartupOrder, StopCriteria
from stoker.core.reason import RetryEvent
from stoker.core.resources import Range
from stoker.core.retry import Retry
from stoker.core.schedule import Schedule
from stoker.core.utilization import Utilization
from stoker.core.warning import WarnSignal
from stoker.wire.configuration import (
    complete,
    json_schema,
    load,
    parse,
    restored,
    stored,
    to_json,
    to_policy,
    with_env,
)
from stoker.wire.model import Invalid, body_of
from stoker.wire.resources import to_request

FULL = """\
type: task
name: train
setup:
  - pip install -r requirements.txt
commands:
  - true
  - python train.py --rate 0.10
env:
  EPOCHS: 3
  RATE: 1.10
  FLAG: off
  HOME_OF_CALLER:
working_dir: src
shell: bash
tty: true
resources:
  cpu: 2..
  memory: 8GB
  gpu: A100:1
  named: {license: 2}
priority: 70
max_duration: 1h30m
start_timeout: off
stop_duration: 90
warn_signal: SIGUSR1@2m
utilization_policy:
  min_gpu_utilization: 10
  min_cpu_utilization: 2.5
  time_window: 30m
disconnect: {stop_after: 10m, fail_after: 30m}
on_no_capacity: fail
nodes: 2
replicas: 4
max_parallel: 3
stop_criteria: master-done
startup_order: workers-first
retry:
  on_events: [interruption]
  max_attempts: 5
fleets: [cloud, local]
volumes: ["data:/data:ro"]
schedule: 0 3 * * *
hold: true
image: registry.example.com/team/train:v1
registry_auth: {username: me, password: x}
entrypoint: [tini, --]
user: app
privileged: true
docker: true
ports: [8000]
"""


def test_every_key_is_understood() -> None:
    task = load(FULL)
    assert task.commands == ("true", "python train.py --rate 0.10")
    assert task.env == {"EPOCHS": "3", "RATE": "1.10", "FLAG": "off", "HOME_OF_CALLER": None}
    assert to_policy(task) == Policy(
        priority=70, on_no_capacity=OnNoCapacity.FAIL, stop_duration_s=90.0, max_duration_s=5400.0,
        warn_signal=WarnSignal("USR1", 120.0), utilization=Utilization(1800.0, 10.0, 2.5), nodes=2, replicas=4,
        max_parallel=3, stop_criteria=StopCriteria.MASTER_DONE, startup_order=StartupOrder.WORKERS_FIRST,
        retry=Retry(frozenset({RetryEvent.INTERRUPTION}), None, 5), disconnect=Disconnect(600.0, 1800.0),
        fleets=("cloud", "local"),
        schedule=Schedule(("0 3 * * *",)), hold=True, privileged=True, waiting_runner_s=4200.0,
    )  # fmt: skip
    request = to_request(task.resources)
    assert request.cpu == Range(2)
    assert request.memory_mb == Range(8192)
    assert request.gpu is not None
    assert request.gpu.names == ("A100",)
    assert request.named == {"license": 2}


def test_the_least_is_a_type_and_a_command() -> None:
    task = load("{type: task, commands: [echo hi]}")
    assert to_json(task) == {"type": "task", "commands": ["echo hi"]}
    assert to_policy(task) == Policy()


def test_it_is_stored_and_restored_as_the_same() -> None:
    task = with_env(load(FULL), {"HOME_OF_CALLER": "/x"})
    assert restored(stored(task)) == task
    assert json.loads(stored(task))["max_duration"] == "1h30m"


def test_a_key_without_a_value_is_not_given() -> None:
    assert load("type: task\ncommands: [x]\nname:\nresources:\nenv:\n") == load("type: task\ncommands: [x]\n")


@pytest.mark.parametrize(
    ("text", "line", "key", "says", "hint"),
    [
        ("type: task\ncommand: [x]", 2, "command", "no such key", "Did you mean commands?"),
        ("type: tusk\ncommands: [x]", 1, "type", "expected 'task', got 'tusk'", "Did you mean task?"),
        (
            "image: x\ntype: service\nport: 80",
            2,
            "type",
            "service is planned and not there yet",
            "today are task, fleet and volume",
        ),
        ("type: dev-environment", 1, "type", "planned and not there yet", "today are task"),
        ("commands: [x]\ntype: fleet", 2, "type", "a fleet is not run", "`stoker apply` and /fleets take it"),
        ("type: secret\nname: X_1", 1, "type", "planned and not there yet", "today are task"),
        ("commands: [x]\ntype: volumes", 2, "type", "expected 'task', 'fleet' or 'volume'", "Did you mean volume?"),
        (
            "type: task\ncommands: [x]\nvolumes: [data]",
            3,
            "volumes.0",
            "expected name:/path, got 'data'",
            "Write name:",
        ),
        ("type: task\ncommands: [x]\nvolumes: ['data:/x:rx']", 3, "volumes.0", "expected ro or rw", "Write name:"),
        ("type: task\ncommands: [x]\nvolumes: ['da ta:/x']", 3, "volumes.0", "neither the name of a volume", ""),
        ("type: task\ncommands: [x]\nvolumes: ['data:/']", 3, "volumes.0", "hide everything else", ""),
        ("type: task\ncommands: [x]\nvolumes: ['data:/a/../b']", 3, "volumes.0", "leads upwards", ""),
        ("type: task\ncommands: [x]\nvolumes: ['a:/x', 'b:/x/y']", 3, "volumes", "inside of /x", "place of its own"),
        ("type: task\ncommands: [x]\nvolumes: ['a:/x', 'b:/x/']", 3, "volumes", "mounted twice", "place of its own"),
        ("type: task\ncommands: [x]\nvolumes: [{volume: a, pth: /x}]", 3, "volumes.0", "no key 'pth'", "Known are"),
        ("commands: [x]", 1, "type", "it is missing", ""),
        ("type: task", 1, "commands", "it is missing", ""),
        ("type: task\ncommands: []", 2, "commands", "at least 1", ""),
        ("type: task\ncommands: echo", 2, "commands", "expected a list, got 'echo'", 'Write ["echo"].'),
        ("type: task\ncommands:\n- a\n- b: c", 4, "commands.1", "expected text, got a map", "A colon"),
        ("type: task\ncommands: [x, '']", 2, "commands.1", "expected a command", ""),
        ("type: task\ncommands: ['a\\0b', \"a\\0b\"]", 2, "commands.1", "NUL", ""),
        ("type: task\ncommands: [x]\nname: Train_1", 3, "name", "expected a name", "Did you mean train-1?"),
        ("type: task\ncommands: [x]\nname: grüße", 3, "name", "without a dash, got 'grüße'", ""),
        (
            "type: task\ncommands: [x]\nmax_duration: false",
            3,
            "max_duration",
            "expected a length of time: it is false",
            "Write it as 90, 90s, 15m, 1h30m or 2d, or off for no limit.",
        ),
        ("type: task\ncommands: [x]\npriority: true", 3, "priority", "expected a whole number, got true", ""),
        ("type: task\ncommands: [x]\ntty: 1", 3, "tty", "expected true or false, got 1", ""),
        ("type: task\ncommands: [x]\npriority: high", 3, "priority", "expected a whole number", ""),
        ("type: task\ncommands: [x]\npriority: '5'", 3, "priority", "expected a whole number", ""),
        ("type: task\ncommands: [x]\npriority: 101", 3, "priority", "expected at most 100, got 101", ""),
        ("type: task\ncommands: [x]\nmax_duration: soon", 3, "max_duration", "expected a length of time", "1h30m"),
        ("type: task\ncommands: [x]\nmax_duration: 0", 3, "max_duration", "a limit of nothing", "off"),
        ("type: task\ncommands: [x]\nstop_duration: off", 3, "stop_duration", "cannot be off", "Write it as"),
        ("type: task\ncommands: [x]\nresources:\n  memry: 1GB", 4, "resources.memry", "no such key", "memory"),
        ("type: task\ncommands: [x]\nresources:\n  cpu: 4\n  memory: 8", 5, "resources.memory", "'8' is not", "8GB"),
        ("type: task\ncommands: [x]\nresources: {gpu: {nme: A}}", 3, "resources.gpu", "no key 'nme'", "name"),
        ("type: task\ncommands: [x]\nresources: {cpu: 4..2}", 3, "resources.cpu", "ends before it begins", ""),
        ("type: task\ncommands: [x]\nresources: 5", 3, "resources", "expected a map, got 5", ""),
        ("type: task\ncommands: [x]\nenv:\n  A: 1\n  2B: x", 5, "env.2B", "no name of a variable", ""),
        ("type: task\ncommands: [x]\nenv:\n- A=1\n- A=2", 5, "env.1", "given twice", ""),
        ("type: task\ncommands: [x]\nenv: 5", 3, "env", "expected a map or a list", "NAME=value"),
        ("type: task\ncommands: [x]\nenv: {STOKER_RUN_ID: x}", 3, "env.STOKER_RUN_ID", "set by Stoker", ""),
        ("type: task\ncommands: [x]\non_no_capacity: que", 3, "on_no_capacity", "'queue' or 'fail'", "queue"),
        ("type: task\ncommands: [x]\nshell: bash -l", 3, "shell", "expected the name", "bash"),
        ("- a\n- b", 1, "", "expected a map", ""),
        ("\n\nhello", 3, "", "expected a map", ""),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, line: int, key: str, says: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(text)
    (problem,) = refused.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert says in problem.message
    assert hint in problem.hint
    assert f"line {line}" in refused.value.sentence
    assert body_of(refused.value).error.problems == (problem,)


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines() -> None:
    with pytest.raises(Invalid) as refused:
        load("type: task\ntty: 1\ncommands: [x]\nprio: 3\nmax_duration: x\n")
    assert [problem.line for problem in refused.value.problems] == [2, 4, 5]
    assert "(and 2 more)" in refused.value.sentence


def test_the_value_of_a_variable_is_never_repeated() -> None:
    """It may be a secret, and the message may be sent to a log."""
    with pytest.raises(Invalid) as refused:
        load("type: task\ncommands: [x]\nenv:\n  TOKEN: [hunter2]\n")
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in body_of(refused.value).model_dump_json()
    assert "hunter2" not in repr(load("type: task\ncommands: [x]\nenv: {TOKEN: hunter2}\n"))


def test_a_bare_name_takes_the_callers_value() -> None:
    for env in ("[A, B=2]", "{A: , B: 2}", "{A: ~, B: '2'}"):
        task = load(f"type: task\ncommands: [x]\nenv: {env}")
        assert with_env(task, {"A": "1"}).env == {"A": "1", "B": "2"}
        with pytest.raises(UserError, match="A is not set"):
            with_env(task, {})
        with pytest.raises(Invalid, match=r"env.A: it has no value"):
            complete(task)


def test_a_value_of_a_variable_may_hold_anything_but_nul() -> None:
    task = load("type: task\ncommands: [x]\nenv: ['A=b=c', 'D=', 'E=two\\nlines', \"F=\\u00fc\"]")
    assert task.env == {"A": "b=c", "D": "", "E": "two\\nlines", "F": "ü"}
    with pytest.raises(Invalid):
        parse({"type": "task", "commands": ["x"], "env": {"A": "a\0b"}})
    with pytest.raises(Invalid):
        parse({"type": "task", "commands": ["x"], "env": {"A": "\ud800"}})
    with pytest.raises(Invalid):
        parse({"type": "task", "commands": ["\ud800"]})


def test_the_schema_for_editors_knows_every_key_and_says_what_it_is_for() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {*to_json_keys(), "groups", "python"}
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["type"]
    assert schema["anyOf"] == [{"required": [key]} for key in ("commands", "groups", "image", "entrypoint")]
    for key in ("max_duration", "start_timeout", "stop_duration", "setup", "priority", "env", "name"):
        assert "description" in json.dumps(schema["properties"][key])


def to_json_keys() -> list[str]:
    return [line.partition(":")[0] for line in FULL.splitlines() if line[0].isalpha()]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["type", "name", "commands", "env", "resources", "max_duration", "tty", "extra", "priority"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["task"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_whatever_is_sent_is_understood_or_refused(value: dict[str, Any]) -> None:
    try:
        task = parse(value)
    except UserError as refused:
        assert refused.sentence
    else:
        assert restored(stored(task)) == task
        to_policy(task)
        to_request(task.resources)
