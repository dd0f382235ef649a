"""Nothing of a job outlives it: waiting for its processes, also those that fled, and killing what is left.

A runner is the *subreaper* of what it starts: whatever loses its parent becomes a child of the runner, however it
forked and whatever session it made. So when the kernel says that the runner has no child, nothing of the job is left
that descends from it. When the runner itself was killed that chain is broken, and what is left is found by its control
group, or by `STOKER_JOB_ID` in the environment it was started with.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from uuid import UUID

from stoker.runner import cgroup, proc
from stoker.runner.limits import LEFTOVERS_S

JOB_VARIABLE = "STOKER_JOB_ID"


def kill_leftovers(job_id: UUID, cgroups: Sequence[str] = ()) -> int:
    """Kills what is left of a job, whoever its parent is now, and says how many processes that were.

    Blocks until they are gone, or for some seconds where the kernel does not let go of them.
    """
    return _kill_all_of(lambda: _left(job_id, cgroups))


def kill_members(cgroups: Sequence[str]) -> int:
    """The same for what is in its control groups: all that can be left while its runner lives."""
    return _kill_all_of(lambda: cgroup.members(cgroups) - {os.getpid()})


def _kill_all_of(find: Callable[[], set[int]]) -> int:
    killed: set[int] = set()
    deadline = time.monotonic() + LEFTOVERS_S
    while left := find():
        kill_each(left)
        killed |= left
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return len(killed)


def _left(job_id: UUID, cgroups: Sequence[str]) -> set[int]:
    variable = f"{JOB_VARIABLE}={job_id}".encode()
    marked = {pid for pid in proc.pids() if proc.has_in_environment(pid, variable)}
    # A child may have cleaned its environment, and dies with its parent.
    found = marked | proc.descendants(marked) | cgroup.members(cgroups)
    return {pid for pid in found if proc.alive(pid)} - {os.getpid()}


def kill_each(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class Reaper:
    """Waits for every child of this process. Nobody else in it may wait for one."""

    def __init__(self) -> None:
        self._awaited: dict[int, asyncio.Future[int]] = {}
        self._reaped = asyncio.Event()

    def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def expect(self, pid: int) -> asyncio.Future[int]:
        """The wait status of a child that was just started: called before the loop can hear of its end."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[pid] = future
        return future

    def reap(self) -> bool:
        """Takes leave of every child that has ended; says whether there are no others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                alone = True
                break
            if pid == 0:
                alone = False
                break
            future = self._awaited.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(status)
        reaped, self._reaped = self._reaped, asyncio.Event()
        reaped.set()
        return alone

    async def next(self, wait_s: float) -> None:
        """Returns when another child has ended, or after `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._reaped.wait()

    async def kill_all(self, wait_s: float) -> set[int]:
        """Kills everything that descends from this process; returns what would not die in time."""
        deadline = time.monotonic() + wait_s
        while not self.reap():
            left = {pid for pid in proc.descendants([os.getpid()]) if proc.alive(pid)}
            if time.monotonic() > deadline:
                return left
            kill_each(left)
            # Not only until the next one ends: a grandchild becomes ours without a signal.
            await self.next(0.005)
        return set()
