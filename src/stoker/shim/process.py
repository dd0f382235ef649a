"""The process runtime: what each hook of a task's start does and undoes when there is no container.

Every method may be repeated after a crash. The runner is the only part of a task that lives outside this process, so
the one question that matters is whether there is one already; `runner.await_birth` answers it.
"""

import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

from stoker.core.errors import Broken, Unavailable
from stoker.core.reason import JobReason
from stoker.core.shim_task import (
    DevicesTaken,
    DirectoriesMade,
    Exited,
    Hook,
    HookDone,
    ImageReady,
    NetworkReady,
    Started,
    TerminateAsked,
    VolumesMounted,
)
from stoker.runner.cgroup import members
from stoker.runner.identity import Identity
from stoker.runner.listening import listen
from stoker.runner.place import Place, write_file
from stoker.shim import cgroup, runner
from stoker.shim.device import Devices
from stoker.shim.disk import explained
from stoker.shim.home import Home
from stoker.shim.limits import KILL_MARGIN_S, KILLED_S, RUNNER_LEAVES_S
from stoker.shim.point import Points
from stoker.shim.runner import Runner
from stoker.shim.shelf import Record, Shelf
from stoker.shim.volume import Owner, Volumes
from stoker.shim.written import InThread, Written
from stoker.wire.runner import Assignment, JobOrder, Stop

_DEAD = "The agent that ran the commands died before they had ended."


class Forking(Protocol):
    def ensure(self) -> None: ...

    def fork(self, directory: Path, listener: socket.socket) -> int: ...


Noted = Callable[[Callable[[], int]], Awaitable[int]]


@dataclass(frozen=True)
class Host:
    """What all processes of a shim share."""

    home: Home
    shelf: Shelf
    fork_server: Forking
    cgroups: cgroup.Cgroups
    devices: Devices
    volumes: Volumes
    points: Points
    notify: Path
    kill_leftovers: Callable[[UUID, Sequence[str]], int]
    in_thread: InThread


def end_unknown(host: Host, id: UUID) -> None:
    """Ends what may run of a task whose record is lost: the server hears that it is not here, and may run it elsewhere.

    Blocks. Its directory stays for people.
    """
    identity = Identity.read(Place(host.home.directory(id)).identity)
    if identity is not None and identity.alive():
        with suppress(ProcessLookupError):
            os.kill(identity.pid, signal.SIGKILL)
    directories = host.cgroups.directories(id)
    host.kill_leftovers(id, directories)
    with suppress(OSError):
        cgroup.remove(directories)


