"""How a job ends: the terminating phase, step by step in the order of `Cleanup`, and its deadlines."""

from typing import Any

from stoker.core.evolve import evolve
from stoker.core.job_facts import (
    AgentFailed,
    AskStop,
    CleanedUp,
    Cleanup,
    DetachVolumes,
    Exited,
    Freed,
    GraceCut,
    InstanceGone,
    Job,
    LimitExceeded,
    Release,
    Released,
    RemoveTask,
    S,
    Unregister,
)
from stoker.core.limits import LAUNCH_S, PROVIDER_SILENCE_S, UNREGISTER_S
from stoker.core.machine import Effect, Event, Send, Then, TimeUp, ask
from stoker.core.reason import CONSEQUENCES, JobEnd, JobReason
from stoker.core.retry import Budget, Fate, judge
from stoker.core.volume_facts import Detached

ORDER = tuple(Cleanup)


def end(
    job: Job,
    reason: JobReason,
    now: float,
    *,
    fate: Fate | None = None,
    budget: Budget | None = None,
    message: str = "",
    exit_code: int | None = None,
    exit_signal: int | None = None,
    exited_at: float | None = None,
    gone: bool = False,
) -> Then:
    """Enter the terminating phase; the job's fate for its run is decided here, once."""
    budget = budget or job.budget.ran(evolve(job, {"exited_at": exited_at}).ran_s(now))
    if fate is None:
        verdict = judge(job.policy.retry, reason, exit_code, budget, now)
        fate, budget = verdict.fate, verdict.budget
    grace_s = 0.0 if reason is JobReason.ABORTED_BY_USER else job.policy.stop_duration_s
    first = next_cleanup(job, None, exited=exited_at is not None, gone=gone)
    fields = {
        "reason": reason, "message": message, "fate": fate, "budget": budget, "exit_code": exit_code,
        "exit_signal": exit_signal, "exited_at": exited_at, "gone": gone, "cleanup": first, "remove_at": now + grace_s,
    }  # fmt: skip
    note = message or reason
    if first is Cleanup.RELEASE and job.instance_id is None:
        return Then(fields, (), (Send("job", job.id, Released()),), note)
    return Then(fields, (wish(job, first, now, exited=exited_at is not None, grace_s=grace_s),), (), note)


def next_cleanup(job: Job, after: Cleanup | None, *, exited: bool, gone: bool) -> Cleanup:
    """The first step after this one that has something to do."""
    placed = job.state is not S.SUBMITTED and job.instance_id is not None
    needed = {
        Cleanup.UNREGISTER: job.policy.service and job.running_at is not None,
        Cleanup.STOP: job.running_at is not None and not exited and not gone,
        # A task may exist though its acceptance was never heard: only a machine that is gone needs no removal.
        Cleanup.REMOVE: placed and not gone,
        Cleanup.DETACH: placed and bool(job.policy.volumes),
        Cleanup.RELEASE: True,
    }
    start = 0 if after is None else ORDER.index(after) + 1
    return next(step for step in ORDER[start:] if needed[step])


def wish(job: Job, step: Cleanup, now: float, *, exited: bool, grace_s: float = 0.0) -> Effect:
    """`grace_s`: of what may run though nobody has heard that it began."""
    match step:
        case Cleanup.UNREGISTER:
            return Unregister()
        case Cleanup.STOP:
            return AskStop(grace_s=job.policy.stop_duration_s)
        case Cleanup.REMOVE:
            return RemoveTask(known=exited, grace_s=grace_s if job.running_at is None and not exited else 0.0)
        case Cleanup.DETACH:
            return DetachVolumes(force_at=now + job.policy.detach_limit_s)
        case Cleanup.RELEASE:
            return Release()


