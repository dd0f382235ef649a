"""What an agent's word means for a job: pure, so that the simulation decides as the server does."""

from stoker.core.job_facts import AgentFailed, Exited, LimitExceeded
from stoker.core.reason import JobReason
from stoker.core.shim_task import S
from stoker.wire.runner import Failure, Result
from stoker.wire.shim import TaskInfo

_FAILURES = {
    Failure.EXECUTOR: JobReason.EXECUTOR_ERROR,
    Failure.VOLUME: JobReason.VOLUME_ERROR,
    Failure.LOG_QUOTA: JobReason.LOG_QUOTA_EXCEEDED,
}
_LIMITS = {
    Failure.MAX_DURATION: JobReason.MAX_DURATION_EXCEEDED,
    Failure.UTILIZATION: JobReason.TERMINATED_DUE_TO_UTILIZATION_POLICY,
    Failure.SILENCE: JobReason.INSTANCE_UNREACHABLE,
}
"""What the runner counts by itself, and ends the job for."""

End = Exited | AgentFailed | LimitExceeded


def end_of(task: TaskInfo, attempt: int) -> End | None:
    """How the job ended, as far as this task knows; None while it has not.

    What the runner wrote down beats what the shim saw: the shim sees only that the runner is gone.
    """
    if task.result is not None:
        return _of_result(task.result, attempt, task.ended_ago_s)
    if task.state is not S.TERMINATED and not (task.ending and task.reason is not None):
        return None
    reason = task.reason or JobReason.EXECUTOR_ERROR
    if reason in (JobReason.DONE_BY_RUNNER, JobReason.CONTAINER_EXITED_WITH_ERROR):
        # The runner left without a word on how the commands ended.
        reason = JobReason.EXECUTOR_ERROR
    return AgentFailed(reason, task.message, attempt=attempt)


def task_lost(attempt: int) -> AgentFailed:
    """The shim knows of no such task, though it had accepted it."""
    return AgentFailed(JobReason.EXECUTOR_ERROR, "the host lost the task", attempt=attempt)


def _of_result(result: Result, attempt: int, ago_s: float) -> End:
    ended = Exited(result.exit_code, result.signal, result.oom, result.setup, ago_s, attempt=attempt)
    if result.failure is None:
        return ended
    if result.failure in _LIMITS:
        return LimitExceeded(_LIMITS[result.failure], result.message, ended, attempt=attempt)
    return AgentFailed(_FAILURES[result.failure], result.message, attempt=attempt)
