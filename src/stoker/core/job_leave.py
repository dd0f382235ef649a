"""What a job does whose machine will leave at a moment that is known before.

A drain is a wish for jobs to end by themselves: each runs on, and is told the moment. Before a preemption a job without
`warn_signal` is stopped at once, so that it runs again elsewhere the sooner. With it the program is warned and may use
the time: it is stopped just before the machine leaves. A program that ends by itself after the warning, and not well,
was interrupted by it.
"""

import math

from stoker.core.job_end import end, exit_of, passed
from stoker.core.job_facts import Draining, Exited, Interrupted, Job, RunnerAccepted, S, Warn
from stoker.core.machine import Effect, Then, TimeUp, ask
from stoker.core.reason import JobReason
from stoker.core.warning import Deadline


def await_leave(job: Job, event: Interrupted, now: float) -> Then:
    """Said again, it changes nothing: the moment follows from the notice alone."""
    leave_at = stop_at(job, event)
    if leave_at == job.leave_at:
        return ask()
    return ask(Warn(leave_at, Deadline.PREEMPTION), leave_at=leave_at, note=f"{event.message}; it is warned")


def stop_at(job: Job, event: Interrupted) -> float | None:
    """So early that it can stop in good order; of a short notice one half is the program's own."""
    if event.leaves_at is None:
        return None
    return event.leaves_at - min(job.policy.stop_duration_s, event.notice_s / 2)


def await_drain(job: Job, event: Draining, now: float) -> Then:
    warned = "; it is warned" if job.policy.warn_signal is not None else ""
    note = "its machine is not drained any more" if event.drain_at is None else f"its machine is drained{warned}"
    warn = (Warn(event.drain_at, Deadline.DRAIN),) if job.state is S.RUNNING else ()
    return ask(*warn, leave_at=event.drain_at, note=note)


def run(job: Job, event: RunnerAccepted, now: float) -> Then:
    told: tuple[Effect, ...] = () if job.leave_at is None else (Warn(job.leave_at, Deadline.DRAIN),)
    limit_s = math.inf if job.policy.max_duration_s is None else job.policy.max_duration_s
    if event.max_duration_s not in (None, limit_s):
        # Changed after its order was written: the runner counts too, also while the server is away.
        told += (Warn(None if limit_s == math.inf else now + limit_s, Deadline.MAX_DURATION),)
    return ask(*told, running_at=now, unreachable_since=None)


def end_leaving(job: Job, event: TimeUp, now: float) -> Then:
    return end(job, JobReason.INTERRUPTED_BY_NO_CAPACITY, now, message="its machine is leaving")


def end_warned(job: Job, event: Exited, now: float) -> Then:
    message = "it ended after the warning that its machine leaves"
    return end(job, JobReason.INTERRUPTED_BY_NO_CAPACITY, now, message=message, **exit_of(job, event, now))


# When rows apply.


def warned_first(job: Job, event: Interrupted, now: float) -> bool:
    if job.instance_id != event.instance_id or job.policy.warn_signal is None:
        return False
    return (at := stop_at(job, event)) is not None and at > now


def drain_is_news(job: Job, event: Draining, now: float) -> bool:
    return job.instance_id == event.instance_id and job.leave_at != event.drain_at


def time_to_leave(job: Job, event: TimeUp, now: float) -> bool:
    return passed(job.leave_at, now)


def after_warning(job: Job, event: Exited, now: float) -> bool:
    """It did not end well, and it was the warning that ended it as far as anybody can tell."""
    if job.leave_at is None or job.policy.warn_signal is None or event.oom or event.setup:
        return False
    return now - event.ago_s >= job.leave_at - job.policy.warn_signal.ahead_s
