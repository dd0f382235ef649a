"""Shims and runners as the engine sees them, over a network that loses, doubles and delays."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from stoker.core import shim_task as shim
from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.core.ids import InstanceId, JobId
from stoker.core.volume_facts import Kind
from stoker.store import order as order_store
from stoker.store import volume as volume_store
from stoker.store.database import Database
from stoker.store.log import LogGap
from stoker.store.outbox import Errand
from stoker.store.run import policy_of
from stoker.wire.frame import Piece
from stoker.wire.runner import Deadline, JobOrder, Stop
from stoker.wire.shim import Changes, HostInfo, Mount, Source, TaskInfo, TaskOrder, Terminate, VolumeInfo, VolumeOrder
from tests.sim.host import Host, Order, Task

if TYPE_CHECKING:
    from tests.sim.world import World

LONGEST_START_S = 2.0
"""So long the answer to an order waits until its job was taken."""

T = TypeVar("T")

ORDER = """
SELECT job.instance_id, job.replica, job.node, run.policy
FROM job JOIN run ON run.id = job.run_id WHERE job.id = $1
"""


class Net:
    """The way to every host, as one replica has it."""

    def __init__(self, world: "World", thawed: Callable[[], Awaitable[None]]) -> None:
        self.world, self.thawed = world, thawed

    async def shim(self, instance_id: InstanceId) -> "SimShim":
        return SimShim(self, self.host(instance_id))

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> "SimRunner":
        return SimRunner(self, instance_id, job_id)

    def host(self, id: UUID) -> Host:
        host = self.world.hosts.get(id)
        if host is None or not host.alive:
            raise Unavailable("there is no such machine")
        return host

    async def call(self, host: Host, act: Callable[[], T]) -> T:
        """One request to an agent; every part of the way may fail, and the act may happen twice."""
        await self.go(host)
        answer = act()
        if self.world.chance("message doubled", 0.03):
            answer = act()
        await self.come_back(host)
        return answer

    async def go(self, host: Host) -> None:
        world = self.world
        await world.pause(0.01, 1.0)
        if world.chance("message delayed", 0.02):
            await world.pause(5.0, 60.0)
        await self.thawed()
        if world.chance("message lost", 0.03) or not host.reachable:
            raise Unavailable("the agent does not answer")
        host.touch()

    async def come_back(self, host: Host) -> None:
        world = self.world
        await world.pause(0.01, 1.0)
        if world.chance("answer delayed", 0.03):
            await world.pause(5.0, 60.0)
        if world.chance("answer lost", 0.03) or not host.reachable:
            raise Unavailable("the agent's answer was lost")


class SimShim:
    def __init__(self, net: Net, host: Host) -> None:
        self.net, self.own = net, host

    async def host(self) -> HostInfo:
        raise NotImplementedError

    async def submit(self, order: TaskOrder) -> TaskInfo:
        known, along = self.net.world.orders[order.id], order.job is not None
        handed_on = await self.net.call(self.own, lambda: self._submit(known, order.fence, along))
        deadline = self.net.world.now() + LONGEST_START_S
        while handed_on and not (taken := self._begun(order.id)) and self.net.world.now() < deadline:
            await self.net.world.pause(0.2, 0.5)
        return self._info(order.id).model_copy(update={"job_taken": handed_on and taken})

    def _submit(self, order: Order, fence: int, along: bool) -> bool:
        """Whether its runner gets this very job."""
        self._fenced(order.job_id, fence)
        fresh = order.job_id not in self.own.tasks
        self.own.submit(order, along=along)
        return fresh and along

    def _begun(self, id: UUID) -> bool:
        if not self.own.reachable or id not in self.own.tasks:
            raise Unavailable("the agent's answer was lost")
        return self.own.tasks[id].started

    async def task(self, id: UUID) -> TaskInfo:
        return await self.net.call(self.own, lambda: self._info(id))

    async def terminate(self, id: UUID, order: Terminate, wait_s: float) -> TaskInfo:
        def act() -> Task:
            self._fenced(id, order.fence)
            task = self._find(id)
            self.own.terminate(task, order.grace_s)
            return task

        task = await self.net.call(self.own, act)
        deadline = self.net.world.now() + wait_s
        while task.record.state is not shim.S.TERMINATED and self.net.world.now() < deadline:
            await self.net.world.pause(0.2, 0.5)
            if not self.own.reachable:
                raise Unavailable("the agent does not answer")
        return self._info(id)

    async def remove(self, id: UUID, fence: int) -> None:
        def act() -> None:
            self._fenced(id, fence)
            if not self.own.remove(id):
                raise Conflict("the task is not terminated", code="not_terminated")

        await self.net.call(self.own, act)

    async def make_volume(self, order: VolumeOrder) -> VolumeInfo:
        return await self.net.call(self.own, lambda: VolumeInfo(id=order.id, made=True))

    async def remove_volume(self, id: UUID, fence: int) -> None:
        await self.net.call(self.own, lambda: None)

    async def changes(self, cursor: str, wait_s: float) -> Changes:
        await self.net.go(self.own)
        seen = int(cursor or 0)
        if cursor:
            await self.own.news_after(seen, wait_s)
        if not self.own.reachable:
            raise Unavailable("the agent does not answer")
        tasks = tuple(self._info(task.order.job_id) for task in self.own.tasks.values() if task.seq > seen)
        answer = Changes(cursor=str(self.own.seq), complete=not cursor, tasks=tasks, health=self.own.health)
        await self.net.come_back(self.own)
        return answer

    async def log(self, id: UUID, offset: int, *, own: bool) -> Piece:
        return await self.net.call(self.own, lambda: Piece(b"", offset, True) if own else self._find(id).piece(offset))

    def _fenced(self, id: UUID, fence: int) -> None:
        if self.own.fenced(id, fence):
            raise Conflict("a later order was here already", code="fenced")

    def _find(self, id: UUID) -> Task:
        task = self.own.tasks.get(id)
        if task is None:
            raise NotFound(f"there is no task {id}")
        return task

    def _info(self, id: UUID) -> TaskInfo:
        task = self._find(id)
        record = task.record
        return TaskInfo(
            id=id, fence=self.own.fences[id], state=record.state, ending=record.ending, reason=record.reason,
            message=record.message, socket="simulated", result=task.result, log_end=len(task.log),
            ended_ago_s=self.own.clock() - task.result.ended_at if task.result else 0.0,
        )  # fmt: skip


class SimRunner:
    def __init__(self, net: Net, instance_id: InstanceId, job_id: JobId) -> None:
        self.net, self.instance_id, self.job_id = net, instance_id, job_id

    async def run(self, order: JobOrder) -> None:
        host = self.net.host(self.instance_id)
        if not await self.net.call(host, lambda: host.run(self.job_id, order.fence)):
            raise Conflict("a later order was here already", code="fenced")

    async def stop(self, order: Stop) -> None:
        host = self.net.host(self.instance_id)
        await self.net.call(host, lambda: host.stop(self.job_id, order.fence))

    async def set_deadline(self, order: Deadline) -> None:
        host = self.net.host(self.instance_id)
        await self.net.call(host, lambda: host.warn(self.job_id, order.fence, order.in_s))

    async def pull(self, offset: int, wait_s: float) -> Piece:
        host = self.net.host(self.instance_id)

        def act() -> Piece:
            task = host.tasks.get(self.job_id)
            if task is None or task.record.state is not shim.S.RUNNING:
                raise Unavailable("the runner is gone")
            return task.piece(offset)

        return await self.net.call(host, act)


class SimOrders:
    """Reads what the real one reads, but of runs that were never written as YAML."""

    def __init__(self, world: "World", database: Database) -> None:
        self.world, self.database = world, database

    async def place(self, job_id: JobId) -> InstanceId:
        async with self.database.connection() as connection:
            return await order_store.place(connection, job_id)

    async def task(self, errand: Errand, job: JobOrder | None) -> TaskOrder:
        order = await self.order(errand)
        self.world.orders[errand.target] = order
        return TaskOrder(
            id=errand.target, fence=errand.fence, name="run", project_id=errand.family, token="x" * 16,
            stop_after_s=order.stop_after_s, job=job, mounts=await self._mounts(errand),
        )  # fmt: skip

    async def _mounts(self, errand: Errand) -> tuple[Mount, ...]:
        async with self.database.connection() as connection:
            held = await order_store.volumes(connection, JobId(errand.target))
            volumes = await volume_store.some(connection, held.volumes if held else ())
        return tuple(
            Mount(source=Source.PATH, id=one.id, name=one.name, inside=f"/{one.name}")
            for one in volumes.values()
            if one.kind is Kind.DUMMY
        )

    async def job(self, errand: Errand) -> JobOrder:
        return JobOrder(
            fence=errand.fence, job_id=errand.target, run_id=errand.family, run_name="run", project="main",
            submission=errand.attempt, commands=("true",), log_quota_bytes=1,
        )  # fmt: skip

    async def order(self, errand: Errand) -> Order:
        async with self.database.connection() as connection:
            row = await connection.fetchrow(ORDER, errand.target)
        assert row is not None
        policy = policy_of(row["policy"])
        stop_after_s = None if policy.disconnect is None else policy.disconnect.stop_after_s
        key = (errand.family, row["replica"], row["node"])
        docker = errand.target.int % 2 == 0
        return Order(errand.target, errand.family, errand.attempt, key, errand.fence, docker, stop_after_s)


class SimLogs:
    """The log store that the replicas share."""

    def __init__(self) -> None:
        self.kept: dict[UUID, bytes] = {}

    async def end(self, job_id: UUID) -> int:
        return len(self.kept.get(job_id, b""))

    async def append(self, job_id: UUID, offset: int, frames: bytes, *, durable: bool = True) -> int:
        await asyncio.sleep(0)
        have = self.kept.get(job_id, b"")
        if offset > len(have):
            raise LogGap(job_id, offset, len(have))
        self.kept[job_id] = have + frames[len(have) - offset :]
        return len(self.kept[job_id])

    def wrote(self, job_id: JobId) -> None:
        """Nobody reads them here."""
