"""Why things end, and what follows from it: one table for jobs, one for runs."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RetryEvent(StrEnum):
    """What a user may name in `retry.on_events`."""

    NO_CAPACITY = "no-capacity"
    INTERRUPTION = "interruption"
    ERROR = "error"


class JobEnd(StrEnum):
    """The finished statuses of a job."""

    DONE = "DONE"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"
    ABORTED = "ABORTED"


class JobReason(StrEnum):
    FAILED_TO_START_DUE_TO_NO_CAPACITY = "FAILED_TO_START_DUE_TO_NO_CAPACITY"
    INTERRUPTED_BY_NO_CAPACITY = "INTERRUPTED_BY_NO_CAPACITY"
    INSTANCE_UNREACHABLE = "INSTANCE_UNREACHABLE"
    WAITING_INSTANCE_LIMIT_EXCEEDED = "WAITING_INSTANCE_LIMIT_EXCEEDED"
    WAITING_RUNNER_LIMIT_EXCEEDED = "WAITING_RUNNER_LIMIT_EXCEEDED"
    VOLUME_ERROR = "VOLUME_ERROR"
    GATEWAY_ERROR = "GATEWAY_ERROR"
    CREATING_CONTAINER_ERROR = "CREATING_CONTAINER_ERROR"
    PORTS_BINDING_FAILED = "PORTS_BINDING_FAILED"
    EXECUTOR_ERROR = "EXECUTOR_ERROR"
    CONTAINER_EXITED_WITH_ERROR = "CONTAINER_EXITED_WITH_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    SETUP_FAILED = "SETUP_FAILED"
    LOG_QUOTA_EXCEEDED = "LOG_QUOTA_EXCEEDED"
    DONE_BY_RUNNER = "DONE_BY_RUNNER"
    TERMINATED_BY_USER = "TERMINATED_BY_USER"
    TERMINATED_BY_SERVER = "TERMINATED_BY_SERVER"
    SCALED_DOWN = "SCALED_DOWN"
    MAX_DURATION_EXCEEDED = "MAX_DURATION_EXCEEDED"
    INACTIVITY_DURATION_EXCEEDED = "INACTIVITY_DURATION_EXCEEDED"
    TERMINATED_DUE_TO_UTILIZATION_POLICY = "TERMINATED_DUE_TO_UTILIZATION_POLICY"
    ABORTED_BY_USER = "ABORTED_BY_USER"


class Consequence(NamedTuple):
    ends: JobEnd
    retry: RetryEvent | None


_J = JobReason
CONSEQUENCES: dict[JobReason, Consequence] = {
    _J.FAILED_TO_START_DUE_TO_NO_CAPACITY: Consequence(JobEnd.FAILED, RetryEvent.NO_CAPACITY),
    _J.INTERRUPTED_BY_NO_CAPACITY: Consequence(JobEnd.FAILED, RetryEvent.INTERRUPTION),
    _J.INSTANCE_UNREACHABLE: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.WAITING_INSTANCE_LIMIT_EXCEEDED: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.WAITING_RUNNER_LIMIT_EXCEEDED: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.VOLUME_ERROR: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.GATEWAY_ERROR: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.CREATING_CONTAINER_ERROR: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.PORTS_BINDING_FAILED: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.EXECUTOR_ERROR: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.CONTAINER_EXITED_WITH_ERROR: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.OUT_OF_MEMORY: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.SETUP_FAILED: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.LOG_QUOTA_EXCEEDED: Consequence(JobEnd.FAILED, RetryEvent.ERROR),
    _J.DONE_BY_RUNNER: Consequence(JobEnd.DONE, None),
    _J.TERMINATED_BY_USER: Consequence(JobEnd.TERMINATED, None),
    _J.TERMINATED_BY_SERVER: Consequence(JobEnd.TERMINATED, None),
    _J.SCALED_DOWN: Consequence(JobEnd.TERMINATED, None),
    _J.MAX_DURATION_EXCEEDED: Consequence(JobEnd.TERMINATED, None),
    _J.INACTIVITY_DURATION_EXCEEDED: Consequence(JobEnd.TERMINATED, None),
    _J.TERMINATED_DUE_TO_UTILIZATION_POLICY: Consequence(JobEnd.TERMINATED, None),
    _J.ABORTED_BY_USER: Consequence(JobEnd.ABORTED, None),
}

LIMITS = frozenset({_J.MAX_DURATION_EXCEEDED, _J.INACTIVITY_DURATION_EXCEEDED, _J.TERMINATED_DUE_TO_UTILIZATION_POLICY})


class RunEnd(StrEnum):
    """The finished statuses of a run."""

    DONE = "DONE"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"


class RunReason(StrEnum):
    ALL_JOBS_DONE = "ALL_JOBS_DONE"
    JOB_FAILED = "JOB_FAILED"
    RETRY_LIMIT_EXCEEDED = "RETRY_LIMIT_EXCEEDED"
    SERVER_ERROR = "SERVER_ERROR"
    GATEWAY_ERROR = "GATEWAY_ERROR"
    JOB_TERMINATED = "JOB_TERMINATED"
    STOPPED_BY_USER = "STOPPED_BY_USER"
    ABORTED_BY_USER = "ABORTED_BY_USER"


@dataclass(frozen=True, slots=True)
class Sentence:
    """What a run's reason means for the jobs still active and for the run."""

    jobs: JobReason
    ends: RunEnd


SENTENCES: dict[RunReason, Sentence] = {
    RunReason.ALL_JOBS_DONE: Sentence(JobReason.DONE_BY_RUNNER, RunEnd.DONE),
    RunReason.JOB_FAILED: Sentence(JobReason.TERMINATED_BY_SERVER, RunEnd.FAILED),
    RunReason.RETRY_LIMIT_EXCEEDED: Sentence(JobReason.TERMINATED_BY_SERVER, RunEnd.FAILED),
    RunReason.SERVER_ERROR: Sentence(JobReason.TERMINATED_BY_SERVER, RunEnd.FAILED),
    RunReason.GATEWAY_ERROR: Sentence(JobReason.TERMINATED_BY_SERVER, RunEnd.FAILED),
    RunReason.JOB_TERMINATED: Sentence(JobReason.TERMINATED_BY_SERVER, RunEnd.TERMINATED),
    RunReason.STOPPED_BY_USER: Sentence(JobReason.TERMINATED_BY_USER, RunEnd.TERMINATED),
    RunReason.ABORTED_BY_USER: Sentence(JobReason.ABORTED_BY_USER, RunEnd.TERMINATED),
}
