"""A job as the API shows it: one submission of one (replica, node) of a run."""

from uuid import UUID

from pydantic import Field

from stoker.core.job_facts import S as JobStatus
from stoker.core.reason import JobReason
from stoker.wire.model import Answer
from stoker.wire.shim import PortInfo
from stoker.wire.time import Time


class Job(Answer):
    id: UUID
    replica: int = Field(examples=[0])
    node: int = Field(examples=[0])
    submission: int = Field(examples=[1], description="The number of this try, from 1.")
    status: JobStatus = Field(examples=["RUNNING"])
    termination_reason: JobReason | None = None
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    instance: UUID | None = Field(default=None, description="Where it runs or ran.")
    instance_name: str | None = Field(default=None, examples=["local-9c41ab"])
    ports: tuple[PortInfo, ...] = Field(default=(), description="Of its host, on 127.0.0.1, while its container runs.")
    submitted_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    unreachable_since: Time | None = Field(default=None, description="Its agent does not answer; it may well run.")


class JobPage(Answer):
    items: tuple[Job, ...]
    next_cursor: str | None = None