class Process(Written):
    """One task's process: its runner, and what that wrote down."""

    def __init__(self, record: Record, host: Host, news: Callable[[], None], job: JobOrder | None = None) -> None:
        self._job = job
        self._id, self._order, self._socket = record.id, record.order, record.socket
        self._uid, self._gid, self._cgroups = record.uid, record.gid, record.cgroups
        self._host, self._news = host, news
        super().__init__(Place(host.home.directory(record.id)), host.in_thread)
        self._runner: Runner | None = None
        self._killed = False

    # What it looks like from outside.

    @property
    def gone(self) -> bool:
        """There is no runner (any more), as far as we know."""
        return self._runner is None or self._runner.gone.is_set()

    @property
    def left(self) -> bool:
        """There was one, and it is gone: nothing has to be waited for."""
        return self._runner is not None and self._runner.gone.is_set()

    async def find(self) -> Started | None:
        """After a restart: what had started of it, if anything had."""
        return Started() if self.attach() else None

    def attach(self) -> bool:
        """After a restart: whether a runner was ever there. If it lives, we watch it again."""
        self.look()
        if self._runner is None:
            self._runner = runner.find(self._place.identity, self._exit)
        return self.result is not None or self._place.identity.exists() or self._place.order.exists()

    def detach(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def _exit(self) -> None:
        self._stirred.set()
        self._news()

    async def ended(self) -> Exited | TerminateAsked:
        """What the end of the runner means."""
        self.look()
        self.look_at_log()
        if self.result is None:
            return TerminateAsked(0.0, JobReason.EXECUTOR_ERROR, _DEAD)
        return await self.exited(self.result)

    # Hooks.

    async def perform(self, hook: Hook, gpu_ids: Sequence[str], noted: Noted) -> HookDone:
        """`noted` does work in a thread as soon as this hook is noted on disk."""
        match hook:
            case Hook.DIRECTORIES:
                # Those on disk were made when the task was accepted.
                self._host.cgroups.make(self._cgroups, self._order.cpu, self._order.memory_mb)
                return DirectoriesMade()
            case Hook.VOLUMES:
                if self._order.mounts:
                    # What is mounted outlives us: whoever finds the record has to know that there may be something.
                    await noted(lambda: 0)
                    await self._host.in_thread(self._mount)
                return VolumesMounted()
            case Hook.DEVICES:
                return DevicesTaken(self._host.devices.take(self._id, self._order.gpu_indices))
            case Hook.IMAGE:
                return ImageReady()
            case Hook.NETWORK:
                return NetworkReady()
            case Hook.CONTAINER:
                await self._start(gpu_ids, noted)
                return Started(str(self._runner.pid) if self._runner else "")

    async def undo(self, hook: Hook, grace_s: float, fence: int) -> None:
        match hook:
            case Hook.CONTAINER:
                await self._stop(grace_s, fence)
            case Hook.DEVICES:
                self._host.devices.release(self._id)
            case Hook.DIRECTORIES:
                await self._host.in_thread(self._clear_directories)
            case Hook.VOLUMES:
                if self._order.mounts:
                    await self._host.in_thread(self._unmount)
            case Hook.IMAGE | Hook.NETWORK:
                pass

    def _mount(self) -> None:
        volumes, owner = self._host.volumes, Owner(self._uid, self._gid)
        with explained("the volumes of a task"):
            volumes.take(self._id, self._order.mounts, owner)
            self._host.points.make(self._id, volumes.mounted(self._order), self._place.work, owner)

    def _unmount(self) -> None:
        self._host.points.drop(self._id)
        self._host.volumes.release(self._id, self._order.mounts, self._order.detach_s)

    def _clear_directories(self) -> None:
        self._host.shelf.clear_work(self._id)
        try:
            cgroup.remove(self._cgroups)
        except OSError:
            # Something was born there while the others were killed.
            self._host.kill_leftovers(self._id, self._cgroups)
            cgroup.remove(self._cgroups)

    async def _start(self, gpu_ids: Sequence[str], noted: Noted) -> None:
        """Forks a runner, unless there is or was one: the commands of a task never run twice."""
        for last in (False, True):
            if self.attach():
                return
            self._runner = await runner.await_birth(self._place.identity, self._socket, self._exit)
            if self.attach():
                return
            try:
                pid = await noted(partial(self._fork, gpu_ids))
            except Unavailable as error:
                if error.code != "fork_server":
                    raise
                # It does not answer. Whether it forked before it died is found out in the next round.
                if last:
                    raise Broken(f"No runner could be started: {error.sentence}", code="fork_server") from error
                await self._host.in_thread(self._host.fork_server.ensure)
            else:
                self._runner = runner.hold(pid, self._exit)
                self._job = None
                return

    def _fork(self, gpu_ids: Sequence[str]) -> int:
        assignment = Assignment(
            id=self._id,
            project_id=self._order.project_id,
            token=self._order.token,
            socket=self._socket,
            notify=str(self._host.notify),
            uid=self._uid,
            gid=self._gid,
            cgroups=self._cgroups,
            gpu_ids=tuple(gpu_ids),
            gpu_indices=self._order.gpu_indices,
            binds=self._host.points.binds(self._host.volumes.mounted(self._order), self._place.work),
            volumes=str(self._host.volumes.root),
            stop_after_s=self._order.stop_after_s,
            job=self._job,
        )
        with explained(f"task {self._id}"):
            # Not synced: a machine that crashes takes the runner with it.
            write_file(self._place.assignment, assignment.model_dump_json().encode(), durable=False)
            # Before there is a runner, so that the server can connect at once.
            with listen(Path(self._socket)) as listener:
                self._host.home.admit(Path(self._socket))
                return self._host.fork_server.fork(self._place.directory, listener)

    async def _stop(self, grace_s: float, fence: int) -> None:
        if self._runner is None:
            self._runner = await runner.await_birth(self._place.identity, self._socket, self._exit)
        if self._runner is not None:
            await self._end(self._runner, grace_s, fence)
        self.look()
        # A runner that wrote its result has left nothing; in its group one can see that for little.
        if self.result is None or self._killed or members(self._cgroups):
            await self._host.in_thread(self._host.kill_leftovers, self._id, self._cgroups)
        with suppress(FileNotFoundError):
            os.unlink(self._socket)

    async def _end(self, living: Runner, grace_s: float, fence: int) -> None:
        self.look()
        if not living.gone.is_set() and self.result is None:
            order = Stop(fence=fence, grace_s=grace_s)
            if not await runner.ask_to_stop(self._socket, self._order.token, order):
                # It does not listen, or has heard later orders than ours: a signal has no fence.
                living.signal(signal.SIGTERM)
            await self._result_within(grace_s + KILL_MARGIN_S)
        living.signal(signal.SIGTERM)
        if await living.leaves(RUNNER_LEAVES_S):
            return
        self._killed = True
        living.signal(signal.SIGKILL)
        if not await living.leaves(KILLED_S):
            raise Broken(f"Process {living.pid} was killed and does not go away.", code="unkillable")
