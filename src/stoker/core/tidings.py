"""What a run has to tell the managed task that launched it."""

from stoker.core import managed_task as mt
from stoker.core.reason import JobReason, RunReason
from stoker.core.run_facts import Run, S

_MACHINE = frozenset(
    {
        JobReason.INSTANCE_UNREACHABLE,
        JobReason.WAITING_INSTANCE_LIMIT_EXCEEDED,
        JobReason.WAITING_RUNNER_LIMIT_EXCEEDED,
        JobReason.VOLUME_ERROR,
        JobReason.GATEWAY_ERROR,
        JobReason.CREATING_CONTAINER_ERROR,
        JobReason.PORTS_BINDING_FAILED,
        JobReason.EXECUTOR_ERROR,
    }
)
"""The machine or the agent failed under the program."""


def news_of(run: Run, machine_gone: bool) -> mt.RunNews | None:
    """None while there is nothing to tell. `machine_gone`: the provider said so of one of its machines."""
    attempt = run.owner_attempt
    jitter = run.id.int % 1000 / 1000
    if run.state is S.RUNNING:
        return mt.RunStarted(attempt=attempt)
    if run.state not in (S.DONE, S.FAILED, S.TERMINATED):
        return None
    if run.state is S.DONE:
        return mt.ProgramEnded(0, attempt=attempt)
    if run.reason in (RunReason.STOPPED_BY_USER, RunReason.ABORTED_BY_USER):
        return mt.CleanedUp(attempt=attempt)
    if run.cause is JobReason.FAILED_TO_START_DUE_TO_NO_CAPACITY:
        return mt.NoCapacity(attempt=attempt, jitter=jitter, message=run.message)
    if run.cause is JobReason.INTERRUPTED_BY_NO_CAPACITY:
        return mt.Preempted(attempt=attempt, jitter=jitter, message=run.message)
    if run.cause is None or run.cause in _MACHINE:
        return mt.MachineLost(attempt=attempt, jitter=jitter, message=run.message or str(run.cause or run.reason))
    return mt.ProgramEnded(
        1 if run.exit_code is None else run.exit_code,
        setup_failed=run.cause is JobReason.SETUP_FAILED,
        machine_gone=machine_gone,
        attempt=attempt,
        jitter=jitter,
        message=run.message or str(run.cause),
    )
