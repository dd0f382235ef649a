"""How the engine sees shims and runners: a few calls, each safe to repeat, each of which may fail as `Unavailable`.

`transport` makes them over sockets, the simulation over a network that loses, doubles and delays.
"""

from typing import Final, Protocol
from uuid import UUID

from stoker.core.ids import InstanceId, JobId
from stoker.wire.frame import Piece
from stoker.wire.runner import Deadline, JobOrder, Stop
from stoker.wire.shim import Changes, HostInfo, TaskInfo, TaskOrder, Terminate, VolumeInfo, VolumeOrder

NO_WAY: Final = "no_way"
"""The code of an `Unavailable` that says: nobody has ever spoken to this host."""


class Shim(Protocol):
    async def host(self) -> HostInfo: ...

    async def submit(self, order: TaskOrder) -> TaskInfo: ...

    async def task(self, id: UUID) -> TaskInfo:
        """`NotFound` when there is no such task."""
        ...

    async def terminate(self, id: UUID, order: Terminate, wait_s: float) -> TaskInfo:
        """Returns when the task is terminated, or as it is after `wait_s`."""
        ...

    async def remove(self, id: UUID, fence: int) -> None:
        """`Conflict` before the task is terminated; nothing when it is not there."""
        ...

    async def make_volume(self, order: VolumeOrder) -> VolumeInfo: ...

    async def remove_volume(self, id: UUID, fence: int) -> None:
        """`Conflict` while a task uses it; nothing when it is not there."""
        ...

    async def changes(self, cursor: str, wait_s: float) -> Changes: ...

    async def log(self, id: UUID, offset: int, *, own: bool) -> Piece:
        """Of the job, or the runner's own."""
        ...


class Runner(Protocol):
    async def run(self, order: JobOrder) -> None:
        """Takes the job and starts it, once."""
        ...

    async def stop(self, order: Stop) -> None: ...

    async def set_deadline(self, order: Deadline) -> None: ...

    async def pull(self, offset: int, wait_s: float) -> Piece: ...


class Agents(Protocol):
    """The way to each host. Nothing is asked of the network before the first call."""

    async def shim(self, instance_id: InstanceId) -> Shim:
        """`Unavailable` when nobody knows the way yet."""
        ...

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> Runner: ...


class Readers(Protocol):
    """Who reads logs while they are written."""

    def wrote(self, job_id: JobId) -> None:
        """There is more in the log store."""
        ...
