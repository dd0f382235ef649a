"""A runner's life: what it is told, how often, in which order, and when it leaves."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.runner.identity import Identity
from stoker.wire.frame import Stream, decode
from stoker.wire.runner import Failure, Header, Health, Result, RunnerState
from tests.agents.running import fork_server, runner, until
from tests.machine import fill, small_disk


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-life"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


async def test_a_life_from_the_order_to_the_last_reader(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        assert (await one.health()).state == RunnerState.WAIT_SUBMIT
        found = Identity.read(place / "runner.pid")
        assert found is not None
        assert (found.pid, found.alive()) == (one.pid, True)
        await one.submit("echo hello")
        assert (await one.health()).state == RunnerState.WAIT_CODE
        assert json.loads((place / "order.json").read_text())["commands"] == ["echo hello"]
        assert (place / "order.json").stat().st_mode & 0o777 == 0o600
        await one.ask("POST", "/run")
        result = await one.result()
        assert (await one.health()).state == RunnerState.SERVE_LOGS
        assert Result.model_validate_json((place / "result.json").read_bytes()) == result
        told = await one.ask("GET", f"/pull?offset={result.log_end}")
        assert (told.body, told.complete, told.next) == (b"", True, result.log_end)
        assert Health.model_validate_json(told.headers[Header.HEALTH]).result == result
        assert (await one.health()).state == RunnerState.WAIT_LOGS_FINISHED
        assert "the job ended with exit code 0" in await one.own_log()
        await until(lambda: not one.alive())
        assert not found.alive()


async def test_news_come_by_long_poll(fork_socket: Path, place: Path) -> None:
    """Empty-handed after the time asked for; at once when there is a line, and at once at the end."""
    async with runner(fork_socket, place) as one:
        await one.start("read x < fifo; echo $x; read x < last", setup=["mkfifo last fifo"])
        await until((place / "work" / "fifo").exists)
        began = time.monotonic()
        assert (await one.ask("GET", "/pull?wait_s=0.2")).body == b""
        assert 0.15 < time.monotonic() - began < 5
        waiting = asyncio.create_task(one.ask("GET", "/pull?wait_s=50"))
        await asyncio.to_thread((place / "work" / "fifo").write_text, "news\n")
        told = await asyncio.wait_for(waiting, 10)
        assert [frame.data for frame in decode(told.body)] == [b"news\n"]
        assert not told.complete
        waiting = asyncio.create_task(one.ask("GET", f"/pull?offset={told.next}&wait_s=50"))
        await asyncio.to_thread((place / "work" / "last").write_text, "go\n")
        last = await asyncio.wait_for(waiting, 10)
        assert (last.body, last.complete) == (b"", True)
        assert json.loads(last.headers[Header.HEALTH])["result"]["exit_code"] == 0


async def test_an_order_may_be_repeated_and_not_changed(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        order = one.order("echo once >> times")
        for fence in (5, 5, 6):
            assert (await one.ask("POST", "/job", json=order | {"fence": fence})).status == 200
        told = await one.ask("POST", "/job", json=order | {"fence": 6, "commands": ["echo other"]})
        assert told.error == (409, "other_order")
        assert "told first" in told.sentence
        assert (await one.ask("POST", "/job", json=order | {"fence": 4})).error == (409, "fenced")
        assert (await one.stop(fence=5)).error == (409, "fenced")
        for _ in range(3):
            assert (await one.ask("POST", "/run")).status == 202
        assert (await one.result()).exit_code == 0
        assert (await one.ask("POST", "/run")).health.result is not None
        assert (await one.ask("POST", "/job", json=order | {"fence": 6})).health.result is not None
        assert (await one.stop(fence=6)).health.result is not None
        assert (place / "work" / "times").read_text() == "once\n"


async def test_another_jobs_order_is_refused(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        told = await one.ask("POST", "/job", json=one.order("true", job_id=str(uuid4())))
        assert told.error == (409, "other_job")
        assert not (place / "order.json").exists()


async def test_nothing_runs_before_there_is_an_order(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        assert (await one.ask("POST", "/run")).error == (409, "no_job")
        assert (await one.ask("PUT", "/code", data=b"")).error == (409, "no_job")


async def test_a_job_that_was_stopped_before_its_order_never_runs(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        assert (await one.stop(fence=3)).status == 202
        result = await one.result()
        assert (result.signal, result.log_end) == (signal.SIGTERM, 0)
        told = await one.ask("POST", "/job", json=one.order("touch ran", fence=4))
        assert told.error == (409, "stopped")
        assert not (place / "work" / "ran").exists()


async def test_a_job_that_was_stopped_before_it_started_never_runs(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.submit("touch ran")
        for _ in range(2):
            assert (await one.stop()).status == 202
        result = await one.result()
        assert (result.exit_code, result.failure, result.message) == (143, None, "Stopped before it ran.")
        assert (await one.ask("POST", "/run")).health.result == result
        assert not (place / "work" / "ran").exists()


async def test_the_result_outlives_the_runner_and_the_commands_do_not_run_again(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        order = one.order("echo x; echo once >> times; exit 4")
        await one.ask("POST", "/job", json=order)
        await one.ask("POST", "/run")
        result = await one.result()
        identity = {"id": str(one.job_id), "token": one.token}
    async with runner(fork_socket, place, **identity) as two:
        health = await two.health()
        assert (health.state, health.result) == (RunnerState.SERVE_LOGS, result)
        assert (await two.ask("POST", "/job", json=order)).health.result == result
        assert (await two.ask("POST", "/run")).status == 202
        assert await two.output() == b"x\n"
        assert (place / "work" / "times").read_text() == "once\n"


async def test_a_runner_that_finds_an_order_without_a_result_ends_the_job(fork_socket: Path, place: Path) -> None:
    """Its predecessor was killed, and the job's processes may still be there."""
    async with runner(fork_socket, place) as one:
        await one.start("echo begun; echo once >> times; sleep 60 & wait")
        await one.printed(b"begun")
        identity = {"id": str(one.job_id), "token": one.token}
        one.kill()
        await until(lambda: not one.alive())
        async with runner(fork_socket, place, **identity) as two:
            result = await two.result()
            assert result.failure == Failure.EXECUTOR
            assert "not run a second time" in result.message
            assert await two.output() == b"begun\n"
            assert "killed 2 processes" in await two.own_log()
            assert (place / "work" / "times").read_text() == "once\n"


