"""Attached to a run: its log, its exit code, and Ctrl-C, which harms nothing unless that is what was meant."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.cli import exits
from stoker.cli.attach import Attached, Interrupts
from stoker.cli.printer import Printer
from stoker.client.client import Client
from stoker.wire.frame import Frame
from tests.cli.conftest import ROOT, command
from tests.cli.fake import TOKEN, Fake, err, job, out, run
from tests.cli.terminal import CTRL_C, CTRL_D, terminal

RUNNING = {"status": "RUNNING", "termination_reason": None, "exit_code": None, "finished_at": None}
HELLO = ("run", "--name", "train", "--", "true")


@pytest.fixture
def running(fake: Fake) -> Fake:
    fake.add(run("train", **RUNNING))
    fake.write(out(b"one\n"))
    return fake


def end(fake: Fake, **said: object) -> None:
    fake.runs["train"].update(said or {"status": "DONE", "exit_code": 0})
    fake.write(complete=True)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"status": "DONE", "exit_code": 0}, 0),
        ({"status": "FAILED", "exit_code": 42}, 42),
        ({"status": "FAILED", "exit_code": None}, exits.RUN_FAILED),
        ({"status": "TERMINATED", "exit_code": None}, exits.RUN_STOPPED),
    ],
)
def test_the_log_is_on_the_screen_and_the_exit_code_is_the_jobs_own(
    connected: dict[str, str], running: Fake, said: dict[str, object], code: int
) -> None:
    attached = subprocess.Popen(
        command(*HELLO),
        env=connected,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    time.sleep(0.3)
    running.write(err(b"oh\n"), out(b"two\n"))
    end(running, **said)
    told, beside = attached.communicate(timeout=30)
    assert attached.returncode == code
    assert told == b"one\ntwo\n"
    assert b"oh\n" in beside
    assert str(said["status"]).lower().replace("terminated", "stopped").encode() in beside


def test_ctrl_c_offers_to_detach_and_that_is_what_enter_means(connected: dict[str, str], running: Fake) -> None:
    with terminal(connected, *HELLO) as person:
        person.wait_for(b"one")
        person.type(CTRL_C)
        person.wait_for(b"[d]etach")
        person.type(b"\n")
        assert person.ends() == exits.RUN_UNFINISHED
    assert b"stoker logs -f train" in person.seen
    assert running.runs["train"]["status"] == "RUNNING"


def test_an_answer_that_was_not_offered_is_asked_for_again(connected: dict[str, str], running: Fake) -> None:
    with terminal(connected, *HELLO) as person:
        person.wait_for(b"one")
        person.type(CTRL_C)
        person.wait_for(b"[d]etach")
        person.type(b"x\n")
        person.wait_for(b"'x' is none of them")
        person.wait_for(b"[d]etach")
        person.type(b"d\n")
        assert person.ends() == exits.RUN_UNFINISHED


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D])
def test_leaving_the_question_detaches(connected: dict[str, str], running: Fake, key: bytes) -> None:
    with terminal(connected, *HELLO) as person:
        person.wait_for(b"one")
        person.type(CTRL_C)
        person.wait_for(b"[d]etach")
        person.type(key)
        assert person.ends() == exits.RUN_UNFINISHED
    assert running.runs["train"]["status"] == "RUNNING"
    assert b"Traceback" not in person.seen


def test_ctrl_c_and_stop(connected: dict[str, str], running: Fake) -> None:
    with terminal(connected, *HELLO) as person:
        person.wait_for(b"one")
        person.type(CTRL_C)
        person.wait_for(b"[s]top")
        person.type(b"s\n")
        assert person.ends() == exits.RUN_STOPPED
    assert ("POST /api/projects/main/runs/stop") in running.paths()
    assert running.runs["train"]["termination_reason"] == "STOPPED_BY_USER"


def test_after_ctrl_c_and_continue_nothing_is_missing_and_nothing_is_there_twice(
    connected: dict[str, str], running: Fake, tmp_path: Path
) -> None:
    """However often somebody presses it, while the log runs past."""
    lines = [b"one\n"]
    with open(tmp_path / "out", "wb") as file, terminal(connected, *HELLO, stdout=file.fileno()) as person:
        person.wait_for(b"submitted")
        for press in range(5):
            for number in range(200):
                lines.append(f"{press}.{number}\n".encode())
                running.write(out(lines[-1]))
            person.type(CTRL_C)
            person.wait_for(b"[d]etach")
            person.type(b"c\n")
            person.wait_for(b"Going on.")
            person.seen = b""
        end(running)
        assert person.ends() == 0
    assert (tmp_path / "out").read_bytes() == b"".join(lines)


def test_without_a_terminal_an_interrupt_detaches(connected: dict[str, str], running: Fake) -> None:
    """A CI job that is cancelled must not stop what others rely on."""
    attached = subprocess.Popen(
        command(*HELLO),
        env=connected,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert attached.stdout is not None
    assert attached.stdout.readline() == b"one\n"
    os.kill(attached.pid, signal.SIGINT)
    _, said = attached.communicate(timeout=30)
    assert attached.returncode == exits.RUN_UNFINISHED
    assert b"Detached" in said
    assert running.runs["train"]["status"] == "RUNNING"


def test_a_run_that_waits_says_why(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train", **RUNNING | {"status": "SUBMITTED", "started_at": None}))
    fake.write()
    with terminal(connected, *HELLO) as person:
        person.wait_for(b"It waits for a machine.")
        fake.runs["train"]["status"] = "RUNNING"
        fake.write(out(b"begun\n"))
        person.wait_for(b"begun")
        end(fake)
        assert person.ends() == 0


def test_on_a_narrow_terminal_the_whole_reason_is_there_and_then_gone(connected: dict[str, str], fake: Fake) -> None:
    """Forty columns: it takes two lines, which are cleared before the log begins."""
    fake.add(run("train", **RUNNING | {"status": "SUBMITTED", "started_at": None}))
    fake.sentence = "train waits: needs 1 CPU and 4 GB of memory, local-9c41ab has 0.5 of 2 CPUs free."
    fake.write()
    with terminal({**connected, "NO_COLOR": "1"}, *HELLO, size=(40, 24)) as person:
        person.wait_for(b"train waits: needs 1 CPU and 4 GB of\r\nmemory, local-9c41ab has 0.5 of 2 CPUs\r\nfree.")
        fake.runs["train"]["status"] = "RUNNING"
        fake.write(out(b"begun\n"))
        person.wait_for(b"\r\x1b[2A\x1b[Jbegun")
        end(fake)
        assert person.ends() == 0


def test_no_try_is_left_out_however_soon_the_next_one_follows(fake: Fake) -> None:
    """Between two looks at the run there were two submissions; replica 1 has had more of them, which does not count."""
    others = [job(replica=1, submission=number) for number in range(1, 6)]
    fake.add(run("train", jobs=[*(job(submission=number) for number in (1, 2, 3)), *others]))
    fake.logs = {1: out(b"first\n"), 2: out(b"second\n"), 3: out(b"third\n")}
    submitted = run("train", **RUNNING)
    shown: list[bytes] = []

    class Paper(Printer):
        def write(self, frames: Iterable[Frame]) -> None:
            shown.extend(frame.data for frame in frames)

    attached = Attached(Client(fake.url, TOKEN, "main"), submitted, Paper(), Interrupts())
    assert attached.attend() == 0
    assert shown == [b"first\n", b"second\n", b"third\n"]


def test_another_try_has_another_log(connected: dict[str, str], fake: Fake) -> None:
    """The first log is complete and the run goes on with a second submission."""
    fake.add(waiting := run("train", **RUNNING))
    fake.write(out(b"first\n"), complete=True)
    attached = subprocess.Popen(
        command(*HELLO),
        env=connected,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert attached.stdout is not None
    assert attached.stdout.readline() == b"first\n"
    fake.log = b""
    fake.write(out(b"second\n"), complete=True)
    waiting["jobs"] = [waiting["jobs"][0] | {"submission": 2}]
    end(fake)
    told, _ = attached.communicate(timeout=30)
    assert told == b"second\n"
    assert attached.returncode == 0
