"""The life of a run, derived from its jobs. The derivation is a list of rows: the first that matches wins."""

from typing import Any

from stoker.core.backoff import delay_s, step_after
from stoker.core.machine import Effect, Event, Machine, Row, Then, TimeUp, ask, nothing, pairs, rows, stay
from stoker.core.policy import StopCriteria
from stoker.core.reason import SENTENCES, JobReason, RunEnd, RunReason
from stoker.core.retry import Fate
from stoker.core.revision import as_seen, held, hold, release, returns_as_seen, revise, waits
from stoker.core.round import (
    backs_off,
    backs_off_and_queues,
    goes_on,
    pause,
    pauses,
    queue_trigger,
    queues,
    returns,
    returns_to_schedule,
    scheduled,
    skip_trigger,
    trigger,
    triggered,
    triggered_and_queues,
    triggered_meanwhile,
    unpause,
    wait_for_trigger,
)
from stoker.core.run_facts import (
    ACTIVE,
    FINISHED,
    AbortAsked,
    Broke,
    CutGrace,
    EndJobs,
    EndReplica,
    HoldAsked,
    JobsChanged,
    PauseAsked,
    ReleaseAsked,
    ReplicasWanted,
    Resubmit,
    ResumeAsked,
    Revised,
    Run,
    S,
    Scale,
    StopAsked,
    Swept,
    TellOwner,
    TriggerAsked,
)

__all__ = ["RUN", "Run", "S", "deadline"]

FATE_REASONS = {
    Fate.FAILED: RunReason.JOB_FAILED,
    Fate.EXHAUSTED: RunReason.RETRY_LIMIT_EXCEEDED,
    Fate.LIMIT: RunReason.JOB_TERMINATED,
}


def end(reason: RunReason, note: str = "", **fields: Any) -> Then:
    """The only way a run ends: TERMINATING, a reason, and every job asked to end."""
    jobs = EndJobs(SENTENCES[reason].jobs)
    return ask(jobs, **{"reason": reason, "cause": None, "resume_at": None, "note": note or reason} | fields)


def end_job(run: Run, event: JobsChanged, now: float) -> Then:
    return end(FATE_REASONS[event.fate], cause=event.reason, exit_code=event.exit_code, message=event.message)


def end_all_done(run: Run, event: JobsChanged, now: float) -> Then:
    return end(RunReason.ALL_JOBS_DONE, exit_code=0)


def end_stopped(run: Run, event: StopAsked, now: float) -> Then:
    return end(RunReason.STOPPED_BY_USER)


def end_aborted(run: Run, event: AbortAsked, now: float) -> Then:
    # What was ending already, in its grace, is not slower than what ends now.
    ended = end(RunReason.ABORTED_BY_USER)
    return ended._replace(effects=(*ended.effects, CutGrace()))


def end_broke(run: Run, event: Broke, now: float) -> Then:
    return end(event.reason, event.message, message=event.message)


def retry_replica(run: Run, event: JobsChanged, now: float) -> Then:
    step = step_after(run.backoff_step, event.ran_s)
    return ask(EndReplica(event.replica, event.budget), Resubmit(in_place=True), backoff_step=step)


def end_replica(run: Run, event: JobsChanged, now: float) -> Then:
    # The last of its jobs to end decides what follows, and that one is only stopped because of this one.
    return ask(EndReplica(event.replica, event.budget), cause=event.reason)


def started(run: Run, event: JobsChanged, now: float) -> Then:
    return ask(*told(run))


def back_off(run: Run, event: JobsChanged, now: float) -> Then:
    step = step_after(run.backoff_step, event.ran_s)
    if interrupted(run, event) and step == 0 and event.budget.streak <= 1:
        # Its machine was taken, it did nothing wrong: where there is room it is back in milliseconds.
        return ask(resume_at=now, note="interrupted: tries again at once")
    delay = delay_s(step, run.jitter(step))
    return ask(backoff_step=step + 1, resume_at=now + delay, note=f"tries again in {delay:.0f} s")


def interrupted(run: Run, event: JobsChanged) -> bool:
    return JobReason.INTERRUPTED_BY_NO_CAPACITY in (event.reason, run.cause)


def sleep(run: Run, event: JobsChanged, now: float) -> Then:
    return ask(note="no replica is wanted")


def resume(run: Run, event: TimeUp, now: float) -> Then:
    return ask(Resubmit(), Scale(), resume_at=None, cause=None)


def scale(run: Run, event: ReplicasWanted, now: float) -> Then:
    return ask(Scale(), replicas=event.replicas, note=f"{event.replicas} replicas wanted")