async def test_sigterm_stops_the_job_and_the_runner_leaves_with_its_result(fork_socket: Path, place: Path) -> None:
    """As the shim does it when the task is terminated: the log is on disk, nobody has to pull it first."""
    async with runner(fork_socket, place) as one:
        await one.start("trap 'echo bye; exit 6' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        one.kill(signal.SIGTERM)
        await until(lambda: not one.alive())
        result = Result.model_validate_json((place / "result.json").read_bytes())
        assert result.exit_code == 6
        kept = b"".join(path.read_bytes() for path in sorted((place / "log").glob("*.log")))
        assert result.log_end == len(kept)
        assert b"".join(frame.data for frame in decode(kept) if frame.stream == Stream.STDOUT) == b"up\nbye\n"


async def test_sigterm_before_any_job_is_a_quiet_end(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        waiting = asyncio.create_task(one.ask("GET", "/pull?wait_s=60"))
        await one.health()
        one.kill(signal.SIGTERM)
        assert (await asyncio.wait_for(waiting, 10)).complete
        await until(lambda: not one.alive())
        assert not (place / "result.json").exists()
        assert str(place) not in fork_socket.with_name("fork.log").read_text(), "it did not crash"


async def test_the_own_log_tells_the_story(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.runs("echo x")
        told = await one.ask("GET", "/own?offset=0")
        assert told.complete
        frames = list(decode(told.body))
        assert {frame.stream for frame in frames} == {Stream.RUNNER}
        story = b"".join(frame.data for frame in frames).decode().splitlines()
        assert [line.split()[0] for line in story] == ["runner", "took", "commands", "the"]


async def test_the_shim_is_told_when_something_changed(fork_socket: Path, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(place.with_suffix(".n")))
        ear.settimeout(10)
        async with runner(fork_socket, place, notify=str(place.with_suffix(".n"))) as one:
            await one.runs("true")
            assert {ear.recv(100).decode() for _ in range(4)} == {str(one.job_id)}


async def test_a_shim_that_does_not_listen_disturbs_nothing(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, notify=str(place / "nobody")) as one:
        assert (await one.runs("true")).exit_code == 0


async def test_the_job_is_stopped_when_the_server_is_silent_for_too_long(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, stop_after_s=0.5) as one:
        await one.start("trap 'exit 8' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        await until((place / "result.json").exists)
        result = await one.result()
        assert result.exit_code == 8
        assert "was not heard for 0.5 s" in result.message


async def test_a_server_that_waits_for_news_is_not_silent(fork_socket: Path, place: Path) -> None:
    """It asks for more patience than the job may be left alone, so it is answered early and asks again."""
    async with runner(fork_socket, place, stop_after_s=0.6) as one:
        await one.start("echo up; sleep 60")
        await one.printed(b"up")
        began, offset = time.monotonic(), 0
        while time.monotonic() < began + 1.2:
            offset = (await one.ask("GET", f"/pull?offset={offset}&wait_s=30")).next
        assert (await one.health()).state == RunnerState.RUN
        wrong = {"Authorization": "Bearer wrong"}
        while not (place / "result.json").exists():
            assert time.monotonic() < began + 15
            # Strangers are not the server.
            assert (await one.ask("GET", "/healthz", headers=wrong)).status == 401
            await asyncio.sleep(0.05)


async def test_a_result_waits_for_a_disk_that_is_full(fork_socket: Path, place: Path) -> None:
    with small_disk(place, 2):
        async with runner(fork_socket, place) as one:
            await one.submit("echo up; read x < fifo; exit 3", setup=["mkfifo fifo"])
            await one.ask("POST", "/run")
            await one.printed(b"up")
            filler = place / "filler"
            fill(filler)
            # Somebody else takes what was held for the end.
            (place / "result.json.new").unlink()
            fill(filler)
            await asyncio.to_thread((place / "work" / "fifo").write_text, "go\n")
            await until((place / "result.json.new").exists)
            health = await one.health()
            assert (health.state, health.result) == (RunnerState.RUN, None)
            filler.unlink()
            assert (await one.result()).exit_code == 3
            assert "the result is written now" in await one.own_log()


async def test_a_job_that_filled_its_disk_ends_all_the_same(fork_socket: Path, place: Path) -> None:
    """Nobody makes room; its last words and its result have their own."""
    with small_disk(place, 4):
        async with runner(fork_socket, place) as one:
            await one.start("echo begin", "cat /dev/zero > big || seq 1 50000", "exit 12")
            result = await one.result()
            assert os.statvfs(place).f_bavail * 4096 < 2_000_000
            assert result.exit_code == 12
            lines = (await one.output()).splitlines()
            assert (lines[0], lines[-1], len(lines)) == (b"begin", b"50000", 50_001)
            assert b"No space left" in await one.output(Stream.STDERR)


async def test_an_order_for_a_full_disk_waits_for_room(fork_socket: Path, place: Path) -> None:
    with small_disk(place, 4):
        async with runner(fork_socket, place) as one:
            # One that finds no room while it starts does not start.
            assert (await one.health()).state == RunnerState.WAIT_SUBMIT
            fill(place / "filler")
            sent = asyncio.create_task(one.ask("POST", "/job", json=one.order("true")))
            # Answered meanwhile, as ever.
            await asyncio.gather(*(one.health() for _ in range(20)))
            assert not sent.done()
            assert (await one.health()).state == RunnerState.WAIT_SUBMIT
            (place / "filler").unlink()
            assert (await sent).status == 200
            assert (place / "order.json").exists()
