"""A policy as it is stored: what comes back from the database is what was accepted."""

import json
from dataclasses import fields
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.gang import OnNoCapacity
from stoker.core.ids import VolumeId
from stoker.core.policy import Disconnect, Policy, StartupOrder, StopCriteria
from stoker.core.reason import RetryEvent
from stoker.core.retry import Retry
from stoker.core.schedule import Overlap, Schedule
from stoker.core.utilization import Utilization
from stoker.core.warning import WarnSignal

seconds = st.floats(0, 1e7)
counts = st.integers(0, 10_000)
retries = st.builds(
    Retry,
    on_events=st.frozensets(st.sampled_from(RetryEvent)),
    duration_s=st.none() | seconds,
    max_attempts=st.none() | counts,
    on_exit_codes=st.frozensets(st.integers(0, 255)),
)
schedules = st.builds(
    Schedule,
    lines=st.lists(st.sampled_from(["0 3 * * *", "*/5 * * * 1"]), min_size=1).map(tuple),
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    overlap=st.sampled_from(Overlap),
    paused=st.booleans(),
)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "replicas": st.integers(0, 100),
    "nodes": st.integers(1, 100),
    "priority": counts,
    "retry": st.none() | retries,
    "schedule": st.none() | schedules,
    "stop_criteria": st.sampled_from(StopCriteria),
    "startup_order": st.sampled_from(StartupOrder),
    "max_parallel": st.none() | counts,
    "only": st.none() | st.lists(st.integers(0, 99), max_size=10).map(tuple),
    "retry_of": st.none() | st.uuids().map(str),
    "on_no_capacity": st.sampled_from(OnNoCapacity),
    "disconnect": st.none() | st.builds(Disconnect, st.floats(1, 10), st.floats(11, 1e6)),
    "stop_duration_s": seconds,
    "max_duration_s": st.none() | seconds,
    "warn_signal": st.none() | st.builds(WarnSignal, st.sampled_from(["USR1", "TERM"]), seconds),
    "utilization": st.none() | st.builds(Utilization, seconds, st.none() | seconds, st.none() | seconds),
    "start_timeout_s": st.none() | seconds,
    "waiting_instance_s": seconds,
    "waiting_runner_s": seconds,
    "detach_limit_s": seconds,
    "volumes": st.sampled_from(((), (VolumeId(UUID(int=77)),))),
    "service": st.booleans(),
    "fleets": st.none() | st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
    "hold": st.booleans(),
    "privileged": st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_every_field_survives_its_way_through_json(values: dict[str, object]) -> None:
    """A server restarts: the run goes on under the very policy it was accepted with."""
    policy = Policy(**values)  # type: ignore[arg-type]
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_no_field_is_forgotten_here() -> None:
    """A field that is added to the policy has to be added to this test."""
    assert set(VALUES) == {field.name for field in fields(Policy)}


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    """So a default that is bettered later betters old runs too."""
    assert Policy().to_json() == {}
    assert Policy(nodes=2, service=True).to_json() == {"nodes": 2, "service": True}


def test_the_size_is_replicas_times_nodes() -> None:
    assert Policy(replicas=3, nodes=4).size == 12


@pytest.mark.parametrize(("stop_after_s", "fail_after_s"), [(0, 60), (60, 60), (90, 60), (-1, 60)])
def test_the_agent_must_have_stopped_before_the_server_gives_up(stop_after_s: float, fail_after_s: float) -> None:
    """The other way round two copies could run at once; the message says what to change."""
    with pytest.raises(UserError, match="fail_after"):
        Disconnect(stop_after_s, fail_after_s)


def test_a_run_of_more_jobs_than_the_limit_is_refused_with_the_number() -> None:
    """Somebody writes replicas: 100000 where tasks of the swarm are meant."""
    with pytest.raises(UserError, match="100000 jobs"):
        Policy(replicas=100_000)


def test_a_retry_has_the_replicas_that_were_not_done_and_no_schedule() -> None:
    array = Policy(replicas=5, schedule=Schedule(("0 3 * * *",)))
    once = array.again([3, 4], "old")
    assert (once.only, once.retry_of, once.schedule, once.replicas) == ((3, 4), "old", None, 5)
    assert array.again(range(5), "old").only is None
    assert once.again([3, 4], "older").only == (3, 4)


def test_a_retry_of_a_run_that_ends_with_its_master_has_a_master() -> None:
    """The master got done in the moment in which a worker failed: without it the others would be waited for by nobody,
    and their end would not be the run's."""
    array = Policy(replicas=3, stop_criteria=StopCriteria.MASTER_DONE)
    assert array.again([2], "old").only == (0, 2)
    assert Policy(replicas=5, only=(3, 4), stop_criteria=StopCriteria.MASTER_DONE).again([3], "old").only == (0, 3)
