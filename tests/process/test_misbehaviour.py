"""Jobs that misbehave: each ends with the right reason, exit code and signal, its log is what it wrote, and nothing of
it is left."""

import random
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from stoker.client.client import Json
from stoker.runner.proc import alive
from stoker.wire.frame import Stream, decode
from tests.machine import as_root
from tests.process.conftest import Disk
from tests.process.crowd import Yard, numbers
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("stand")

BUDGET = 50 * 1024 * 1024
"""So much may a process grow while a large log passes through it."""


def ending(run: Json) -> tuple[str, str, str, int | None, int | None]:
    (job,) = run["jobs"]
    return run["status"], run["termination_reason"], job["termination_reason"], job["exit_code"], job["exit_signal"]


def failed(code: int, number: int | None = None, reason: str = "CONTAINER_EXITED_WITH_ERROR") -> tuple[object, ...]:
    return "FAILED", "JOB_FAILED", reason, code, number


DONE = ("DONE", "ALL_JOBS_DONE", "DONE_BY_RUNNER", 0, None)


def test_a_job_that_ignores_sigterm_has_its_stop_duration_and_is_killed_then(stand: Stand, yard: Yard) -> None:
    script = f"trap '' TERM; echo up; {yard.note('deaf')}; sleep 1000; sleep 1000"
    stand.submit("deaf", script, stop_duration="2s")
    until(lambda: yard.began("deaf"), "it runs")
    asked = time.monotonic()
    assert stand.stop("deaf")["status"] == "TERMINATING"
    run = stand.finished("deaf")
    took_s = time.monotonic() - asked
    assert ending(run) == ("TERMINATED", "STOPPED_BY_USER", "TERMINATED_BY_USER", 137, 9)
    assert 2.0 <= took_s < 10.0
    assert stand.processes_of([run["jobs"][0]["id"]]) == []
    assert stand.log("deaf") == b"up\n"


def test_an_abort_does_not_wait_for_the_stop_duration(stand: Stand, yard: Yard) -> None:
    stand.submit("deaf-too", f"trap '' TERM; {yard.note('deaf-too')}; sleep 1000; sleep 1000", stop_duration="1h")
    until(lambda: yard.began("deaf-too"), "it runs")
    assert stand.stop("deaf-too")["status"] == "TERMINATING"
    assert stand.stop("deaf-too", abort=True)["status"] in ("TERMINATING", "TERMINATED")
    run = stand.finished("deaf-too", 20.0)
    assert (run["status"], run["jobs"][0]["exit_signal"]) == ("TERMINATED", 9)


def test_what_a_job_left_in_the_background_dies_with_it(stand: Stand, yard: Yard) -> None:
    """A daemon in a session of its own that keeps the output open, and one that closed everything."""
    flee = "(setsid sh -c 'echo $$ >> {note}; exec sleep 1000' {output} &)"
    note = yard.file("fled")
    run = stand.run(
        "daemon",
        flee.format(note=note, output=""),
        flee.format(note=note, output="</dev/null >/dev/null 2>&1"),
        f"while [ $(cat {note} 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.02; done",
        "echo bye; exit 4",
        patience_s=20.0,
    )
    assert ending(run) == failed(4)
    fled = [int(line) for line in note.read_text().split()]
    assert len(fled) == 2
    assert not any(map(alive, fled))
    assert stand.log("daemon") == b"bye\n"


def test_fifty_megabytes_of_lines_arrive_whole_and_everybody_stays_small(stand: Stand, yard: Yard) -> None:
    shim = stand.shim()
    assert stand.server is not None
    assert shim is not None
    before = {pid: begin_peak(pid) for pid in (stand.server.pid, shim)}
    assert ending(stand.run("large", "seq -f %079.0f 1 625000")) == DONE
    digest = sha256()
    for first in range(1, 625_001, 5000):
        digest.update(b"".join(b"%079d\n" % number for number in range(first, first + 5000)))
    assert sha256(stand.log("large")).digest() == digest.digest()
    assert {pid: peak_of(pid) - size for pid, size in before.items() if peak_of(pid) - size > BUDGET} == {}


def test_a_runner_stays_small_while_nobody_reads_what_its_job_prints(stand: Stand, yard: Yard) -> None:
    """The server is away, so all of it has to wait on the host's disk."""
    stand.submit("unread", yard.note("unread"), yard.gate("unread"), "seq -f %079.0f 1 250000", yard.gate("wrote"))
    until(lambda: yard.began("unread"), "it runs")
    job = stand.job("unread")["id"]
    runner = stand.runner(job)
    assert runner is not None
    stand.kill_server()
    before = begin_peak(runner)
    yard.open("unread")
    yard.open("wrote")
    until(stand.place(job).result.exists, "it has ended")
    assert peak_of(runner) - before < BUDGET
    stand.start()
    assert ending(stand.finished("unread")) == DONE
    assert len(stand.log("unread")) == 80 * 250_000