def note_wanted(run: Run, event: ReplicasWanted, now: float) -> Then:
    return ask(replicas=event.replicas, note=f"{event.replicas} replicas wanted")


def end_schedule(run: Run, event: StopAsked | AbortAsked, now: float) -> Then:
    reason = RunReason.ABORTED_BY_USER if isinstance(event, AbortAsked) else RunReason.STOPPED_BY_USER
    return ask(CutGrace(), reason=reason, note=reason) if reason is RunReason.ABORTED_BY_USER else ask(reason=reason)


def cut_grace(run: Run, event: AbortAsked, now: float) -> Then:
    reason = RunReason.ABORTED_BY_USER if run.reason is RunReason.STOPPED_BY_USER else run.reason
    return ask(CutGrace(), reason=reason, note="aborted")


def sweep_ending(run: Run, event: Swept, now: float) -> Then:
    assert run.reason is not None
    orders: tuple[Effect, ...] = (EndJobs(SENTENCES[run.reason].jobs),)
    # Not by the reason alone: a run that failed before it was aborted keeps its own.
    return ask(*orders, CutGrace()) if event.cut or run.reason is RunReason.ABORTED_BY_USER else ask(*orders)


def finish(run: Run, event: JobsChanged, now: float) -> Then:
    """Every finished status is assigned by a row that does this."""
    return ask(*told(run))


def told(run: Run) -> tuple[TellOwner, ...]:
    return () if run.owner_id is None else (TellOwner(),)


# When rows apply.


def job_failed_for_good(run: Run, event: JobsChanged, now: float) -> bool:
    return event.fate in FATE_REASONS


def master_done(run: Run, event: JobsChanged, now: float) -> bool:
    return run.policy.stop_criteria is StopCriteria.MASTER_DONE and run.tally.master_done


def failed_beside_another_active(run: Run, event: JobsChanged, now: float) -> bool:
    return event.replica_retry and run.tally.active > event.replica_active


def failed_beside_other_nodes(run: Run, event: JobsChanged, now: float) -> bool:
    return event.replica_retry and event.replica_active + event.replica_done > 0


