"""What the server and a runner say to each other. A runner runs one job once, however often it is told to.

| method | path | what |
|---|---|---|
| GET | /healthz | `Health` |
| POST | /job | `JobOrder`: 200 `Health`; repeated: the same answer, nothing is started twice |
| PUT | /code | a tar archive, unpacked into the working directory before the commands run: 200 `Health` |
| POST | /run | 202 `Health`: start; at once when the order says that no code comes, else when the code is here |
| GET | /pull?offset=N&wait_s=S&limit=B | frames from offset N on; what lies before N may be forgotten |
| GET | /own?offset=N | the same for the runner's own log |
| POST | /stop | `Stop`: 202 `Health`; SIGTERM to the process group, SIGKILL after the grace |
| POST | /deadline | `Deadline`: 202 `Health`; when the job will be ended and why, so that it is warned before |
| POST | /heard | `Heard`: 202 `Health`; the shim passes on that the server is there |
| GET | /metrics | `Metrics` of the process tree |
| GET (WebSocket) | /live?offset=N | frames as they come, one message each; closed with 1000 when the log is complete |

A stop may be repeated, and a shorter grace overtakes a longer one; before the commands run it means that they never
will. Orders carry a fence: one that is lower than the highest seen is refused (409, code `fenced`).

Every request carries `Authorization: Bearer TOKEN` with the token of the task. An answer with frames says in its
headers where to go on (`Stoker-Next-Offset`), how far the log goes now (`Stoker-Log-End`) and whether it will grow no
more (`Stoker-Log-Complete: true`); `/pull` also carries the `Health` as JSON in `Stoker-Health`. A runner whose job has
ended leaves when it was asked for `/pull` at the end of the log and for `/own` to its end.
"""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from stoker.core import warning as core_warning
from stoker.core.limits import LONGEST_GRACE_S
from stoker.wire.model import Answer, Order


class Header(StrEnum):
    """Of an answer that carries frames."""

    NEXT = "Stoker-Next-Offset"
    END = "Stoker-Log-End"
    COMPLETE = "Stoker-Log-Complete"
    HEALTH = "Stoker-Health"


def _no_zero(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a zero byte, which no program can be given")
    return text


def _a_name(text: str) -> str:
    if not text or "=" in text:
        raise ValueError("is no name of a variable")
    return text


Text = Annotated[str, AfterValidator(_no_zero)]
"""What is handed to a program."""

Fence = Annotated[int, Field(ge=0, lt=2**63)]

PULL_BYTES = 1024 * 1024
"""The most frames in one answer (more only where a single frame is larger)."""
LONGEST_WAIT_S = 60.0


class RunnerState(StrEnum):
    WAIT_SUBMIT = "wait_submit"
    WAIT_CODE = "wait_code"
    PREPARE = "prepare"
    RUN = "run"
    SERVE_LOGS = "serve_logs"
    WAIT_LOGS_FINISHED = "wait_logs_finished"


class Failure(StrEnum):
    """Why the commands were not run to their end; none of them is how the program itself ended."""

    EXECUTOR = "executor"
    VOLUME = "volume"
    LOG_QUOTA = "log_quota"
    MAX_DURATION = "max_duration"
    UTILIZATION = "utilization"
    SILENCE = "silence"


class Result(Answer):
    """How the commands ended; written to disk before anybody is told."""

    exit_code: int
    signal: int | None = None
    oom: bool = False
    setup: bool = Field(default=False, description="It was the setup that failed.")
    failure: Failure | None = None
    message: str = ""
    ended_at: float
    ended_up_s: float | None = Field(default=None, description="How long the host was up then: nobody sets that clock.")
    boot: str = Field(default="", description="The boot of the host that this counts from.")
    log_end: int
    """The framed length of the whole log."""


class Warning(Order):
    signal: Text = Field(description="Its name, without SIG.")
    ahead_s: float = Field(gt=0, allow_inf_nan=False)


class Utilization(Order):
    window_s: float = Field(gt=0, allow_inf_nan=False)
    min_gpu_percent: float | None = Field(default=None, ge=0, le=100)
    min_cpu_percent: float | None = Field(default=None, ge=0, le=100)
    cpus: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="What the percentage is of.")


