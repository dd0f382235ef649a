"""What the server and a runner say to each other. A runner runs one job once, however often it is told to.

| method | path | what |
|---|---|---|
| GET | /healthz | `Health` |
| POST | /job | `JobOrder`: 200 `Health`; repeated: the same answer, nothing is started twice |
| PUT | /code | a tar archive, unpacked into the working directory before the commands run |
| POST | /run | 202 `Health`: start; at once when the order says that no code comes |
| GET | /pull?offset=N&wait_s=S&limit=B | frames from offset N on; what lies before N may be forgotten |
| GET | /own?offset=N | the same for the runner's own log |
| POST | /stop | `Stop`: 202; SIGTERM to the process group, SIGKILL after the grace |
| GET | /metrics | `Metrics` of the process tree |
| GET (WebSocket) | /live?offset=N | frames as they come, one message each |

Every request carries `Authorization: Bearer TOKEN` with the token of the task. An answer with frames says in its
headers where to go on (`Stoker-Next-Offset`), how far the log goes now (`Stoker-Log-End`) and whether it will grow no
more (`Stoker-Log-Complete: true`); `/pull` also carries the `Health` as JSON in `Stoker-Health`.
"""

from enum import StrEnum
from uuid import UUID

from pydantic import Field

from stoker.wire.model import Answer, Model


class Header(StrEnum):
    """Of an answer that carries frames."""

    NEXT = "Stoker-Next-Offset"
    END = "Stoker-Log-End"
    COMPLETE = "Stoker-Log-Complete"
    HEALTH = "Stoker-Health"


class RunnerState(StrEnum):
    WAIT_SUBMIT = "wait_submit"
    WAIT_CODE = "wait_code"
    PREPARE = "prepare"
    RUN = "run"
    SERVE_LOGS = "serve_logs"
    WAIT_LOGS_FINISHED = "wait_logs_finished"


class Failure(StrEnum):
    """Why the commands could not be run to their end; none of them is the program's own doing."""

    EXECUTOR = "executor"
    LOG_QUOTA = "log_quota"


class Result(Answer):
    """How the commands ended; written to disk before anybody is told."""

    exit_code: int
    signal: int | None = None
    oom: bool = False
    setup: bool = Field(default=False, description="It was the setup that failed.")
    failure: Failure | None = None
    message: str = ""
    ended_at: float
    log_end: int
    """The framed length of the whole log."""


class JobOrder(Model):
    fence: int
    job_id: UUID
    run_id: UUID
    run_name: str
    project: str
    submission: int = Field(ge=1)
    replica: int = Field(default=0, ge=0)
    node_rank: int = Field(default=0, ge=0)
    nodes_num: int = Field(default=1, ge=1)
    nodes_ips: tuple[str, ...] = ("127.0.0.1",)
    gpus_per_node: int = Field(default=0, ge=0)
    setup: tuple[str, ...] = ()
    commands: tuple[str, ...]
    shell: str = "/bin/sh"
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    working_dir: str | None = None
    tty: bool = False
    stop_duration_s: float = Field(default=10.0, ge=0)
    log_quota_bytes: int = Field(gt=0)
    code: bool = Field(default=False, description="An archive follows; do not run before it is here.")


class Health(Answer):
    service: str = "runner"
    version: str
    state: RunnerState
    job_id: UUID | None = None
    result: Result | None = None


class Stop(Model):
    fence: int
    grace_s: float | None = Field(default=None, ge=0, description="None: as the job's order says.")


class ProcessMetrics(Answer):
    at: float
    processes: int
    cpu_s: float
    memory_mb: float
    gpu_percent: tuple[float, ...] = ()
    gpu_memory_mb: tuple[float, ...] = ()


class Metrics(Answer):
    latest: ProcessMetrics