def any_running(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.running > 0


def any_starting(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.starting > 0


def any_submitted(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.submitted > 0


def all_done(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.contributing > 0 and run.tally.contributing == run.tally.done


def rest_retryable(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.retry > 0 and run.tally.active == 0


def none_wanted(run: Run, event: JobsChanged, now: float) -> bool:
    return run.tally.contributing == 0 and run.replicas == 0


def scheduled_and_ended(run: Run, event: JobsChanged, now: float) -> bool:
    return returns(run) and all_finished(run, event, now)


def all_finished(run: Run, event: Event, now: float) -> bool:
    return run.tally.unfinished == 0


def finished_done(run: Run, event: JobsChanged, now: float) -> bool:
    return all_finished(run, event, now) and ends(run) is RunEnd.DONE


def finished_failed(run: Run, event: JobsChanged, now: float) -> bool:
    return all_finished(run, event, now) and ends(run) is RunEnd.FAILED


def ends(run: Run) -> RunEnd | None:
    return None if run.reason is None else SENTENCES[run.reason].ends


def not_aborted(run: Run, event: Event, now: float) -> bool:
    return run.reason is not RunReason.ABORTED_BY_USER


def backoff_over(run: Run, event: TimeUp, now: float) -> bool:
    return run.resume_at is not None and run.resume_at <= now


def wakes(run: Run, event: ReplicasWanted, now: float) -> bool:
    # Between the rounds of a schedule only the clock and people start one, also while it is paused.
    return event.replicas > 0 and run.resume_at is None and run.policy.schedule is None


def wanted_differently(run: Run, event: ReplicasWanted, now: float) -> bool:
    return event.replicas != run.replicas


def deadline(run: Run) -> float | None:
    if run.state is S.PENDING:
        return run.trigger_at if run.resume_at is None else run.resume_at
    return run.trigger_at if run.state in ACTIVE else None


DERIVATION = (
    # to             then           when
    (S.TERMINATING,  end_job,       job_failed_for_good),
    (S.TERMINATING,  end_all_done,  master_done),
    (None,           retry_replica, failed_beside_another_active),
    (None,           end_replica,   failed_beside_other_nodes),
    (S.RUNNING,      started,       any_running),
    (S.PROVISIONING, nothing,       any_starting),
    (S.SUBMITTED,    nothing,       any_submitted),
    (S.TERMINATING,  end_all_done,  all_done),
    (S.PENDING,      back_off,      rest_retryable),
    (S.PENDING,      sleep,         none_wanted),
)  # fmt: skip
"""Over the latest submission of each job; None leaves the state to the rows below, once the orders are done."""

NEVER = {(S.SUBMITTED, any_running), (S.SUBMITTED, master_done)}
"""A job is PROVISIONING before it runs, and the run with it; so these never meet."""

ASKED = (TriggerAsked, PauseAsked, ResumeAsked, HoldAsked, ReleaseAsked, Revised)
"""What people ask of a run besides its end; where it means nothing, the one who asks is told so."""
EVENTS = (JobsChanged, StopAsked, AbortAsked, Broke, ReplicasWanted, Swept, TimeUp, *ASKED)
UNFINISHED = (S.PENDING, *ACTIVE, S.TERMINATING)

RUN: Machine[Run] = Machine("run", (S.SUBMITTED, S.PENDING), (
    #   from            event           to             then              when
    *(Row(state,        JobsChanged,    to or state,   nothing if to is state else then, when)
      for state in ACTIVE for to, then, when in DERIVATION if (state, when) not in NEVER),
    *rows((S.PENDING, *ACTIVE), StopAsked,  S.TERMINATING, end_stopped),
    *rows((S.PENDING, *ACTIVE), AbortAsked, S.TERMINATING, end_aborted),
    *rows((S.PENDING, *ACTIVE), Broke,      S.TERMINATING, end_broke),
    *stay(ACTIVE,       TimeUp,                        queue_trigger,    triggered_and_queues),
    *stay(ACTIVE,       TimeUp,                        skip_trigger,     triggered_meanwhile),
    *stay(ACTIVE,       ReplicasWanted,                scale,            wanted_differently),
    Row(S.PENDING,      TimeUp,         S.SUBMITTED,   resume,           backoff_over),
    Row(S.PENDING,      TimeUp,         S.SUBMITTED,   trigger,          triggered),
    Row(S.PENDING,      ReplicasWanted, S.SUBMITTED,   scale,            wakes),
    Row(S.PENDING,      ReplicasWanted, S.PENDING,     note_wanted,      wanted_differently),
    Row(S.PENDING,      TriggerAsked,   S.PENDING,     queue_trigger,    backs_off_and_queues),
    Row(S.PENDING,      TriggerAsked,   S.PENDING,     skip_trigger,     backs_off),
    Row(S.PENDING,      TriggerAsked,   S.SUBMITTED,   trigger,          scheduled),
    *stay((*ACTIVE, S.TERMINATING), TriggerAsked,      queue_trigger,    queues),
    *stay((*ACTIVE, S.TERMINATING), TriggerAsked,      skip_trigger,     returns_to_schedule),
    *stay(UNFINISHED,   PauseAsked,                    pause,            goes_on),
    *stay(UNFINISHED,   ResumeAsked,                   unpause,          pauses),
    *stay((S.PENDING, *ACTIVE), HoldAsked,             hold,             waits),
    *stay(UNFINISHED,   ReleaseAsked,                  release,          held),
    *stay((S.PENDING, *ACTIVE), Revised,               revise,           as_seen),
    Row(S.TERMINATING,  Revised,        S.TERMINATING, revise,           returns_as_seen),
    Row(S.TERMINATING,  StopAsked,      S.TERMINATING, end_schedule,     returns_to_schedule),
    Row(S.TERMINATING,  AbortAsked,     S.TERMINATING, end_schedule,     returns_to_schedule),
    Row(S.TERMINATING,  AbortAsked,     S.TERMINATING, cut_grace,        not_aborted),
    Row(S.TERMINATING,  Swept,          S.TERMINATING, sweep_ending),
    Row(S.TERMINATING,  JobsChanged,    S.PENDING,     wait_for_trigger, scheduled_and_ended),
    Row(S.TERMINATING,  JobsChanged,    S.DONE,        finish,           finished_done),
    Row(S.TERMINATING,  JobsChanged,    S.FAILED,      finish,           finished_failed),
    Row(S.TERMINATING,  JobsChanged,    S.TERMINATED,  finish,           all_finished),
), stale=(
    pairs(FINISHED, *EVENTS)
    | pairs(UNFINISHED, *ASKED)
    | pairs(ACTIVE, JobsChanged, TimeUp, ReplicasWanted, Swept)
    | pairs((S.PENDING,), JobsChanged, TimeUp, ReplicasWanted, Swept)
    | pairs((S.TERMINATING,), JobsChanged, StopAsked, AbortAsked, Broke, ReplicasWanted, TimeUp)
))  # fmt: skip
