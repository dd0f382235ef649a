"""`stoker logs`: exact bytes, once, also when connections break."""

import subprocess
import threading
import time

import pytest

from stoker.client import log
from stoker.client.client import Client
from tests.cli.conftest import ROOT, Stoker, command
from tests.cli.fake import TOKEN, Fake, err, out, run

AT = 1_777_636_800_000_000


def test_stdout_and_stderr_are_told_apart_byte_for_byte(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.write(out(b"one\n"), err(b"oh\xff\n"), out(b"\x00two"), complete=True)
    told = stoker("logs", "train")
    assert (told.returncode, told.stdout, told.stderr) == (0, b"one\n\x00two", b"oh\xff\n")


def test_a_long_log_comes_whole(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    lines = [f"line {number}\n".encode() for number in range(30_000)]
    fake.write(*map(out, lines), complete=True)
    assert stoker("logs", "train").stdout == b"".join(lines)
    assert stoker("logs", "train", "--tail", "3").stdout == b"".join(lines[-3:])
    assert stoker("logs", "-f", "train", "--tail", "2").stdout == b"".join(lines[-2:])


def test_since_and_timestamps(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.write(out(b"old\n", AT), out(b"new\n", AT + 60_000_000), complete=True)
    assert stoker("logs", "train", "--since", "2026-05-01T12:00:30Z").stdout == b"new\n"
    assert stoker("logs", "train", "-t").stdout.splitlines() == [
        b"2026-05-01T12:00:00.000000Z old",
        b"2026-05-01T12:01:00.000000Z new",
    ]


def test_what_is_asked_for_reaches_the_server(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    stoker("logs", "train", "--job", "j-1", "--replica", "2", "--submission", "3", "--runner")
    (path,) = [path for _, path, _ in fake.asked if "/logs?" in path]
    for part in ("job=j-1", "replica=2", "submission=3", "runner=true", "offset=0"):
        assert part in path


@pytest.mark.parametrize("breaks", [[0, 1, 0, 2], [1] * 10, [3]])
def test_a_broken_connection_loses_nothing_and_repeats_nothing(
    connected: dict[str, str], fake: Fake, breaks: list[int]
) -> None:
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"before\n"))
    fake.break_after = breaks
    following = subprocess.Popen(
        command("logs", "-f", "train"), env=connected, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    for number in range(20):
        fake.write(out(f"{number}\n".encode()))
        time.sleep(0.02)
    fake.write(complete=True)
    told, said = following.communicate(timeout=60)
    assert following.returncode == 0
    assert told == b"before\n" + b"".join(f"{number}\n".encode() for number in range(20))
    assert said.count(b"trying again") == said.count(b"is back")


def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    """The server is gone between two connections; the one that comes back at the same place goes on."""
    fake = Fake()
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\n"))
    fake.break_after = [1, 0]
    told, client = [], Client(fake.url, TOKEN, "main")
    seen: list[str] = []
    with fake.serving():
        threading.Timer(0.3, lambda: fake.write(out(b"two\n"), out(b"three\n"), complete=True)).start()
        for piece in log.follow(client, "train", log.Which(), 0, lambda error: seen.append(error.code)):
            told.append(piece.frames)
    assert b"".join(told) == fake.log
    assert "unreachable" in seen


def test_follow_of_a_finished_log_returns_at_once(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    assert stoker("logs", "-f", "train").returncode == 0


def test_a_reader_that_goes_away_ends_a_follower(connected: dict[str, str], fake: Fake) -> None:
    """`stoker logs -f train | head -1`"""
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\n"))
    pipe = f"{' '.join(command('logs', '-f', 'train'))} | head -1; exit ${{PIPESTATUS[0]}}"
    shell = subprocess.Popen(
        ["bash", "-c", pipe], env=connected, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    deadline = time.monotonic() + 30
    while shell.poll() is None and time.monotonic() < deadline:
        fake.write(out(b"more\n"))
        time.sleep(0.05)
    told, said = shell.communicate(timeout=30)
    assert (shell.returncode, told, said) == (141, b"one\n", b"")
