"""What the server and a shim say to each other.

A shim task is one submission of one job: its id is the job's id. Every order carries the fence of the errand that
gives it; an order with a lower fence than the shim has seen for that task is refused (409, code `fenced`).

| method | path | what |
|---|---|---|
| GET | /healthz | `Health` |
| GET | /host | `HostInfo` |
| POST | /tasks | `TaskOrder`: 201 `TaskInfo`, usually started; the same id again: 200, the same task |
| GET | /tasks | `TaskList` |
| GET | /tasks/{id} | `TaskInfo` |
| POST | /tasks/{id}/terminate?wait_s=S | `Terminate`: 202 `TaskInfo`, terminated or as it is after `wait_s`; safe to \
repeat, a shorter grace overtakes a longer one |
| DELETE | /tasks/{id}?fence=N | 204; 409 `not_terminated` before it is; a task that is not there: 204 |
| GET | /tasks/{id}/log?offset=N&limit=B&own=false | frames from the disk, also when the runner is dead; headers as \
the runner's pull; `own`: the runner's own log |
| POST | /volumes | `VolumeOrder`: 200 `VolumeInfo`, made; safe to repeat |
| GET | /volumes | `VolumeList` |
| DELETE | /volumes/{id}?fence=N | 204, with all that was in it; 409 `volume_used` while a task uses it |
| GET | /changes?cursor=C&wait_s=S | `Changes`: tasks that changed since the cursor, and how the host is; waits until \
there is news of either |
| POST | /leave | `Leave`: 202 `Left`, then the shim ends; 409 `tasks_running` while there are some, unless forced |
| GET | /openapi.json | this table for programs |

Every request carries `Authorization: Bearer TOKEN` with the shim's token. A task that was removed is not started again
by an order with the same or a lower fence.
"""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from stoker.core.limits import LONGEST_GRACE_S, MOST_PATH_CHARS, MOST_VOLUMES_OF_A_RUN
from stoker.core.reason import JobReason
from stoker.core.shim_task import Runtime
from stoker.core.shim_task import S as TaskState
from stoker.wire.model import Answer, Order
from stoker.wire.runner import LONGEST_WAIT_S, PULL_BYTES, Fence, JobOrder, Result, Text


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
    cpus: float = Field(description="That it may use: less than the machine has where a quota says so.")
    memory_mb: int
    disk_mb: int
    gpus: tuple[HostGpu, ...] = ()
    addresses: tuple[str, ...] = ()
    root: bool = Field(description="Runs as root: jobs of several projects are kept apart by users.")
    project_id: UUID | None = Field(
        default=None, description="Without root: the only project that it serves, once a job of it has come."
    )
    cgroups: bool = Field(description="Limits of memory and CPU are enforced.")
    docker: str = Field(default="", description="The version of its container engine; nothing: no containers here.")


class Network(StrEnum):
    HOST = "host"
    """The host's own: for a job that has the whole instance, or is one of several nodes."""
    BRIDGE = "bridge"
    """One of its own behind the host's; what it listens on is at other ports of the host."""


class RegistryAuth(Order):
    username: Text = Field(max_length=1024)
    password: Text = Field(max_length=16_384, repr=False)


PortNumber = Annotated[int, Field(ge=1, le=65_535)]
PULL_S = 3600.0
LONGEST_PULL_S = 24 * 3600.0


class Container(Order):
    """What a task runs in. Its runner is mounted into it and is its first process."""

    image: Text = Field(min_length=1, max_length=4096)
    registry_auth: RegistryAuth | None = Field(default=None, repr=False)
    entrypoint: tuple[Text, ...] | None = Field(
        default=None, description="What the commands are handed to; none: what the image says, if there are none."
    )
    user: Text = Field(default="", max_length=256, description="As the image knows him; none: as the image says.")
    privileged: bool = False
    shm_mb: int | None = Field(default=None, gt=0, lt=2**40)
    network: Network = Network.BRIDGE
    ports: tuple[PortNumber, ...] = Field(default=(), max_length=100)
    docker: bool = Field(default=False, description="The engine's own socket is in it.")
    pull_s: float = Field(default=PULL_S, gt=0, le=LONGEST_PULL_S, description="How long its image may take to come.")


class PortInfo(Answer):
    inside: int
    on_host: int


Index = Annotated[int, Field(ge=0, lt=1024)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)]


class Source(StrEnum):
    """What is mounted."""

    LOCAL = "local"
    """A volume of this host: a directory, or a file system of its own where it has a size. Made when it is missing."""
    NFS = "nfs"
    """`server:/path`."""
    PATH = "path"
    """A directory that is there: of the host, or where a provider has attached a disk."""


Inside = Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARS, pattern=r"^[^\x00\n\r]+$")]


