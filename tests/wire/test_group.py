"""Runs of many jobs as people write them: nodes, groups, replicas, retries; and what does not go together."""

from typing import Any

import pytest

from stoker.core.need import Need
from stoker.core.policy import Policy
from stoker.core.reason import RetryEvent
from stoker.core.retry import Retry
from stoker.wire.configuration import complete, json_schema, load, parse, restored, stored, to_policy, with_env
from stoker.wire.group import Part, first_request, part_of, to_groups
from stoker.wire.model import Invalid

GROUPS = """\
type: task
env: {SHARED: 1, WHO: task}
setup: [echo prepare]
resources: {cpu: 1}
groups:
- name: head
  commands: [true, echo head]
  env: {WHO: head}
  resources: {cpu: 4}
- nodes: 2
  commands: [echo work]
  setup: [false]
"""
ALL = frozenset(RetryEvent)


def task(**keys: Any) -> Any:
    return parse({"type": "task", "commands": ["x"], **keys})


def test_ranks_are_counted_through_the_groups() -> None:
    read = load(GROUPS)
    assert to_policy(read).nodes == 3
    assert part_of(read, 0) == Part("head", ("true", "echo head"), ("echo prepare",), {"SHARED": "1", "WHO": "head"})
    assert [part_of(read, node).group for node in range(3)] == ["head", "1", "1"]
    assert part_of(read, 2) == Part("1", ("echo work",), ("false",), {"SHARED": "1", "WHO": "task"})
    assert restored(stored(read)) == read


def test_each_group_asks_for_its_own() -> None:
    read = load(GROUPS)
    need = Need(first_request(read), to_groups(read))
    assert [need.of(node).cpu.lo for node in range(3)] == [4, 1, 1]
    assert Need.from_json(need.to_json()) == need


def test_groups_that_ask_for_the_same_are_one_need() -> None:
    read = task(groups=[{"nodes": 2}, {"nodes": 1}], resources={"cpu": 3})
    assert to_groups(read) == ()
    assert Need(first_request(read)).of(2).cpu.lo == 3


def test_without_groups_every_node_does_the_same() -> None:
    read = task(nodes=2, env={"A": "1"})
    assert part_of(read, 0) == part_of(read, 1) == Part("", ("x",), (), {"A": "1"})


def test_variables_of_a_group_are_the_callers_where_they_have_no_value() -> None:
    read = load("type: task\ngroups: [{commands: [x], env: [A]}]")
    with pytest.raises(Invalid, match=r"groups.0.env.A: it has no value"):
        complete(read)
    assert with_env(read, {"A": "7"}).groups[0].env == {"A": "7"}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (False, None),
        (True, Retry(ALL, 3600.0)),
        ({}, Retry(ALL, 3600.0)),
        ({"duration": "off"}, Retry(ALL)),
        ({"duration": "2h"}, Retry(ALL, 7200.0)),
        ({"max_attempts": 3}, Retry(ALL, None, 3)),
        ({"max_attempts": 3, "duration": "1h"}, Retry(ALL, 3600.0, 3)),
        ({"on_events": ["error"]}, Retry(frozenset({RetryEvent.ERROR}), 3600.0)),
        ({"on_exit_codes": [75]}, Retry(frozenset(), 3600.0, None, frozenset({75}))),
        ({"on_exit_codes": [75], "on_events": ["no-capacity"], "max_attempts": 2},
         Retry(frozenset({RetryEvent.NO_CAPACITY}), None, 2, frozenset({75}))),
    ],
)  # fmt: skip
def test_what_is_tried_again(said: Any, meant: Retry | None) -> None:
    """Also after it was stored: what was said and what is the default are not the same."""
    assert to_policy(task(retry=said)) == to_policy(restored(stored(task(retry=said)))) == Policy(retry=meant)


@pytest.mark.parametrize(
    ("keys", "key", "says"),
    [
        ({"max_parallel": 2}, "max_parallel", "several replicas"),
        ({"max_parallel": 0, "replicas": 3}, "max_parallel", "at least 1"),
        ({"stop_criteria": "master-done"}, "stop_criteria", "several nodes"),
        ({"startup_order": "master-first", "replicas": 3}, "startup_order", "several nodes"),
        ({"nodes": 0}, "nodes", "at least 1"),
        ({"nodes": 1001}, "nodes", "at most 1000"),
        ({"replicas": 10_001}, "replicas", "at most 10000"),
        ({"replicas": 5_001, "nodes": 2}, "replicas", "10,002 jobs"),
        ({"nodes": 2, "groups": [{}]}, "nodes", "do not go together"),
        ({"groups": []}, "groups", "at least 1"),
        ({"groups": [{"name": "a"}, {"name": "a"}]}, "groups", "two groups are named a"),
        ({"groups": [{"nodes": 600}, {"nodes": 600}]}, "groups", "1,200 nodes"),
        ({"groups": [{"comands": ["x"]}]}, "groups.0.comands", "no such key"),
        ({"groups": [{"nodes": "2"}]}, "groups.0.nodes", "whole number"),
        ({"commands": None, "groups": [{"commands": ["x"]}, {}]}, "groups.1.commands", "missing"),
        ({"retry": "yes"}, "retry", "true or a map"),
        ({"retry": {"on_events": ["eror"]}}, "retry.on_events.0", "'interruption' or 'error'"),
        ({"retry": {"on_events": []}}, "retry.on_events", "at least 1"),
        ({"retry": {"max_atempts": 1}}, "retry.max_atempts", "no such key"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts", "at least 1"),
        ({"retry": {"on_exit_codes": [0]}}, "retry.on_exit_codes.0", "at least 1"),
        ({"retry": {"on_exit_codes": [3], "max_attempts": 2}}, "retry", "on_events"),
        ({"disconnect": {"stop_after": "5m"}}, "disconnect.fail_after", "missing"),
        ({"disconnect": {"stop_after": "5m", "fail_after": "5m"}}, "disconnect", "longer than stop_after"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_by_its_key(keys: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        task(**keys)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert says in problem.message


def test_the_schema_says_that_true_is_a_retry() -> None:
    assert {"type": "boolean"} in json_schema()["properties"]["retry"]["anyOf"]
