"""What the server and a shim say to each other.

A shim task is one submission of one job: its id is the job's id. Every order carries the fence of the errand that
gives it; an order with a lower fence than the shim has seen for that task is refused (409, code `fenced`).

| method | path | what |
|---|---|---|
| GET | /healthz | `Health` |
| GET | /host | `HostInfo` |
| POST | /tasks | `TaskOrder`: 201 `TaskInfo`; the same id again: 200, the same task |
| GET | /tasks | `TaskList` |
| GET | /tasks/{id} | `TaskInfo` |
| POST | /tasks/{id}/terminate | `Terminate`: 202 `TaskInfo`; safe to repeat, a shorter grace overtakes a longer one |
| DELETE | /tasks/{id}?fence=N | 204; 409 `not_terminated` before it is; a task that is not there: 204 |
| GET | /tasks/{id}/log?offset=N | frames from the disk, also when the runner is dead; headers as the runner's pull |
| GET | /changes?cursor=C&wait_s=S | `Changes`: tasks that changed since the cursor; waits until there is one |
"""

from uuid import UUID

from pydantic import Field

from stoker.core.reason import JobReason
from stoker.core.shim_task import Runtime
from stoker.core.shim_task import S as TaskState
from stoker.wire.model import Answer, Model
from stoker.wire.runner import Result


class Health(Answer):
    service: str = "shim"
    version: str
    boot: str
    """Another one after each start of the shim."""
    tasks: int


class HostGpu(Answer):
    index: int
    id: str = Field(description="The vendor's own id of the device.")
    name: str
    memory_mb: int
    vendor: str


class HostInfo(Answer):
    hostname: str
    cpus: int
    memory_mb: int
    disk_mb: int
    gpus: tuple[HostGpu, ...] = ()
    addresses: tuple[str, ...] = ()
    root: bool = Field(description="Runs as root: jobs of several projects are kept apart by users.")
    cgroups: bool = Field(description="Limits of memory and CPU are enforced.")


class TaskOrder(Model):
    id: UUID
    fence: int
    name: str = Field(description="Of the run, for people who look at the host.")
    project_id: UUID
    runtime: Runtime = Runtime.PROCESS
    token: str = Field(min_length=16, repr=False, description="Every request to the task's runner carries it.")
    cpu: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    gpu_indices: tuple[int, ...] = ()
    stop_after_s: float | None = Field(default=None, gt=0, description="The opt-in: stop it when the server is away.")


class TaskInfo(Answer):
    id: UUID
    fence: int
    state: TaskState
    ending: bool = False
    reason: JobReason | None = None
    message: str = ""
    socket: str = Field(default="", description="Where its runner listens.")
    gpu_ids: tuple[str, ...] = ()
    result: Result | None = Field(default=None, description="How its commands ended, once they have.")
    log_end: int = Field(default=0, description="How far the job's log goes; brought up to date now and then.")
    cleanup_error: str = ""


class TaskList(Answer):
    tasks: tuple[TaskInfo, ...]


class Terminate(Model):
    fence: int
    grace_s: float = Field(default=0.0, ge=0)
    reason: JobReason = JobReason.TERMINATED_BY_SERVER
    message: str = ""


class Changes(Answer):
    cursor: str
    """For the next call; an unknown one (another boot) is answered with every task."""
    complete: bool
    """These are all the tasks there are."""
    tasks: tuple[TaskInfo, ...]