class Mount(Order):
    """Something that a task finds at a path of its own. Of a volume, `id` counts its users on this host."""

    source: Source
    id: UUID | None = None
    name: str = Field(default="", max_length=256, description="As people know it.")
    place: str = Field(default="", max_length=MOST_PATH_CHARS, description="Of nfs `server:/path`, of path the path.")
    size_mb: int | None = Field(default=None, gt=0, lt=2**40)
    inside: Inside = Field(description="Where the task finds it; relative: below its working directory.")
    read_only: bool = False


class VolumeOrder(Order):
    """Make a local volume of this host, before any task wants it."""

    id: UUID
    fence: Fence
    name: str = Field(default="", max_length=256)
    project_id: UUID
    size_mb: int | None = Field(default=None, gt=0, lt=2**40)


class VolumeInfo(Answer):
    """A volume as this host knows it."""

    id: UUID
    made: bool = Field(description="There is something of it on this host's disk.")
    mounted: bool = False
    tasks: tuple[UUID, ...] = Field(default=(), description="Those that use it.")


class VolumeList(Answer):
    volumes: tuple[VolumeInfo, ...]


class TaskOrder(Order):
    id: UUID
    fence: Fence
    name: str = Field(max_length=256, description="Of the run, for people who look at the host.")
    project_id: UUID
    runtime: Runtime = Runtime.PROCESS
    container: Container | None = Field(default=None, description="With the runtime `docker`.")
    token: str = Field(
        min_length=16,
        max_length=512,
        pattern=r"^[!-~]+$",
        repr=False,
        description="Every request to the task's runner carries it.",
        examples=["c2VjcmV0LW9mLXRoZS10YXNr"],
    )
    cpu: float | None = Field(default=None, gt=0, le=1e5, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0, lt=2**40)
    gpu_indices: tuple[Index, ...] = Field(default=(), max_length=1024)
    stop_after_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="The opt-in: stop it when the server is away."
    )
    mounts: tuple[Mount, ...] = Field(default=(), max_length=MOST_VOLUMES_OF_A_RUN)
    detach_s: float = Field(
        default=300.0, ge=0, le=1e6, allow_inf_nan=False, description="After so long, what is busy is let go by force."
    )
    job: JobOrder | None = Field(
        default=None, description="Given to its runner on the way, and not kept here; without it the runner waits."
    )


class TaskInfo(Answer):
    id: UUID
    fence: int
    state: TaskState
    ending: bool = False
    reason: JobReason | None = None
    message: str = Field(default="", description="Why it ended; before that, for what its start has to wait.")
    socket: str = Field(default="", description="Where its runner listens.")
    gpu_ids: tuple[str, ...] = ()
    result: Result | None = Field(default=None, description="How its commands ended, once they have.")
    ended_ago_s: float = Field(default=0.0, description="How long ago that was as this was said, by the host's clock.")
    log_end: int = Field(default=0, description="How far the job's log goes; brought up to date now and then.")
    ports: tuple[PortInfo, ...] = Field(default=(), description="Where its container is reached.")
    container_id: str = ""
    pulled_bytes: int = Field(default=0, description="Of its image, so far.")
    pull_total_bytes: int | None = Field(default=None, description="Of its image, as far as that is known.")
    cleanup_error: str = ""
    job_taken: bool = Field(
        default=False,
        description="Its runner has taken a job; of a process it is said in the answer to its order only.",
    )


class TaskList(Answer):
    tasks: tuple[TaskInfo, ...]


class Terminate(Order):
    fence: Fence
    grace_s: float = Field(default=0.0, ge=0, le=LONGEST_GRACE_S, allow_inf_nan=False)
    reason: JobReason = JobReason.TERMINATED_BY_SERVER
    message: str = Field(default="", max_length=10_000)


class TerminateQuery(Order):
    wait_s: Wait = Field(default=0.0, description="How long to wait until it is terminated.")


class RemoveQuery(Order):
    fence: Fence


class LogQuery(Order):
    offset: int = Field(default=0, ge=0, lt=2**63)
    limit: int = Field(default=PULL_BYTES, ge=1, le=PULL_BYTES, description="About how many bytes.")
    own: bool = Field(default=False, description="Of the runner's own log.")


class ChangesQuery(Order):
    cursor: str = Field(default="", max_length=256)
    wait_s: Wait = Field(default=0.0, description="How long to wait for a change.")


class Leave(Order):
    force: bool = Field(default=False, description="Terminate every task first.")
    for_good: bool = Field(default=False, description="Nobody comes after it: the images that it pulled go too.")


class Left(Answer):
    terminated: int = Field(description="How many tasks were still there.")


class Changes(Answer):
    cursor: str
    """For the next call; an unknown one (another boot) is answered with every task."""
    complete: bool
    """These are all the tasks there are."""
    tasks: tuple[TaskInfo, ...]
    health: str = Field(default="", description="What is wrong with the host now; nothing: it is well.")
    docker: str = Field(default="", description="As `HostInfo` says it.")
