"""A real worker for a test, in processes of its own, and how to look at what it runs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from stoker.runner import proc
from tests.worker.fake import FakeServer, Key

PATIENCE_S = 30.0


async def until(holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)
    return found


class Reachable(Protocol):
    """A server, real or not."""

    @property
    def url(self) -> str: ...


class Hand:
    """`stoker worker`, as a person starts it."""

    def __init__(self, server: Reachable, home: Path, *options: str, **environ: str) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "worker.log"
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        env |= {"STOKER_HOME": str(home), "STOKER_URL": server.url, "STOKER_TOKEN": "a-token", **environ}
        command = [sys.executable, "-m", "stoker.cli.main", "worker", "--cpus", "2", "--memory", "1GB", *options]
        with open(self.log, "ab") as log:
            self.keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=home)

    @property
    def pid(self) -> int:
        """Of the worker itself, below its keeper."""
        return next(iter(children_of(self.keeper.pid)))

    def send(self, number: int) -> None:
        self.keeper.send_signal(number)

    def kill(self) -> None:
        """It, its keeper and all that they run, without a word."""
        if self.keeper.poll() is None:
            for pid in children_of(self.keeper.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGKILL)
            self.keeper.wait(PATIENCE_S)

    async def ended(self, patience_s: float = PATIENCE_S) -> int:
        code = await until(lambda: self.keeper.poll() is not None and [self.keeper.returncode], patience_s)
        return int(code[0])

    def said(self) -> str:
        return self.log.read_text()


def children_of(pid: int) -> list[int]:
    return [child for child in proc.pids() if (told := proc.stat(child)) is not None and told.parent == pid]


def processes_of(key: Key) -> list[int]:
    """All that was started for a task, whoever its parent is."""
    return processes_of_task(key[0])


def processes_of_task(id: UUID | str) -> list[int]:
    mark = f"STOKER_TASK_ID={id}".encode()
    return [pid for pid in proc.pids() if proc.alive(pid) and proc.has_in_environment(pid, mark)]


@asynccontextmanager
async def working(server: FakeServer, home: Path, *options: str, **environ: str) -> AsyncIterator[Hand]:
    """A worker that is registered; killed at the end, if it is still there."""
    hand = Hand(server, home, *options, **environ)
    try:
        before = len(server.workers)
        await until(lambda: len(server.workers) > before or hand.keeper.poll() is not None)
        assert hand.keeper.poll() is None, hand.said()
        yield hand
    finally:
        await asyncio.to_thread(hand.kill)
