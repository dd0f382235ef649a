"""How far the images of jobs have come, and for what else their hosts wait, as these say it to this replica. Kept in
memory: it is out of date in a moment, and of no use to anybody once the job runs."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.phrase import amount
from stoker.core.shim_task import S
from stoker.wire.shim import TaskInfo

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

    def heard(self, run_id: UUID, task: TaskInfo) -> None:
        waits = task.message if task.state in STARTING else ""
        if (task.state is S.PULLING or waits) and not task.ending:
            self._by_job[task.id] = Pull(run_id, task.pulled_bytes, task.pull_total_bytes, waits)
        else:
            self._by_job.pop(task.id, None)

    def of_job(self, id: UUID) -> str:
        found = self._by_job.get(id)
        return found.sentence if found is not None else ""

    def of_run(self, id: UUID) -> str:
        """Of the job that has most of it to come."""
        found = [one for one in self._by_job.values() if one.run_id == id]
        return max(found, key=lambda one: (one.total_bytes or 0) - one.pulled_bytes).sentence if found else ""


def _size(size_bytes: int) -> str:
    return amount("disk", size_bytes / MB).removesuffix(" of disk")
