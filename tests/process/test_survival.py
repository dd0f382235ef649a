"""`kill -9` of each part of a whole Stoker while twenty runs are in every state: all reach the right end.

What is looked at afterwards is in `crowd.py`: the outcome of each run, that its commands were started once, its log
byte for byte, and that nothing is left of it.
"""

import os
import signal
import time
from contextlib import suppress
from datetime import datetime
from functools import partial

import pytest

from stoker.core.errors import Unavailable
from stoker.runner.proc import alive
from stoker.wire.frame import Stream
from tests.process.crowd import LINES, Crowd, Part, Yard, assert_whole, numbers
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("survival")

AWAY_S = 60.0


def kill(pid: int | None) -> None:
    assert pid is not None, "there is nobody to kill"
    os.kill(pid, signal.SIGKILL)


def test_twenty_runs_reach_their_right_end_after_kill_9_of_the_server(stand: Stand, yard: Yard) -> None:
    """Jobs end while nobody watches, and the runner of one of them dies after that: its result is on disk."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    ids = {name: stand.job(name)["id"] for name in crowd.meanwhile}
    crowd.submit_fresh()
    stand.kill_server()
    crowd.end_meanwhile(ids)
    kill(stand.runner(ids["meanwhile-1"]))
    stand.start()
    crowd.end_rest()
    crowd.judge()


def test_twenty_runs_reach_their_right_end_after_kill_9_of_the_shim(stand: Stand, yard: Yard) -> None:
    """Its runners go on without it, and the server starts another one, which finds them."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    crowd.submit_fresh()
    killed = stand.shim()
    kill(killed)
    for name in crowd.meanwhile:
        yard.open(name)
    until(lambda: stand.shim() not in (None, killed), "there is a shim again")
    crowd.end_rest()
    crowd.judge()


def test_twenty_runs_reach_their_right_end_after_kill_9_of_the_fork_server(stand: Stand, yard: Yard) -> None:
    """What it forked goes on; the next task makes the shim start another."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    killed = stand.fork_server()
    kill(killed)
    crowd.submit_fresh()
    for name in crowd.meanwhile:
        yard.open(name)
    until(lambda: stand.fork_server() not in (None, killed), "there is a fork server again")
    crowd.end_rest()
    crowd.judge()


def test_twenty_runs_reach_their_right_end_after_kill_9_of_postgresql(stand: Stand, yard: Yard) -> None:
    """The server starts it again by itself."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    crowd.submit_fresh()
    killed = stand.postgres()
    assert killed
    for pid in killed:
        kill_if_there(pid)
    for name in crowd.meanwhile:
        yard.open(name)
    until(lambda: answers_again(stand), "the server has its database again")
    crowd.end_rest()
    crowd.judge()
    assert not set(killed) & set(stand.postgres())


