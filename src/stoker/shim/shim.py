"""The shim: all tasks of a host, and every order that may be given to it. Knows nothing of HTTP."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from stoker.core.errors import Conflict, NotFound, StokerError, Unavailable, UserError
from stoker.core.machine import Refused
from stoker.core.reason import JobReason
from stoker.core.shim_task import Runtime, S, TerminateAsked, submit
from stoker.shim import log as logs
from stoker.shim import process
from stoker.shim.container import wanted
from stoker.shim.fence import Removed, check
from stoker.shim.limits import ANSWER_STARTED_S, IMAGES_GONE_S, LOOK_S, MOST_TASKS
from stoker.shim.shelf import Found, Record
from stoker.shim.task import Bench, Task
from stoker.shim.tenant import Tenant, Tenants
from stoker.shim.volume import Owner
from stoker.shim.word import Word
from stoker.wire.shim import Changes, TaskInfo, TaskOrder, Terminate, VolumeInfo, VolumeOrder

log = structlog.get_logger()


class Piece(NamedTuple):
    """Of a log: whole frames, where they end, how far the log goes now, and whether it will not grow any more."""

    frames: bytes
    next_offset: int
    end: int
    complete: bool


class Shim:
    def __init__(self, bench: Bench, tenants: Tenants, removed: Removed) -> None:
        self._bench, self._host = bench, bench.host
        self._tenants, self._removed = tenants, removed
        self._tasks: dict[UUID, Task] = {}
        self._unreadable: dict[UUID, str] = {}
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
        self._tenancy = asyncio.Lock()
        self._leaving = False
        self._word = Word()
        self._health = ""
        self.left = asyncio.Event()
        """Somebody asked us to go, and nothing is left to do."""

    # The life of the shim.

    async def recover(self) -> None:
        """Finds everything again. No order is taken before this is over."""
        found: Found = await self._host.in_thread(self._host.shelf.find)
        self._unreadable = found.unreadable
        for id, error in found.unreadable.items():
            log.error("record cannot be read", task=str(id), error=error)
            await self._host.in_thread(process.end_unknown, self._host, id)
        for record in found.records:
            if await self._was_removed(record):
                continue
            task = self._tasks[record.id] = Task(record, self._bench)
            await task.recover()
        await self._host.in_thread(self._recover_volumes, list(self._tasks))
        for task in self._tasks.values():
            task.run()
        log.info("tasks found", tasks=len(self._tasks), live=len(self.live))

    def _recover_volumes(self, known: Sequence[UUID]) -> None:
        """Of tasks whose records were lost nothing is left mounted."""
        self._host.volumes.recover(known)
        for task in set(self._host.points.tasks()) - set(known):
            self._host.points.drop(task)

    async def _was_removed(self, record: Record) -> bool:
        """Its removal was noted and not finished: it is finished now."""
        noted = self._removed.fence(record.id)
        if noted is None or noted < record.fence or record.task.state is not S.TERMINATED:
            return False
        try:
            await self._host.in_thread(self._host.shelf.delete, record.id)
        except OSError as error:
            log.warning("task not deleted", task=str(record.id), error=str(error))
            return False
        return True

    async def stop(self) -> None:
        """Leaves every runner alone."""
        self._bench.changes.close()
        await asyncio.gather(*(task.stop() for task in self._tasks.values()))

    async def watch(self) -> None:
        """Looks at what no runner told us, now and then."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._word.pass_on(self.live)
            for number, task in enumerate(self.live):
                task.look(at_log=True)
                if number % 100 == 99:
                    await asyncio.sleep(0)

    def examined(self, health: str) -> None:
        """Whoever waits for news hears at once that the host is otherwise than it was."""
        if health != self._health:
            log.warning("the host is otherwise than it was", was=self._health or "well", now=health or "well")
            self._health = health
            self._bench.changes.bump()

    @property
    def docker(self) -> str:
        """The version of the engine, as far as containers may be started here."""
        return self._bench.containers.watch.version if self._host.home.is_root else ""

    def holds(self, id: UUID) -> bool:
        """Whether a task of ours may have a container."""
        task = self._tasks.get(id)
        return task is not None and task.live

    def images(self) -> list[str]:
        """That tasks want which have not ended."""
        return [one.record.order.container.image for one in self.live if one.record.order.container is not None]

    def heard(self) -> None:
        """The server is there."""
        self._word.heard()

    def notified(self, id: UUID) -> None:
        """A runner says that something changed."""
        if (task := self._tasks.get(id)) is not None:
            task.look(at_log=False)

    async def make_volume(self, order: VolumeOrder) -> VolumeInfo:
        """Whose it is: the project that asks for it."""
        removed = self._removed.fence(order.id)
        if removed is not None:
            check(order.id, order.fence, removed + 1)
        tenant = self._tenants.known(order.project_id) or await self._admit(order.project_id)
        owner = Owner(tenant.uid, tenant.gid)
        info: VolumeInfo = await self._host.in_thread(
            self._host.volumes.make, order.id, order.name, order.size_mb, owner
        )
        log.info("volume made", volume=str(order.id), name=order.name)
        return info

    async def remove_volume(self, id: UUID, fence: int) -> None:
        """Noted first, so that an order to make it that comes late is refused."""
        await self._note_gone(id, fence)
        await self._host.in_thread(self._host.volumes.remove, id)
        log.info("volume removed", volume=str(id))

    async def volumes(self) -> tuple[VolumeInfo, ...]:
        found: list[VolumeInfo] = await self._host.in_thread(self._host.volumes.infos)
        return tuple(found)

    async def leave(self, *, force: bool, for_good: bool = False) -> int:
        """Ends the shim when no task is live, or after all of them were terminated."""
        live = self.live
        if live and not force:
            raise Conflict(
                f"{len(live)} tasks are running here.",
                hint="Stop them first, or use force, which terminates them.",
                code="tasks_running",
            )
        self._leaving = True
        await asyncio.gather(*map(_send_away, live))
        if for_good:
            # What cannot be removed in time, or while the engine is away, is left to its owner.
            with suppress(TimeoutError, StokerError):
                async with asyncio.timeout(IMAGES_GONE_S):
                    await self._bench.containers.images.forget()
        self.left.set()
        return len(live)

    # Orders.

    async def submit(self, order: TaskOrder) -> tuple[TaskInfo, bool]:
        """The task, and whether it is new. Returns when it has started, unless that takes long."""
        async with self._turn(order.id):
            task = self._tasks.get(order.id)
            fresh = task is None
            if task is None:
                task = self._tasks[order.id] = await self._accept(order)
                task.run()
            else:
                check(order.id, order.fence, task.record.fence)
                _check_same(order, task.record.order)
                await task.submit_again(order.fence)
        handed_on = fresh and order.job is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_STARTED_S):
                await task.started.wait()
                if handed_on:
                    await task.has_job.wait()
        info = task.info
        return (info.model_copy(update={"job_taken": True}) if handed_on and task.job_taken else info), fresh

    async def terminate(self, id: UUID, order: Terminate, wait_s: float) -> TaskInfo:
        async with self._turn(id):
            task = self._tasks.get(id)
            if task is None:
                await self._note_gone(id, order.fence)
                raise _unknown(id)
            check(id, order.fence, task.record.fence)
            await task.terminate(TerminateAsked(order.grace_s, order.reason, order.message), order.fence)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await task.terminated.wait()
        return task.info

    async def remove(self, id: UUID, fence: int) -> None:
        """Forgets the task; its fence is kept, so that a late order to start it is refused."""
        async with self._turn(id):
            task = self._tasks.get(id)
            if task is None:
                await self._note_gone(id, fence)
                return
            check(id, fence, task.record.fence)
            self._check_removable(task)
            try:
                await self._host.in_thread(self._forget, id, fence)
            except OSError as error:
                raise Unavailable(f"Task {id} cannot be deleted: {error}.", code="not_deleted") from error
            del self._tasks[id]
            log.info("task removed", task=str(id))

    def _forget(self, id: UUID, fence: int) -> None:
        """The large part first, since a full disk may not take the note before. What a crash leaves behind the note
        is deleted by the next shim."""
        self._host.shelf.empty(id)
        self._removed.add(id, fence)
        self._host.shelf.delete(id)

    async def _accept(self, order: TaskOrder) -> Task:
        self._check_acceptable(order)
        tenant = self._tenants.known(order.project_id) or await self._admit(order.project_id)
        record = Record(
            task=submit(order.id, order.runtime, self._bench.now()),
            # What is given to the runner lies with the runner.
            order=order.model_copy(update={"job": None}),
            fence=order.fence,
            **self._given(order, tenant),
        )
        await self._host.in_thread(self._host.shelf.accept, record)
        log.info("task accepted", task=str(order.id), name=order.name, project=str(order.project_id))
        return Task(record, self._bench, order.job)

    def _given(self, order: TaskOrder, tenant: Tenant) -> dict[str, Any]:
        """What a container has of its own is no matter of the host's users and groups."""
        home = self._host.home
        if order.runtime is Runtime.DOCKER:
            return {"socket": str(home.box_socket(order.id))}
        cgroups = self._host.cgroups.directories(order.id)
        return {"socket": str(home.runner_socket(order.id)), "uid": tenant.uid, "gid": tenant.gid, "cgroups": cgroups}

    async def _admit(self, project_id: UUID) -> Tenant:
        async with self._tenancy:
            tenant: Tenant = await self._host.in_thread(self._tenants.admit, project_id)
            return tenant

    def _check_acceptable(self, order: TaskOrder) -> None:
        removed = self._removed.fence(order.id)
        if removed is not None:
            # Also an equal one: whoever removed the task knew of the order that started it.
            check(order.id, order.fence, removed + 1)
        if order.runtime is Runtime.DOCKER:
            self._check_container(order)
        if len(set(order.gpu_indices)) != len(order.gpu_indices):
            raise UserError("A GPU is named twice.", code="gpu_twice")
        if self._leaving:
            raise Unavailable("This host's agent is leaving.", code="leaving")
        if order.id in self._unreadable:
            raise Unavailable(f"The record of task {order.id} cannot be read.", code="unreadable")
        if len(self._tasks) >= MOST_TASKS:
            raise Unavailable(f"There are {MOST_TASKS} tasks here.", hint="Remove those that ended.", code="full")

    def _check_container(self, order: TaskOrder) -> None:
        wanted(order)
        if not self._host.home.is_root:
            raise UserError("This host's agent runs without root and starts no containers.", code="no_runtime")
        if not self._bench.containers.watch.version:
            raise Unavailable("This host's container engine does not answer.", code="engine_away")

    async def _note_gone(self, id: UUID, fence: int) -> None:
        seen = self._removed.fence(id)
        if seen is None or fence > seen:
            await self._host.in_thread(self._removed.add, id, fence)
        else:
            check(id, fence, seen)

    def _check_removable(self, task: Task) -> None:
        try:
            task.check_removable()
        except Refused:
            removable = False
        else:
            removable = not task.live
        if not removable:
            raise Conflict(
                f"Task {task.record.id} is {task.info.state}.", hint="Terminate it first.", code="not_terminated"
            )

    def _turn(self, id: UUID) -> asyncio.Lock:
        # Held by the dictionary only as long as somebody waits for it or has it.
        turn = self._turns.get(id)
        if turn is None:
            turn = self._turns[id] = asyncio.Lock()
        return turn

    # Questions.

    @property
    def live(self) -> list[Task]:
        return [task for task in self._tasks.values() if task.live]

    @property
    def boot(self) -> str:
        return self._bench.changes.boot

    def tasks(self) -> Sequence[TaskInfo]:
        return [task.info for task in self._tasks.values()]

    def task(self, id: UUID) -> TaskInfo:
        return self._get(id).info

    async def changes(self, cursor: str, wait_s: float) -> Changes:
        changes = self._bench.changes
        number = changes.number(cursor)
        if number is None:
            return Changes(
                cursor=changes.cursor, complete=True, tasks=tuple(self.tasks()), health=self._health, docker=self.docker
            )
        # Whoever waits here is silent meanwhile, and somebody may count that.
        patience_s = self._word.shortest_s(self.live)
        await changes.beyond(number, wait_s if patience_s is None else min(wait_s, patience_s / 3))
        changed = tuple(task.info for task in self._tasks.values() if task.changed > number)
        return Changes(cursor=changes.cursor, complete=False, tasks=changed, health=self._health, docker=self.docker)

    async def log(self, id: UUID, offset: int, limit: int, *, own: bool) -> Piece:
        task = self._get(id)
        # Before the reading: what was written in between is not taken for the end.
        gone = task.runner_gone
        end = task.result.log_end if task.result is not None and not own else None
        directory = task.directory / ("own" if own else "log")
        frames: bytes = await self._host.in_thread(logs.read, directory, offset, limit)
        next_offset = offset + len(frames)
        complete = (end is not None and next_offset >= end) or (gone and not frames)
        known_end = 0 if own else end or task.info.log_end
        return Piece(frames, next_offset, max(known_end, next_offset), complete)

    def _get(self, id: UUID) -> Task:
        task = self._tasks.get(id)
        if task is None:
            raise _unknown(id)
        return task


async def _send_away(task: Task) -> None:
    order = TerminateAsked(0.0, JobReason.TERMINATED_BY_SERVER, "The agent of the host was sent away.")
    # What cannot be noted on a full disk is done all the same.
    with suppress(Unavailable):
        await task.terminate(order, task.record.fence)
    await task.terminated.wait()


def _unknown(id: UUID) -> NotFound:
    return NotFound(f"There is no task {id} here.", code="no_task")


def _check_same(order: TaskOrder, known: TaskOrder) -> None:
    """Who it is for, and what nobody else may have meanwhile. The rest may be told otherwise by another version."""
    if (order.project_id, order.token, order.gpu_indices) != (known.project_id, known.token, known.gpu_indices):
        raise Conflict(f"Task {order.id} is here already, with another project, token or GPUs.", code="other_order")