def advance(job: Job, now: float, *, note: str = "", **fields: Any) -> Then:
    """One cleanup step is done: wish for the next, or give everything back."""
    exited = job.exited or "exited_at" in fields
    gone = bool(fields.get("gone", job.gone))
    released = (Send("job", job.id, Released()),)
    if job.cleanup is Cleanup.RELEASE:
        return ask(sends=released, note=note, **fields)
    step = next_cleanup(job, job.cleanup, exited=exited, gone=gone)
    if step is Cleanup.RELEASE:
        return ask(sends=released, note=note, cleanup=step, **fields)
    if step is Cleanup.STOP and not cut_short(job):
        # The time that its gateway took is not taken from the program's grace.
        fields["remove_at"] = now + job.policy.stop_duration_s
    return ask(wish(job, step, now, exited=exited), note=note, cleanup=step, **fields)


def clean_on(job: Job, event: CleanedUp, now: float) -> Then:
    return advance(job, now)


def unregistered_or_not(job: Job, event: TimeUp, now: float) -> Then:
    return advance(job, now, note=f"its gateway did not answer within {UNREGISTER_S:g} s")


def stopped(job: Job, event: Exited, now: float) -> Then:
    return advance(job, now, **exit_of(job, event, now))


def stopped_by_limit(job: Job, event: LimitExceeded, now: float) -> Then:
    """Its agent was faster than our wish to stop it."""
    assert event.ended is not None
    return advance(job, now, note=event.message, **exit_of(job, event.ended, now))


def nobody_to_stop(job: Job, event: AgentFailed, now: float) -> Then:
    """Its runner has died, by a reboot for example, so nobody will tell of its exit."""
    return advance(job, now, note=event.message)


def note_exit(job: Job, event: Exited, now: float) -> Then:
    return ask(**exit_of(job, event, now))


def note_limit(job: Job, event: LimitExceeded, now: float) -> Then:
    assert event.ended is not None
    return ask(**exit_of(job, event.ended, now))


def exit_of(job: Job, event: Exited, now: float) -> dict[str, Any]:
    """Clocks of hosts jump: it did not end before it ran."""
    exited_at = max(now - max(0.0, event.ago_s), job.running_at or job.submitted_at)
    return {"exited_at": min(exited_at, now), "exit_code": event.exit_code, "exit_signal": event.signal}


def grace_over(job: Job, event: TimeUp, now: float) -> Then:
    return advance(job, now, note="grace period over")


def given_up(job: Job, event: TimeUp, now: float) -> Then:
    return advance(job, now, gone=True, note="its agent has stopped it by its own clock")


def machine_gone(job: Job, event: InstanceGone, now: float) -> Then:
    return advance(job, now, gone=True, note=event.message or "its machine is gone")


def note_gone(job: Job, event: InstanceGone, now: float) -> Then:
    return ask(gone=True, note=event.message or "its machine is gone")


def cut_grace(job: Job, event: GraceCut, now: float) -> Then:
    reason = JobReason.ABORTED_BY_USER if job.reason is JobReason.TERMINATED_BY_USER else job.reason
    if job.cleanup is Cleanup.STOP:
        return advance(job, now, reason=reason, remove_at=now, note="aborted")
    wishes = (RemoveTask(),) if job.cleanup is Cleanup.REMOVE and job.running_at is None else ()
    return ask(*wishes, reason=reason, remove_at=now, note="aborted")


def finish(job: Job, event: Released, now: float) -> Then:
    """Every finished status is assigned by a row that does this."""
    if job.instance_id is None:
        return ask()
    return ask(sends=(Send("instance", job.instance_id, Freed(job.id)), *detached(job, began=True)))


def detached(job: Job, *, began: bool) -> tuple[Send, ...]:
    """Its volumes are given back with its blocks."""
    gone = Detached(job.id, began, job.running_at is not None)
    return tuple(Send("volume", volume, gone) for volume in job.policy.volumes)


def stopping(job: Job, event: Event, now: float) -> bool:
    return job.cleanup is Cleanup.STOP


def stopping_one_that_ended(job: Job, event: LimitExceeded, now: float) -> bool:
    return job.cleanup is Cleanup.STOP and event.ended is not None


def ended_unnoticed(job: Job, event: LimitExceeded, now: float) -> bool:
    return event.ended is not None and not job.exited


def unregistering_too_long(job: Job, event: TimeUp, now: float) -> bool:
    return passed(unregister_at(job), now)


