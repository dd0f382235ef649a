"""What is going on with a run, in words for people."""

import json
from typing import Final

from stoker.core.reason import JobReason, RunReason
from stoker.core.run_facts import S
from stoker.store.run_list import Listed
from stoker.wire.time import moment

_CAUSES: Final = {
    JobReason.FAILED_TO_START_DUE_TO_NO_CAPACITY: "there was no room for it",
    JobReason.INTERRUPTED_BY_NO_CAPACITY: "its machine was taken away",
    JobReason.INSTANCE_UNREACHABLE: "its machine could not be reached",
    JobReason.WAITING_INSTANCE_LIMIT_EXCEEDED: "no machine came in time",
    JobReason.WAITING_RUNNER_LIMIT_EXCEEDED: "its runner did not answer in time",
    JobReason.VOLUME_ERROR: "a volume failed",
    JobReason.GATEWAY_ERROR: "the gateway failed",
    JobReason.CREATING_CONTAINER_ERROR: "it could not be started",
    JobReason.PORTS_BINDING_FAILED: "a port was taken",
    JobReason.EXECUTOR_ERROR: "it could not be run",
    JobReason.OUT_OF_MEMORY: "it ran out of memory",
    JobReason.SETUP_FAILED: "its setup failed",
    JobReason.LOG_QUOTA_EXCEEDED: "it wrote more log than it may",
    JobReason.MAX_DURATION_EXCEEDED: "it ran longer than max_duration",
    JobReason.INACTIVITY_DURATION_EXCEEDED: "nobody used it",
    JobReason.TERMINATED_DUE_TO_UTILIZATION_POLICY: "it did not use what it had",
}

_REASONS: Final = {
    RunReason.RETRY_LIMIT_EXCEEDED: "tried as often as it may: ",
    RunReason.SERVER_ERROR: "the server failed it",
    RunReason.GATEWAY_ERROR: "the gateway failed it",
    RunReason.STOPPED_BY_USER: "stopped by a user",
    RunReason.ABORTED_BY_USER: "aborted by a user",
}


HELD: Final = "held: it waits for `stoker release`"


def sentence(run: Listed) -> str:
    """Empty when there is nothing to say besides its status."""
    said = _ended(run) if run.finished or run.state is S.TERMINATING else _under_way(run)
    return "; ".join(part for part in (said, run.trouble) if part)


def _under_way(run: Listed) -> str:
    if run.state is S.PENDING and run.resume_at is not None:
        return f"tries again at {moment(run.resume_at):%H:%M:%S} UTC"
    if run.state is S.PENDING and run.schedule is not None:
        return _between_rounds(run)
    if run.held and run.state in (S.PENDING, S.SUBMITTED):
        return HELD
    if run.held:
        return "what has not started yet is held"
    return {S.PENDING: "nothing of it is wanted now", S.SUBMITTED: "waits for a machine"}.get(run.state, "")


def _between_rounds(run: Listed) -> str:
    if run.trigger_at is not None:
        said = f"starts at {moment(run.trigger_at):%Y-%m-%d %H:%M} UTC"
    else:
        said = "paused" if json.loads(run.schedule or "{}").get("paused") else "its schedule has no time left"
    last = f"last round: {_ended(run)}" if _ended(run) else ""
    return "; ".join(part for part in (said, "held" if run.held else "", last) if part)


def _ended(run: Listed) -> str:
    if run.reason in (None, RunReason.ALL_JOBS_DONE):
        return run.message
    said = _REASONS.get(run.reason, "") if run.reason else ""
    if run.cause is JobReason.CONTAINER_EXITED_WITH_ERROR:
        said += f"exited with {run.exit_code}" if run.exit_code is not None else "exited with an error"
    elif run.cause is not None:
        said += _CAUSES.get(run.cause, "")
    return ": ".join(part for part in (said, run.message) if part)
