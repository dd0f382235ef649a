"""Warnings, utilisation and silence: what people write is understood, or refused with what to write instead."""

from typing import Any

import pytest

from stoker.core.warning import WarnSignal
from stoker.wire.configuration import load, parse, restored, stored
from stoker.wire.model import Invalid


def task(**fields: Any) -> dict[str, Any]:
    return {"type": "task", "commands": ["true"], **fields}


@pytest.mark.parametrize(
    ("written", "signal", "ahead_s"),
    [
        ("USR1@120s", "USR1", 120.0),
        ("TERM@2m", "TERM", 120.0),
        ("SIGUSR2@90", "USR2", 90.0),
        ("sigint @ 1h30m", "INT", 5400.0),
        ("WINCH@0.5s", "WINCH", 0.5),
    ],
)
def test_a_warning_is_read_and_kept(written: str, signal: str, ahead_s: float) -> None:
    read = parse(task(warn_signal=written))
    assert read.warn_signal == WarnSignal(signal, ahead_s)
    assert restored(stored(read)) == read


def test_a_warning_longer_than_the_run_may_last_is_allowed() -> None:
    """Then it comes as soon as the program listens."""
    assert parse(task(warn_signal="USR1@1h", max_duration="10m")).warn_signal == WarnSignal("USR1", 3600.0)


@pytest.mark.parametrize(
    ("key", "value", "message", "hint"),
    [
        ("warn_signal", "KILL@10s", "no program can hear KILL", "USR1"),
        ("warn_signal", "SIGSTOP@10s", "no program can hear STOP", "USR1"),
        ("warn_signal", "USR3@10s", "there is no signal 'USR3'", "Did you mean USR"),
        ("warn_signal", "USR1", "expected a signal and a length of time", "USR1@120s"),
        ("warn_signal", "USR1@", "expected a length of time behind the @", "USR1@120s"),
        ("warn_signal", "USR1@0", "expected a length of time behind the @", "USR1@120s"),
        ("warn_signal", "USR1@off", "expected a length of time behind the @", "USR1@120s"),
        ("warn_signal", "USR1@soon", "expected a length of time behind the @", "USR1@120s"),
        ("warn_signal", 10, "expected a signal and a length of time, got 10", "USR1@120s"),
        ("utilization_policy", {"time_window": "30m"}, "it says no minimum", "min_gpu_utilization"),
        ("utilization_policy", {"min_cpu_utilization": 5, "time_window": "5s"}, "at least 10 s", "30m"),
        ("stop_duration", "8d", "a grace is at most 7d", "1h30m"),
        ("disconnect", {"stop_after": "5s", "fail_after": "30m"}, "stop_after is at least 10 s", "network"),
        ("disconnect", {"stop_after": "30m", "fail_after": "10m"}, "must be longer than stop_after", "stopped"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(key: str, value: Any, message: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(task(**{key: value}))
    (problem,) = refused.value.problems
    assert problem.key == key
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("min_cpu_utilization", 101, "at most 100"),
        ("min_cpu_utilization", 0, "more than 0"),
        ("min_cpu_utilisation", 10, "no such key"),
        ("time_window", "off", "cannot be off"),
    ],
)
def test_a_wrong_part_of_a_policy_is_named(key: str, value: Any, expected: str) -> None:
    policy = {"min_cpu_utilization": 10, "time_window": "30m"} | {key: value}
    with pytest.raises(Invalid) as refused:
        parse(task(utilization_policy=policy))
    assert any(one.key == f"utilization_policy.{key}" and expected in one.message for one in refused.value.problems)


def test_a_minimum_for_gpus_needs_gpus() -> None:
    """Or every run would be ended after the first window."""
    policy = {"min_gpu_utilization": 10, "time_window": "30m"}
    with pytest.raises(Invalid, match=r"resources\.gpu is not") as refused:
        parse(task(utilization_policy=policy))
    assert "gpu: 1" in refused.value.hint
    assert parse(task(utilization_policy=policy, resources={"gpu": 1})).utilization_policy is not None


def test_the_line_of_the_mistake_is_told() -> None:
    with pytest.raises(Invalid) as refused:
        load("type: task\ncommands: [x]\nwarn_signal: KILL@1m\n")
    assert refused.value.problems[0].line == 3