class JobOrder(Order):
    fence: Fence
    job_id: UUID
    run_id: UUID
    run_name: Text
    project: Text
    submission: int = Field(ge=1)
    replica: int = Field(default=0, ge=0)
    replicas_num: int = Field(default=1, ge=1)
    node_rank: int = Field(default=0, ge=0)
    nodes_num: int = Field(default=1, ge=1)
    nodes_ips: tuple[Text, ...] = ("127.0.0.1",)
    nodes_gpus: tuple[int, ...] = Field(default=(), description="How many each of them has, by rank.")
    node_group: Text = ""
    gpus_per_node: int = Field(default=0, ge=0, description="On this node.")
    gpus_num: int = Field(default=0, ge=0, description="On all nodes of its replica.")
    setup: tuple[Text, ...] = ()
    commands: tuple[Text, ...] = Field(default=(), description="Neither these nor argv: the program of its image.")
    argv: tuple[Text, ...] = Field(
        default=(), description="Instead of commands: a program and its arguments, run as they are, without a shell."
    )
    shell: Text = "/bin/sh"
    env: dict[Annotated[Text, AfterValidator(_a_name)], Text] = Field(default_factory=dict, repr=False)
    working_dir: Text | None = Field(default=None, description="Below the job's own directory, or absolute.")
    tty: bool = False
    stop_duration_s: float = Field(default=10.0, ge=0, le=LONGEST_GRACE_S)
    silence_grace_s: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Between SIGTERM and SIGKILL when the server is away."
    )
    max_duration_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    warning: Warning | None = None
    utilization: Utilization | None = None
    log_quota_bytes: int = Field(gt=0)
    code: bool = Field(default=False, description="An archive follows; do not run before it is here.")
    start: bool = Field(default=False, description="Run it at once, as `POST /run` would.")

    @model_validator(mode="after")
    def _one_of_two(self) -> "JobOrder":
        if self.argv and self.commands:
            raise ValueError("commands and argv are two ways to say the same; give one of them")
        return self


class Health(Answer):
    service: str = "runner"
    version: str
    state: RunnerState
    job_id: UUID | None = None
    result: Result | None = None


class Stop(Order):
    fence: Fence
    grace_s: float | None = Field(default=None, ge=0, le=LONGEST_GRACE_S, description="None: as the job's order says.")


class Deadline(Order):
    """Seconds, not a moment: the clocks of two hosts are two."""

    fence: Fence
    in_s: float | None = Field(ge=0, allow_inf_nan=False, description="From now on; None: it is off.")
    reason: core_warning.Deadline


class Heard(Order):
    ago_s: float = Field(ge=0, allow_inf_nan=False, description="How long ago the server spoke to the shim.")


class ProcessMetrics(Answer):
    at: float
    processes: int
    cpu_s: float
    memory_mb: float
    gpu_percent: tuple[float, ...] = ()
    gpu_memory_mb: tuple[float, ...] = ()


class Metrics(Answer):
    latest: ProcessMetrics


class FromOffset(Order):
    """The query of `/live`."""

    offset: int = Field(default=0, ge=0, lt=2**63)


class Pull(FromOffset):
    """The query of `/pull` and `/own`."""

    wait_s: float = Field(default=0.0, ge=0, le=LONGEST_WAIT_S, description="How long to wait for something new.")
    limit: int = Field(default=PULL_BYTES, ge=1, le=PULL_BYTES, description="About how many bytes.")


class Box(Answer):
    """The container that a runner is the first process of, as far as a job has to know of it."""

    user: str = Field(default="", description="Whom commands run as, by name or number, as the image knows him.")
    home: str = "/"
    groups: tuple[int, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, repr=False, description="What the image says.")
    entrypoint: tuple[str, ...] = Field(default=(), description="What the commands are handed to.")
    program: tuple[str, ...] = Field(default=(), description="Run when there are no commands.")


class Bind(Answer):
    """A directory of the host that the job finds elsewhere, in a view of the file system that only it has."""

    source: str
    inside: str
    read_only: bool = False


class Assignment(Answer):
    """`runner.json`: what a shim tells the runner of a task, in a file that only the two can read."""

    id: UUID
    project_id: UUID
    token: str = Field(min_length=16, repr=False)
    socket: str = Field(description="Where the runner listens.")
    notify: str = Field(default="", description="A datagram socket that hears the task's id when something changed.")
    uid: int | None = Field(default=None, description="The job's user; None: the same as the runner's.")
    gid: int | None = None
    cgroups: tuple[str, ...] = Field(default=(), description="Directories whose members the job's processes become.")
    gpu_ids: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    binds: tuple[Bind, ...] = ()
    volumes: str = Field(default="", description="Where this host keeps those of all its jobs.")
    stop_after_s: float | None = Field(default=None, gt=0)
    job: JobOrder | None = Field(default=None, description="Taken at once, as if it had come by `POST /job`.")
    box: Box | None = Field(default=None, description="None: the runner is a process of the host.")

    @model_validator(mode="after")
    def _whole_user(self) -> "Assignment":
        if (self.uid is None) != (self.gid is None):
            # With half of him the job would run with our own rights.
            raise ValueError("uid and gid come together")
        return self
