"""`stoker logs`: exact bytes, once, also when connections break."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stoker.client import log
from stoker.client.client import Client
from tests.cli.conftest import BERLIN, ROOT, Stoker, command
from tests.cli.fake import TOKEN, Fake, err, job, out, run

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
    assert stoker("logs", "train", "-t", TZ=BERLIN).stdout.splitlines() == [
        b"2026-05-01T14:00:00.000000+02:00 old",
        b"2026-05-01T14:01:00.000000+02:00 new",
    ]


def test_the_server_finds_the_last_lines_and_the_client_does_not_read_the_others(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.write(*(out(b"%d\n" % number, AT + number * 1_000_000) for number in range(50_000)), complete=True)
    fake.write(err(b"oh", AT + 50_000_000_000), out(b"last\n"), err(b"!\n"), complete=True)
    told = stoker("logs", "train", "--tail", "2", "--since", "2026-05-01T12:00:00Z")
    assert (told.stdout, told.stderr) == (b"last\n", b"oh!\n")
    (path,) = [path for _, path, _ in fake.asked if "/logs?" in path]
    assert "tail=2" in path and "since=2026-05-01T12%3A00%3A00%2B00%3A00" in path


def test_too_many_lines_are_refused_in_a_sentence(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.answers = [(422, {}, {"error": {"code": "invalid", "message": "tail is too large.", "hint": ""}})]
    told = stoker("logs", "train", "--tail", "99999999")
    assert (told.returncode, told.stdout) == (1, b"")
    assert b"tail is too large" in told.stderr


def objects(told: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.splitlines()]


def test_json_has_an_object_for_each_line(stoker: Stoker, fake: Fake) -> None:
    """However the bytes were cut into frames: lines are put together, and each stream has its own."""
    fake.add(run("train"))
    frames = [out("früh".encode()[:3], AT), err(b"oh\n", AT + 1), out("früh".encode()[3:] + b"\n\nx\xff\n", AT + 2)]
    fake.write(*frames, out(b"no end", AT + 3), complete=True)
    second, third = len(frames[0]), len(frames[0] + frames[1])
    told = objects(stoker("logs", "train", "--json", TZ=BERLIN).stdout)
    at = "2026-05-01T12:00:00.00000{}Z".format
    assert told == [
        {"time": at(1), "stream": "stderr", "offset": second, "text": "oh"},
        {"time": at(0), "stream": "stdout", "offset": 0, "text": "früh"},
        {"time": at(2), "stream": "stdout", "offset": third, "text": ""},
        {"time": at(2), "stream": "stdout", "offset": third, "text": "x\ufffd", "base64": "eP8="},
        {"time": at(3), "stream": "stdout", "offset": third + len(frames[2]), "text": "no end", "partial": True},
    ]
    last = objects(stoker("logs", "train", "--json", "--tail", "1").stdout)
    assert [one["text"] for one in last] == ["no end"]


def test_json_gives_back_every_byte_of_a_line_of_any_length(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    line = "aä€😀".encode() * 400_000
    fake.write(*(out(line[at : at + 60_000]) for at in range(0, len(line), 60_000)), out(b"\nend\n"), complete=True)
    told = objects(stoker("logs", "train", "--json").stdout)
    assert len(told) > 3
    assert all("base64" not in one for one in told), "no character is cut in two"
    assert "".join(f"{one['text']}{'' if 'partial' in one else chr(10)}" for one in told).encode() == line + b"\nend\n"


def test_json_is_followed_line_by_line(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\ntw"))
    with following(connected, "--json") as reader:
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["text"] == "one"
        fake.write(out(b"o\nthree"))
        assert json.loads(reader.stdout.readline())["text"] == "two"
        end(fake)
        told, _ = reader.communicate(timeout=30)
    assert [(one["text"], one["partial"]) for one in objects(told)] == [("three", True)]


@contextmanager
def following(env: dict[str, str], *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """`stoker logs -f train`, which does not outlive the test."""
    reader = subprocess.Popen(
        command("logs", "-f", "train", *args),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    )
    try:
        yield reader
    finally:
        reader.kill()
        reader.wait()
        for pipe in (reader.stdout, reader.stderr):
            if pipe is not None:
                pipe.close()


def end(fake: Fake) -> None:
    fake.runs["train"] |= {"status": "DONE", "exit_code": 0}
    fake.write(complete=True)


def test_who_follows_a_run_that_has_not_started_is_told_what_it_waits_for(
    connected: dict[str, str], fake: Fake
) -> None:
    fake.add(run("train", status="SUBMITTED", started_at=None))
    fake.complete = False
    with following(connected) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert b"waits for a machine" in reader.stderr.readline()
        fake.runs["train"]["status"] = "RUNNING"
        fake.write(out(b"one\n"))
        assert reader.stdout.readline() == b"one\n"
        end(fake)
        assert reader.wait(30) == 0


def test_a_run_that_is_tried_again_is_followed_into_its_next_submission(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train", status="PENDING", jobs=[job(status="FAILED")]))
    fake.write(out(b"first\n"), complete=True)
    with following(connected) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert reader.stdout.readline() == b"first\n"
        fake.log = b""
        fake.write(out(b"second\n"))
        fake.runs["train"]["jobs"] = [job(status="FAILED"), job(submission=2)]
        assert reader.stdout.readline() == b"second\n"
        end(fake)
        told, said = reader.communicate(timeout=30)
    assert (told, reader.returncode) == (b"", 0)
    assert b"submission 2" in said


def test_after_a_break_it_is_still_the_same_run_and_the_same_submission(connected: dict[str, str], fake: Fake) -> None:
    """The name means a newer run by now, and the run has a newer submission."""
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\n"))
    fake.break_after = [1]
    with following(connected) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"one\n"
        fake.write(out(b"two\n"))
        assert reader.stdout.readline() == b"two\n"
        fake.write(out(b"three\n"))
        assert reader.stdout.readline() == b"three\n"
        end(fake)
        assert reader.wait(30) == 0
    first, *others = [path for _, path, _ in fake.asked if "/logs" in path]
    assert "/runs/train/" in first
    assert len(others) > 2
    for path in others:
        assert f"/runs/{fake.runs['train']['id']}/" in path and "submission=" in path


def test_a_log_that_is_deleted_while_it_is_followed_is_no_whole_log(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\n"))
    with following(connected) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"one\n"
        fake.gone = True
        fake.write()
        _, said = reader.communicate(timeout=30)
    assert reader.returncode == 1
    assert b"train was deleted meanwhile" in said


def test_a_proxy_whose_server_starts_again_is_asked_again(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.write(out(b"one\n"), complete=True)
    fake.answers = [(502, {}, {}), (504, {}, {})]
    assert stoker("logs", "train").stdout == b"one\n"


def test_a_follower_of_a_silent_log_leaves_with_its_reader(connected: dict[str, str], fake: Fake) -> None:
    """`stoker logs -f train | head -1`, and nothing more is written: the shell must not wait for the next line."""
    fake.add(run("train", status="RUNNING"))
    fake.write(out(b"one\n"))
    with following(connected) as reader:
        assert reader.stdout is not None and reader.stderr is not None
        assert reader.stdout.readline() == b"one\n"
        reader.stdout.close()
        assert reader.wait(20) == 141
        assert reader.stderr.read() == b""


def test_a_reader_of_both_outputs_may_go_away(connected: dict[str, str], fake: Fake) -> None:
    """`stoker logs train 2>&1 | head -1`"""
    fake.add(run("train"))
    fake.write(*(each(b"x" * 60_000 + b"\n") for _ in range(20) for each in (out, err)), complete=True)
    pipe = f"{' '.join(command('logs', 'train'))} 2>&1 | head -1 | wc -c; exit ${{PIPESTATUS[0]}}"
    shell = subprocess.run(["bash", "-c", pipe], env=connected, capture_output=True, timeout=30, cwd=ROOT)
    assert (shell.returncode, int(shell.stdout), shell.stderr) == (141, 60_001, b"")


def test_what_is_asked_for_reaches_the_server(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    stoker("logs", "train", "--job", "j-1", "--replica", "2", "--submission", "3", "--runner")
    (path,) = [path for _, path, _ in fake.asked if "/logs?" in path]
    for part in ("job=j-1", "replica=2", "submission=3", "runner=true"):
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
