"""Homes, small disks and other users: what the tests of the store do to a machine."""

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from stoker.store.postgres import Embedded
from tests import machine

# A killed PostgreSQL keeps what it gave to the kernel, so these tests need no disk to be waited for.
SWIFT = {"fsync": "off"}
NOBODY = 65534

SERVER = """
import asyncio, json, sys
from pathlib import Path
from stoker.store.postgres import Embedded

async def main():
    server = await Embedded.start(Path(sys.argv[1]), settings=json.loads(sys.argv[2]))
    print("serving", server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

_numbers = itertools.count(1)


@pytest.fixture
def home(shared_directory: Path) -> Iterator[Path]:
    """A home that does not exist yet, in a place which PostgreSQL's account can reach."""
    home = shared_directory / f"home-{next(_numbers)}"
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def small_disk(shared_directory: Path) -> Iterator[Callable[[int], Path]]:
    """Makes disks of some megabytes."""
    with ExitStack() as mounted:

        def mount(megabytes: int) -> Path:
            return mounted.enter_context(machine.small_disk(shared_directory / f"disk-{next(_numbers)}", megabytes))

        yield mount


@pytest.fixture
def server_process(home: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts another Stoker server on the same home."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SERVER, str(home), json.dumps(SWIFT)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def serving(process: subprocess.Popen[str]) -> int:
    """Waits until it serves; the pid of its PostgreSQL."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith("serving "):
            return int(line.split()[1])
    raise AssertionError("the server ended before it served")


@asynccontextmanager
async def running(home: Path, **settings: str) -> AsyncIterator[Embedded]:
    server = await Embedded.start(home, settings=SWIFT | settings)
    try:
        yield server
    finally:
        await server.stop()


async def asked(server: Embedded, statement: str) -> object:
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def remember(server: Embedded) -> None:
    await asked(server, "CREATE TABLE thing AS SELECT 42 AS n")


async def remembered(server: Embedded) -> object:
    return await asked(server, "SELECT n FROM thing")


def alive(pid: int) -> bool:
    """A zombie is not: its parent may be slow to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(happened: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Returns when the condition holds, and fails the test when it does not come true in time."""
    deadline = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        time.sleep(0.005)
