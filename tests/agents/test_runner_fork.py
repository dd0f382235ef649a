"""The fork server: it starts runners that owe it nothing, and nothing that is sent to it ends it."""

import asyncio
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from stoker.core.errors import Broken, Unavailable
from stoker.runner.fork_client import server_version, start_runner
from stoker.runner.listening import listen
from tests.agents.running import fork_server, prepare, runner, talk, until


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-fork"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


def say(path: Path, data: bytes, descriptors: list[int]) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        if data:
            socket.send_fds(connection, [data], descriptors)
        else:
            connection.shutdown(socket.SHUT_WR)
        return connection.recv(10_000)


def proc_status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def test_garbage_is_answered_and_forgotten(fork_socket: Path, place: Path) -> None:
    pid = json.loads(say(fork_socket, b"{}", []))["pid"]
    spare = os.open("/dev/null", os.O_RDONLY)
    prepare(place)
    for data, descriptors in (
        (b"", []),
        (b"\0\xff garbage", []),
        (b"[" * 60_000, []),
        (b"null", []),
        (b'{"directory": 7}', [spare]),
        (b'{"directory": "relative"}', [spare]),
        (b'{"directory": "/no/such/place"}', [spare]),
        (json.dumps({"directory": str(place)}).encode(), []),
        (json.dumps({"directory": str(place)}).encode(), [spare] * 3),
        (json.dumps({"directory": "/a\0b"}).encode(), [spare]),
        (b"x" * 100_000, []),
    ):
        assert "error" in json.loads(say(fork_socket, data, descriptors))
    os.close(spare)
    assert json.loads(say(fork_socket, b"{}", []))["pid"] == pid
    assert psutil.Process(pid).num_fds() < 8, "a refused request left something open"
    assert psutil.Process(pid).num_threads() == 1


def test_a_caller_who_says_nothing_is_not_waited_for_long(fork_socket: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.connect(str(fork_socket))
        assert server_version(fork_socket)


def test_without_a_fork_server_the_shim_is_told_to_try_again(place: Path) -> None:
    with pytest.raises(Unavailable):
        server_version(place / "nobody")


def test_a_task_without_its_file_is_refused(fork_socket: Path, place: Path) -> None:
    place.mkdir()
    with listen(place / "s") as listener, pytest.raises(Broken, match=r"no runner\.json"):
        start_runner(fork_socket, place, listener)


async def test_a_runner_inherits_nothing_and_has_its_own_session(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.health()
        assert os.getsid(one.pid) == one.pid
        opened = {os.readlink(f"/proc/{one.pid}/fd/{name}") for name in os.listdir(f"/proc/{one.pid}/fd")}
        files = {name for name in opened if not name.startswith(("socket:", "anon_inode:", "pipe:"))}
        assert files <= {"/dev/null", str(fork_socket.with_name("fork.log")), f"{place}/own/{0:020}.log"}
        status = proc_status(one.pid)
        assert (status["Name"], status["Umask"]) == ("stoker-runner", "0077")


async def test_runners_survive_the_fork_server_and_the_next_one_takes_its_place(shared_directory: Path) -> None:
    home = shared_directory / "runner-fork-dies"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        first = json.loads(say(path, b"{}", []))["pid"]
        async with runner(path, home / "one") as one:
            await one.start("echo up; read x < fifo; exit 5", setup=["mkfifo fifo"])
            await one.printed(b"up")
            os.kill(first, 9)
            with fork_server(home) as again:
                async with runner(again, home / "two") as two:
                    assert (await two.runs("true")).exit_code == 0
                await asyncio.to_thread((home / "one" / "work" / "fifo").write_text, "go\n")
                assert (await one.result()).exit_code == 5


async def test_an_ended_runner_is_no_zombie(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        one.kill()
        await until(lambda: not Path(f"/proc/{one.pid}").exists())


async def test_a_crash_of_a_runner_is_told_in_the_log_of_the_fork_server(fork_socket: Path, place: Path) -> None:
    prepare(place)
    (place / "runner.json").write_text("{}")
    with listen(place / "s") as listener:
        pid = start_runner(fork_socket, place, listener)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    told = fork_socket.with_name("fork.log").read_text()
    assert f"the runner of {place} crashed" in told and "Field required" in told


async def test_a_runner_can_also_start_cold(place: Path) -> None:
    """`stoker runner DIR`, as in a container where nobody forks it."""
    assignment = prepare(place)
    program = "import sys, pathlib, stoker.runner.main as m; m.cold_start(pathlib.Path(sys.argv[1]))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(place))
    await until((place / "runner.sock").exists)
    async with talk(place, assignment, process.pid) as one:
        await one.start("exit 3")
        told = await one.ask("GET", "/pull?wait_s=10")
        assert json.loads(told.headers["Stoker-Health"])["result"]["exit_code"] == 3
        await one.own_log()
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_many_at_once(fork_socket: Path, place: Path) -> None:
    async def one_life(number: int) -> int:
        async with runner(fork_socket, place.with_name(f"{place.name}-{number}")) as one:
            return (await one.runs(f"exit {number}")).exit_code

    assert await asyncio.gather(*(one_life(number) for number in range(20))) == list(range(20))


async def test_a_runner_is_quick_to_answer_and_small(fork_socket: Path, place: Path) -> None:
    """The budget is 15 ms and 15 MB on a quiet machine; a busy one gets more time here, never more memory."""
    waits, sizes = [], []
    for number in range(10):
        began = time.monotonic()
        async with runner(fork_socket, place.with_name(f"{place.name}-{number}")) as one:
            await one.health()
            waits.append(time.monotonic() - began)
            sizes.append(psutil.Process(one.pid).memory_full_info().uss)
    assert statistics.median(waits) < 0.25
    assert max(sizes) < 15_000_000
