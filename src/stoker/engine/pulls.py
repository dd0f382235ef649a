"""What hosts say to this replica of containers of jobs: how far an image has come, or for what else a start waits, then
where their ports are reached. Kept in memory: the first is out of date in a moment, the second is said again when a
host is looked at as a whole."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.phrase import amount
from stoker.core.shim_task import S
from stoker.wire.shim import PortInfo, TaskInfo

MB = 1024 * 1024
STARTING = (S.PENDING, S.PREPARING, S.PULLING, S.CREATING)


class Pull(NamedTuple):
    run_id: UUID
    pulled_bytes: int
    total_bytes: int | None
    waits: str
    """For what the start of its task has to wait."""

    @property
    def sentence(self) -> str:
        if self.waits:
            return self.waits
        if not self.pulled_bytes:
            return "its image is pulled"
        of = f" of {_size(self.total_bytes)}" if self.total_bytes else ""
        return f"its image is pulled: {_size(self.pulled_bytes)}{of}"


class Pulls:
    def __init__(self) -> None:
        self._by_job: dict[UUID, Pull] = {}
        self._ports: dict[UUID, tuple[PortInfo, ...]] = {}

    def heard(self, run_id: UUID, task: TaskInfo) -> None:
        waits = task.message if task.state in STARTING else ""
        if (task.state is S.PULLING or waits) and not task.ending:
            self._by_job[task.id] = Pull(run_id, task.pulled_bytes, task.pull_total_bytes, waits)
        else:
            self._by_job.pop(task.id, None)
        if task.state is S.RUNNING and task.ports and not task.ending:
            self._ports[task.id] = task.ports
        else:
            self._ports.pop(task.id, None)

    def ports_of(self, job: UUID) -> tuple[PortInfo, ...]:
        return self._ports.get(job, ())

    def of_job(self, id: UUID) -> str:
        found = self._by_job.get(id)
        return found.sentence if found is not None else ""

    def of_run(self, id: UUID) -> str:
        """Of the job that has most of it to come."""
        found = [one for one in self._by_job.values() if one.run_id == id]
        return max(found, key=lambda one: (one.total_bytes or 0) - one.pulled_bytes).sentence if found else ""


def _size(size_bytes: int) -> str:
    return amount("disk", size_bytes / MB).removesuffix(" of disk")
