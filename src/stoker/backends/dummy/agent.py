"""Shims and runners of simulated machines, as the engine asks them; the machine is found anew at each call."""

from collections.abc import Callable
from uuid import UUID

from stoker.backends.dummy.simulated import Simulated
from stoker.core.ids import InstanceId, JobId
from stoker.core.resources import Capacity
from stoker.wire.frame import Piece
from stoker.wire.runner import Deadline, JobOrder, Stop
from stoker.wire.shim import Changes, HostGpu, HostInfo, TaskInfo, TaskOrder, Terminate, VolumeInfo, VolumeOrder

SCHEME = "dummy"

Find = Callable[[InstanceId], tuple[Simulated, Capacity]]
"""A machine that answers; else raises `Unavailable`."""


class SimulatedShim:
    def __init__(self, id: InstanceId, find: Find) -> None:
        self._id, self._find = id, find

    def _machine(self) -> Simulated:
        machine, _ = self._find(self._id)
        return machine

    async def host(self) -> HostInfo:
        _, capacity = self._find(self._id)
        gpus = (
            HostGpu(index=one.index, id=f"{self._id}-{one.index}", name=one.name, memory_mb=one.memory_mb, vendor="")
            for one in capacity.gpus
        )
        return HostInfo(
            hostname=f"dummy-{self._id.hex[-6:]}",
            cpus=capacity.cpu,
            memory_mb=capacity.memory_mb,
            disk_mb=capacity.disk_mb,
            gpus=tuple(gpus),
            root=True,
            cgroups=False,
        )

    async def submit(self, order: TaskOrder) -> TaskInfo:
        return self._machine().submit(order)

    async def task(self, id: UUID) -> TaskInfo:
        machine = self._machine()
        return machine.info(machine.task(id))

    async def terminate(self, id: UUID, order: Terminate, wait_s: float) -> TaskInfo:
        return self._machine().terminate(id, order)

    async def remove(self, id: UUID, fence: int) -> None:
        self._machine().remove(id, fence)

    async def make_volume(self, order: VolumeOrder) -> VolumeInfo:
        """Nothing that runs there would find it."""
        self._machine()
        return VolumeInfo(id=order.id, made=True)

    async def remove_volume(self, id: UUID, fence: int) -> None:
        self._machine()

    async def changes(self, cursor: str, wait_s: float) -> Changes:
        return await self._machine().changes(cursor, wait_s)

    async def log(self, id: UUID, offset: int, *, own: bool) -> Piece:
        return Piece(b"", 0, True) if own else self._machine().log(id, offset)


class SimulatedRunner:
    def __init__(self, id: InstanceId, job_id: JobId, find: Find) -> None:
        self._id, self._job_id, self._find = id, job_id, find

    def _machine(self) -> Simulated:
        machine, _ = self._find(self._id)
        return machine

    async def run(self, order: JobOrder) -> None:
        self._machine().run(order)

    async def stop(self, order: Stop) -> None:
        self._machine().stop(self._job_id, order)

    async def set_deadline(self, order: Deadline) -> None:
        """Nobody is there who could hear of it: what a simulated machine runs is asked to stop when the time comes."""

    async def pull(self, offset: int, wait_s: float) -> Piece:
        return await self._machine().pull(self._job_id, offset, wait_s)


class SimulatedAgents:
    """Addresses are `dummy:ID`, and the id is the instance's own."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def shim(self, instance_id: InstanceId, place: str, token: str) -> SimulatedShim:
        return SimulatedShim(instance_id, self._find)

    def runner(self, instance_id: InstanceId, job_id: JobId, place: str) -> SimulatedRunner:
        return SimulatedRunner(instance_id, job_id, self._find)

    def forget(self, instance_id: InstanceId) -> None:
        """There are no lines to close."""

    async def close(self) -> None:
        """There are none."""