def kill_if_there(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def answers_again(stand: Stand) -> bool:
    with suppress(Unavailable):
        stand.client.ask("GET", stand.client.at("runs"), patience_s=0.0)
        return True
    return False


def test_a_killed_runner_is_an_executor_error_and_its_leftovers_are_killed(stand: Stand, yard: Yard) -> None:
    """Nobody knows how the commands would have ended, and nothing of them may go on unwatched."""
    hidden = yard.file("hidden")
    flee = f"(setsid sh -c 'echo $$ > {hidden}; exec sleep 1000' &)"
    stand.submit("orphan", yard.note("orphan"), flee, "seq 100", "echo oh >&2", "sleep 1000")
    stand.reaches("orphan", "RUNNING")
    job = stand.job("orphan")["id"]
    until(lambda: hidden.exists() and hidden.read_text() and stand.written("orphan").endswith(b"oh\n"), "it runs")
    processes = {*yard.began("orphan"), int(hidden.read_text())}
    assert processes <= set(stand.processes_of([job]))
    kill(stand.runner(job))
    run = stand.finished("orphan")
    assert (run["status"], run["termination_reason"]) == ("FAILED", "JOB_FAILED")
    (ended,) = run["jobs"]
    assert (ended["status"], ended["termination_reason"]) == ("FAILED", "EXECUTOR_ERROR")
    assert "died" in ended["message"]
    assert "died" in run["status_message"]
    assert stand.processes_of([job]) == []
    assert len(yard.began("orphan")) == 1
    assert stand.log("orphan") == numbers(1, 100)
    assert stand.log("orphan", Stream.STDERR) == b"oh\n"
    until(lambda: not stand.tasks(), "the host has forgotten it")


def reboot(stand: Stand) -> None:
    """Nobody has the time to notice that somebody else has died: they are stopped first."""
    jobs = stand.processes_of(map(str, stand.tasks()))
    everybody = {*stand.agents(), *stand.postgres(), *jobs}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    until(lambda: not any(map(alive, everybody)), "all are dead")


def test_after_a_reboot_nothing_hangs_and_what_ran_has_failed_with_a_clear_reason(stand: Stand, yard: Yard) -> None:
    """Everything dies at once, jobs included. Four of them had ended a moment before, and keep their ends."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    ids = {name: stand.job(name)["id"] for name in crowd.parts}
    crowd.submit_fresh()
    stand.kill_server()
    crowd.end_meanwhile(ids)
    reboot(stand)
    stand.start()
    stand.stop("huge")
    for name in (*crowd.later, *crowd.writing):
        crowd.parts[name].status, crowd.parts[name].reason, crowd.parts[name].exit_code = "FAILED", "JOB_FAILED", None
        crowd.parts[name].log = None
    for name in crowd.ending:
        crowd.parts[name].log = numbers(1, LINES) + b"asked\n"
    for name in crowd.fresh:
        judge_fresh(crowd, crowd.parts.pop(name))
    crowd.judge()
    for name in (*crowd.later, *crowd.writing):
        (job,) = stand.get(name)["jobs"]
        assert job["termination_reason"] == "EXECUTOR_ERROR"
        assert "died" in job["message"]


def judge_fresh(crowd: Crowd, part: Part) -> None:
    """It had not begun, had ended, or was in between."""
    run = crowd.stand.finished(part.name)
    (job,) = run["jobs"]
    assert run["status"] == "FAILED"
    began = len(crowd.yard.began(part.name))
    if job["termination_reason"] == "EXECUTOR_ERROR":
        assert job["message"]
        assert began <= 1
    else:
        assert (job["termination_reason"], run["exit_code"], began) == ("CONTAINER_EXITED_WITH_ERROR", 3, 1)
        assert_whole(part.name, crowd.stand.log(part.name), part.log)


def test_a_server_that_is_away_stops_nothing_and_knows_everything_afterwards(stand: Stand, yard: Yard) -> None:
    """Also when things ended is known: when they did, not when that was heard."""
    for name, code in (("ended", 5), ("ended-well", 0)):
        stand.submit(name, yard.note(name), "seq 100", yard.gate(name), "seq 101 200", f"exit {code}")
    stand.submit("going-on", yard.note("going-on"), "seq 100", yard.gate("going-on"), "seq 101 200")
    for name in ("ended", "ended-well", "going-on"):
        until(partial(yard.began, name), f"{name} runs")
    ids = {name: stand.job(name)["id"] for name in ("ended", "ended-well", "going-on")}
    stand.kill_server()
    left = time.monotonic()
    for name in ("ended", "ended-well"):
        yard.open(name)
        until(stand.place(ids[name]).result.exists, f"{name} has ended")
    until(lambda: time.monotonic() > left + AWAY_S, "it was away for long", 2 * AWAY_S)
    assert stand.runner(ids["going-on"]) is not None
    stand.start()
    returned = time.time()
    assert stand.get("going-on")["status"] == "RUNNING"
    for name, code in (("ended", 5), ("ended-well", 0)):
        run = stand.finished(name)
        assert (run["status"], run["exit_code"]) == ("FAILED" if code else "DONE", code)
        assert stand.log(name) == numbers(1, 200)
        for shown in (run["finished_at"], stand.job(name)["finished_at"]):
            assert datetime.fromisoformat(shown).timestamp() < returned - AWAY_S / 2, "when it ended, not when we heard"
    yard.open("going-on")
    assert stand.finished("going-on")["status"] == "DONE"
    assert stand.log("going-on") == numbers(1, 200)
    assert stand.job("going-on")["unreachable_since"] is None
    assert all(len(yard.began(name)) == 1 for name in ids)
