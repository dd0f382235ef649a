"""Whose a job is and what holds it, as root: users, control groups, memory. CI runs as root."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.wire.frame import Stream
from stoker.wire.runner import Failure
from tests.agents.running import fork_server, runner
from tests.machine import as_root, unavailable

pytestmark = as_root
MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-tenant"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


async def test_as_root_a_job_is_its_own_user_and_can_never_be_root_again(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, uid=200_123, gid=200_123) as one:
        who = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; touch mine"
        result = await one.runs(f"{who}; for f in runner.json order.json log; do ls ../$f/ || cat ../$f || true; done")
        assert result.exit_code == 0
        lines = (await one.output()).decode().split()
        assert lines == ["200123", "200123", "200123", "NoNewPrivs:", "1"]
        assert (place / "work" / "mine").stat().st_uid == 200_123
        assert b"ermission denied" in await one.output(Stream.STDERR)


async def test_a_terminal_belongs_to_the_user_of_the_job(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, uid=200_123, gid=200_123) as one:
        result = await one.runs("stat -c %u $(tty); echo hello > $(tty)", tty=True)
        assert result.exit_code == 0
        assert await one.output() == b"200123\r\nhello\r\n"


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A group of 64 MB, in whichever version this host has."""
    two = (UNIFIED / "cgroup.controllers").exists()
    top = UNIFIED if two else MEMORY
    group = top / f"stoker-test-{uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / ("memory.max" if two else "memory.limit_in_bytes")).write_text(str(64 << 20))
    except OSError as error:
        unavailable(f"this host lets nobody make control groups with limits: {error}")
    yield group
    deadline = time.monotonic() + 10
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


async def test_a_job_killed_for_memory_is_told_apart(fork_socket: Path, place: Path, memory_group: Path) -> None:
    async with runner(fork_socket, place, cgroups=[str(memory_group)]) as one:
        result = await one.runs("python3 -c 'x = bytearray(256 << 20)'; echo never")
        assert (result.exit_code, result.signal, result.oom) == (137, signal.SIGKILL, True)
        assert one.alive()


async def test_everything_in_the_control_group_dies_with_the_job(
    fork_socket: Path, place: Path, memory_group: Path
) -> None:
    """Also what somebody else put there, who neither descends from the job nor has its name."""
    async with runner(fork_socket, place, cgroups=[str(memory_group)]) as one:
        await one.start("cat /proc/self/cgroup; echo up; sleep 60")
        await one.printed(b"up", memory_group.name.encode())
        stranger = await asyncio.create_subprocess_exec("sleep", "60")
        (memory_group / "cgroup.procs").write_text(str(stranger.pid))
        await one.stop()
        result = await one.result()
        assert (result.signal, result.oom) == (signal.SIGTERM, False)
        assert await stranger.wait() == -signal.SIGKILL


async def test_a_control_group_that_cannot_be_joined_is_an_error_of_the_host(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, cgroups=["/sys/fs/cgroup/no-such-group"]) as one:
        result = await one.runs("echo never")
        assert result.failure == Failure.EXECUTOR
        assert "cannot be started" in result.message
        assert result.log_end == 0