def not_exited(job: Job, event: Event, now: float) -> bool:
    return not job.exited


def unregistering_there(job: Job, event: InstanceGone, now: float) -> bool:
    return job.cleanup is Cleanup.UNREGISTER and not job.gone and job.instance_id == event.instance_id


def stopping_too_long(job: Job, event: TimeUp, now: float) -> bool:
    return job.cleanup is Cleanup.STOP and passed(job.remove_at, now)


def cleaned_on_host(job: Job) -> bool:
    return job.cleanup in (Cleanup.STOP, Cleanup.REMOVE) and not job.gone


def on_that_machine(job: Job, event: InstanceGone, now: float) -> bool:
    return cleaned_on_host(job) and job.instance_id == event.instance_id


def stopped_itself(job: Job, event: TimeUp, now: float) -> bool:
    return cleaned_on_host(job) and passed(own_clock_at(job), now)


def that_step(job: Job, event: CleanedUp, now: float) -> bool:
    return job.cleanup is event.step


def not_aborted(job: Job, event: Event, now: float) -> bool:
    return job.reason is not JobReason.ABORTED_BY_USER


def ends_done(job: Job, event: Released, now: float) -> bool:
    return ends(job) is JobEnd.DONE


def ends_failed(job: Job, event: Released, now: float) -> bool:
    return ends(job) is JobEnd.FAILED


def ends_aborted(job: Job, event: Released, now: float) -> bool:
    return ends(job) is JobEnd.ABORTED


def ends(job: Job) -> JobEnd | None:
    return None if job.reason is None else CONSEQUENCES[job.reason].ends


def passed(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def max_duration_at(job: Job) -> float | None:
    limit_s = job.policy.max_duration_s
    return None if limit_s is None or job.running_at is None else job.running_at + limit_s


def start_timeout_at(job: Job) -> float | None:
    """It waits since it was submitted, or released; as long as it is held it waits for nothing."""
    limit_s = job.policy.start_timeout_s
    return None if limit_s is None or job.policy.hold else max(job.submitted_at, job.entered_at) + limit_s


def silence_at(job: Job) -> float | None:
    """When a silent job is given up: by its policy, by the limit of a provider's machine, or never."""
    if job.unreachable_since is None:
        return None
    if job.policy.disconnect is not None:
        return job.unreachable_since + job.policy.disconnect.fail_after_s
    return None if job.owned else job.unreachable_since + PROVIDER_SILENCE_S


def unregister_at(job: Job) -> float | None:
    """It is the first step, so it began when the job began to end."""
    return job.entered_at + UNREGISTER_S if job.cleanup is Cleanup.UNREGISTER else None


def cut_short(job: Job) -> bool:
    """It has another grace than that of its policy: it was aborted."""
    return job.remove_at != job.entered_at + job.policy.stop_duration_s


def others_s(job: Job) -> float:
    """How long the other nodes of its replica may take to be there; each has limits of its own."""
    return 0.0 if job.policy.nodes == 1 else LAUNCH_S + job.policy.waiting_instance_s


def own_clock_at(job: Job) -> float | None:
    """When the agent has certainly stopped the job by itself; only an opted-in agent ever does."""
    if job.unreachable_since is None or job.policy.disconnect is None:
        return None
    return job.unreachable_since + job.policy.disconnect.fail_after_s


def deadline(job: Job) -> float | None:
    """The moment at which TimeUp would find something to do."""
    match job.state:
        case S.SUBMITTED:
            return earliest(start_timeout_at(job), job.ready_at)
        case S.PROVISIONING:
            return job.entered_at + job.policy.waiting_instance_s
        case S.PULLING:
            return job.entered_at + job.policy.waiting_runner_s + others_s(job)
        case S.RUNNING:
            return earliest(max_duration_at(job), silence_at(job), job.leave_at)
        case S.TERMINATING:
            remove_at = job.remove_at if job.cleanup is Cleanup.STOP else None
            return earliest(unregister_at(job), remove_at, own_clock_at(job) if cleaned_on_host(job) else None)
        case _:
            return None
