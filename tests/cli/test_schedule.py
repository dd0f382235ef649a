"""Schedules and holds on the command line: what is shown, what is asked of the server, and a real one."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.conftest import Real, Stoker
from tests.cli.fake import Fake, run

NIGHTLY = b'type: task\nname: nightly\nschedule: "0 0 1 1 *"\ncommands: [echo round]\n'


def scheduled(**said: Any) -> dict[str, Any]:
    later = timedelta(hours=3, minutes=4, seconds=40)
    soon = [f"{datetime.now(UTC) + timedelta(days=day) + later:%Y-%m-%dT%H:%M:%SZ}" for day in range(3)]
    schedule = {"cron": ["0 3 * * *"], "timezone": "Europe/Berlin", "overlap": "skip", "paused": False, "next": soon}
    last = {"status": "FAILED", "reason": "JOB_FAILED", "ended_at": "2026-05-01T12:00:03Z"}
    return schedule | {"rounds": 7, "queued": False, "last": last} | said


def test_ps_shows_when_the_next_round_comes(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("plain", status="RUNNING"))
    assert b"NEXT" not in stoker("ps").stdout
    fake.add(run("nightly", status="PENDING", schedule=scheduled()))
    lines = stoker("ps", COLUMNS="200").stdout.decode().splitlines()
    assert "NEXT" in lines[0]
    (line,) = [line for line in lines if line.startswith("nightly")]
    assert "in 3h 4m" in line


def test_get_shows_the_next_triggers_the_last_round_and_how_many_there_were(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("nightly", status="PENDING", schedule=scheduled()))
    shown = stoker("get", "nightly", TZ="UTC").stdout.decode()
    assert "0 3 * * * (Europe/Berlin, overlap: skip)" in shown
    assert "rounds      7" in shown
    assert "last round  FAILED (JOB_FAILED, 2026-05-01 12:00:03 UTC)" in shown
    assert shown.count(" UTC\n") + shown.count(" UTC (") >= 3
    assert "(in 3h 4m)" in shown
    fake.add(run("nightly", status="PENDING", schedule=scheduled(paused=True, next=[], queued=True)))
    shown = stoker("get", "nightly").stdout.decode()
    assert "next        paused" in shown
    assert "7, and one waits" in shown


def test_what_is_steered_is_said(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("nightly", status="PENDING", schedule=scheduled()))
    assert stoker("trigger", "nightly").stdout == b"A round of nightly starts now.\n"
    assert json.loads(stoker("trigger", "nightly", "--json").stdout)["outcome"] == "started"
    assert stoker("pause", "nightly").stdout == b"nightly is paused\n"
    assert stoker("resume", "nightly").stdout == b"nightly starts in 3h 4m\n"
    assert stoker("hold", "nightly").stdout == b"nightly is held\n"
    assert json.loads(stoker("release", "nightly", "--json").stdout)["held"] is False
    told = stoker("trigger", "nigthly")
    assert (told.returncode, b"Did you mean nightly?" in told.stderr) == (1, True)


@pytest.mark.parametrize("more", [b'schedule: "0 3 * * *"\n', b"hold: true\n"])
def test_what_waits_for_its_time_or_for_a_person_is_not_waited_for(stoker: Stoker, fake: Fake, more: bytes) -> None:
    fake.add(run("later", status="PENDING", status_message="starts at 2030-01-01 00:00 UTC"))
    told = stoker("apply", "-y", "-f", "-", stdin=b"type: task\nname: later\ncommands: [x]\n" + more)
    assert (told.returncode, told.stdout) == (0, b"later\n")
    assert b"later: starts at 2030-01-01 00:00 UTC." in told.stderr


def plan(action: str, **said: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
    told = {"action": action, "sentence": f"It is {action}.", "name": "hello", "expected": {"id": "i", "version": 3}}
    return (200, {}, told | {"changes": [{"key": "priority", "old": 50, "new": 80}]} | said)


CHANGED: tuple[int, dict[str, str], dict[str, Any]] = (
    409,
    {},
    {"error": {"code": "changed", "message": "It is another now.", "hint": ""}},
)


def test_a_change_in_place_is_shown_field_by_field_and_sent_with_what_was_seen(stoker: Stoker, fake: Fake) -> None:
    fake.answers = [plan("update")]
    fake.add(run("hello", status="RUNNING"))
    told = stoker("apply", "-y", "-f", "examples/hello.yaml")
    assert (told.returncode, told.stdout) == (0, b"hello\n")
    assert b"priority: 50 -> 80" in told.stderr
    assert fake.asked[-1][2]["expected"] == {"id": "i", "version": 3}


def test_a_job_that_starts_meanwhile_does_not_stop_a_change(stoker: Stoker, fake: Fake) -> None:
    """Its run has another version by then, but what would change is the same."""
    later = {"id": "i", "version": 5}
    fake.answers = [plan("update"), CHANGED, plan("update", expected=later)]
    fake.add(run("hello", status="RUNNING"))
    assert stoker("apply", "-y", "-f", "examples/hello.yaml").returncode == 0
    assert fake.asked[-1][2]["expected"] == later


def test_a_change_by_somebody_else_meanwhile_is_looked_at_again(stoker: Stoker, fake: Fake) -> None:
    fake.answers = [plan("update"), CHANGED, plan("update", changes=[{"key": "priority", "old": 60, "new": 80}])]
    told = stoker("apply", "-y", "-f", "examples/hello.yaml")
    assert (told.returncode, b"It is another now." in told.stderr) == (1, True)


def test_what_is_there_already_is_left_alone(stoker: Stoker, fake: Fake) -> None:
    fake.answers = [plan("unchanged", changes=[])]
    fake.add(run("hello", status="RUNNING"))
    told = stoker("apply", "-f", "examples/hello.yaml")
    assert (told.returncode, told.stdout) == (0, b"hello\n")
    assert [path for path in fake.paths() if path.startswith("POST")] == ["POST /api/projects/main/runs/plan"]


# With a real server.


def eventually(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.xdist_group("cli")
def test_a_schedule_from_its_file_to_its_end(real: Real) -> None:
    assert real("apply", "-y", "-f", "-", stdin=NIGHTLY).stdout == b"nightly\n"

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(real("get", "nightly", "--json").stdout)
        return found

    assert (shown()["status"], len(shown()["schedule"]["next"])) == ("PENDING", 5)
    assert b"NEXT" in real("ps", env={"COLUMNS": "200"}).stdout
    assert real("pause", "nightly").returncode == 0
    for number in (1, 2):
        assert b"starts now" in real("trigger", "nightly").stdout
        eventually(lambda n=number: (shown()["status"], shown()["schedule"]["rounds"]) == ("PENDING", n), "a round")  # type: ignore[misc]
    assert (shown()["schedule"]["last"]["status"], shown()["schedule"]["paused"]) == ("DONE", True)
    assert real("logs", "nightly").stdout == b"round\n"
    changed = real("apply", "-y", "-f", "-", stdin=NIGHTLY.replace(b"1 1 *", b"1 7 *") + b"priority: 9\n")
    assert changed.returncode == 0, changed.stderr
    assert b"schedule.cron: 0 0 1 1 * -> 0 0 1 7 *" in changed.stderr
    assert b"priority: 50 -> 9" in changed.stderr
    assert real("resume", "nightly").stdout.startswith(b"nightly starts in ")
    refused = real("apply", "-y", "-f", "-", stdin=NIGHTLY.replace(b"echo round", b"echo other"))
    assert (refused.returncode, b"commands" in refused.stderr, b"stoker stop nightly" in refused.stderr) == (
        1,
        True,
        True,
    )
    assert real("stop", "nightly").returncode == 0
    assert b"its schedule is paused" in real("events", "nightly").stdout


@pytest.mark.xdist_group("cli")
def test_a_held_run_and_a_limit_that_comes_while_it_runs(real: Real) -> None:
    task = b"type: task\nname: holdme\ncommands: [sleep 60]\nhold: true\n"
    assert real("apply", "-y", "-f", "-", stdin=task).stdout == b"holdme\n"
    assert b"held" in real("why", "holdme").stdout
    assert b"held" in real("ps", env={"COLUMNS": "200"}).stdout
    assert real("release", "holdme").returncode == 0
    eventually(lambda: json.loads(real("get", "holdme", "--json").stdout)["status"] == "RUNNING", "it runs")
    refused = real("hold", "holdme")
    assert (refused.returncode, b"nothing of it waits any more" in refused.stderr) == (1, True)
    assert real("apply", "-y", "-f", "-", stdin=task + b"max_duration: 1s\n").returncode == 0
    assert real("wait", "holdme", "--timeout", "30s").returncode != 0
    assert (
        json.loads(real("get", "holdme", "--json").stdout)["jobs"][0]["termination_reason"] == "MAX_DURATION_EXCEEDED"
    )


@pytest.mark.xdist_group("cli")
def test_a_longer_grace_counts_for_what_runs_already(real: Real) -> None:
    """It was started with half a second, which its cleaning up takes longer than."""
    script = b"trap 'sleep 1.5; echo cleaned; exit 0' TERM; echo up; sleep 60 & wait"
    task = b"type: task\nname: graceful\ncommands:\n  - " + script + b"\n"
    assert real("apply", "-y", "-d", "-f", "-", stdin=task + b"stop_duration: 0.5s\n").returncode == 0
    eventually(lambda: real("logs", "graceful").stdout == b"up\n", "it is up")
    assert real("apply", "-y", "-f", "-", stdin=task + b"stop_duration: 20s\n").returncode == 0
    assert real("stop", "graceful").returncode == 0
    real("wait", "graceful", "--timeout", "30s")
    assert real("logs", "graceful").stdout == b"up\ncleaned\n"