def test_binary_output_is_kept_byte_for_byte_and_streams_are_told_apart(stand: Stand, yard: Yard) -> None:
    dice = random.Random(7)
    out, err = dice.randbytes(300_000) + bytes(range(256)), dice.randbytes(100_000)
    for name, data in (("out", out), ("err", err)):
        yard.file(name).write_bytes(data)
        yard.file(name).chmod(0o644)
    run = stand.run("binary", f"cat {yard.file('out')}; cat {yard.file('err')} >&2")
    assert ending(run) == DONE
    assert stand.log("binary") == out
    assert stand.log("binary", Stream.STDERR) == err


def test_one_endless_line_is_an_ordinary_log(stand: Stand) -> None:
    run = stand.run("endless", "head -c 20000000 /dev/zero | tr '\\0' x; exit 6")
    assert ending(run) == failed(6)
    assert stand.log("endless") == b"x" * 20_000_000
    assert max(len(frame.data) for frame in decode(stand.frames("endless"))) <= 64 * 1024
    assert len(run["status_message"]) < 5000


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_the_signal_that_ended_a_job_is_known(stand: Stand, number: signal.Signals) -> None:
    run = stand.run(f"by-{number.name.lower()}", "echo up", f"kill -{number.value} $$", "echo never")
    assert ending(run) == failed(128 + number, number)
    assert stand.log(run["name"]) == b"up\n"


@as_root
def test_a_job_that_takes_more_memory_than_it_may_is_killed_for_it(stand: Stand, yard: Yard) -> None:
    """The shell that waits for the greedy one survives it, and takes its exit code."""
    eat = "head -c 300000000 /dev/zero | tail -c 300000000 > /dev/null"
    run = stand.run("greedy", "echo up", eat, "echo never", resources={"memory": "..100MB"})
    assert ending(run) == failed(137, 9, "OUT_OF_MEMORY")
    assert "memory" in run["status_message"]
    assert stand.log("greedy") == b"up\n"
    assert ending(stand.run("modest", "echo up", resources={"memory": "..100MB"})) == DONE


def test_a_job_that_closes_its_output_goes_on_until_its_own_end(stand: Stand, yard: Yard) -> None:
    script = f"echo up; exec >&- 2>&-; {yard.note('mute')}; {yard.gate('mute')}; exit 5"
    stand.submit("mute", script)
    until(lambda: yard.began("mute"), "it runs without output")
    assert stand.get("mute")["status"] == "RUNNING"
    yard.open("mute")
    assert ending(stand.finished("mute")) == failed(5)
    assert stand.log("mute") == b"up\n"


def test_a_job_that_fills_a_disk_of_its_own_fails_by_itself(stand: Stand, yard: Yard, disk: Disk) -> None:
    place = disk(yard.file("small"), 2)
    place.chmod(0o1777)
    run = stand.run("full", "echo up", "cat /dev/zero > big", "echo never", working_dir=str(place))
    assert ending(run) == failed(1)
    assert stand.log("full") == b"up\n"
    assert b"No space left" in stand.log("full", Stream.STDERR)


def test_a_job_that_fills_the_disk_of_its_host_ends_as_it_says(disk: Disk, own_stand: Callable[..., Stand]) -> None:
    """Runner and shim have nowhere to write while it is full. One job makes room by itself, the other does not."""
    stand = own_stand()
    disk(stand.shim_home, 16)
    stand.start()
    fill = "cat /dev/zero > big || cat /dev/zero > big2 || true"
    tidy = stand.run("tidy", fill, "seq 20000", "rm big big2", "exit 3")
    assert ending(tidy) == failed(3)
    untidy = stand.run("untidy", fill, "seq 200", "exit 4")
    assert ending(untidy) == failed(4)
    assert stand.log("tidy") == numbers(1, 20_000)
    assert stand.log("untidy") == numbers(1, 200)
    assert ending(stand.run("next", "true")) == DONE


def begin_peak(pid: int) -> int:
    """What it has now, in bytes; from here on its peak is counted."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return status_of(pid, "VmRSS")


def peak_of(pid: int) -> int:
    return status_of(pid, "VmHWM")


def status_of(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
