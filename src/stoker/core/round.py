"""The rounds of a scheduled run: when one begins, what a trigger does while another runs, and how a schedule pauses.

A trigger is never repeated: where the clock is set back, the next one is the one that was computed before.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from stoker.core.machine import Event, Then, TimeUp, ask
from stoker.core.reason import RunReason
from stoker.core.run_facts import (
    PauseAsked,
    Repolicy,
    Resubmit,
    ResumeAsked,
    Run,
    Scale,
    TellOwner,
    TriggerAsked,
)
from stoker.core.schedule import Overlap, next_after

USER: Final = (RunReason.STOPPED_BY_USER, RunReason.ABORTED_BY_USER)
TRIGGERED: Final = "triggered"
SKIPPED: Final = "trigger skipped: the last round still runs"
QUEUED: Final = "trigger waits for the last round"
LATE_S: Final = 60.0
"""A trigger that comes later than this says so: nobody was there when it was due."""


def trigger(run: Run, event: TimeUp | TriggerAsked, now: float) -> Then:
    return ask(Resubmit(), Scale(), round=run.round + 1, trigger_at=following(run, now), queued=False, backoff_step=0,
               reason=None, cause=None, exit_code=None, message="", note=_triggered(run, event, now))  # fmt: skip


def _triggered(run: Run, event: TimeUp | TriggerAsked, now: float) -> str:
    if isinstance(event, TriggerAsked) or run.trigger_at is None or now - run.trigger_at < LATE_S:
        return TRIGGERED
    return f"{TRIGGERED} late: it was due at {datetime.fromtimestamp(run.trigger_at, UTC):%Y-%m-%d %H:%M} UTC"


def skip_trigger(run: Run, event: Event, now: float) -> Then:
    return ask(trigger_at=following(run, now), note=SKIPPED)


def queue_trigger(run: Run, event: Event, now: float) -> Then:
    return ask(trigger_at=following(run, now), queued=True, note=QUEUED)


def following(run: Run, now: float) -> float | None:
    """The next trigger: the one it waits for already, unless that has passed."""
    schedule = run.policy.schedule
    if schedule is None or schedule.paused:
        return None
    return run.trigger_at if run.trigger_at is not None and run.trigger_at > now else next_after(schedule, now)


def wait_for_trigger(run: Run, event: Event, now: float) -> Then:
    # The last round also runs while it ends.
    at = now if run.queued or triggered_and_queues(run, event, now) else following(run, now)
    skipped = f"; {SKIPPED}" if trigger_due(run, now) and at != now else ""
    tell = () if run.owner_id is None else (TellOwner(),)
    note = f"round {run.round} ended: {run.reason}{skipped}"
    return ask(*tell, trigger_at=at, queued=False, last_reason=run.reason, note=note)


def pause(run: Run, event: PauseAsked, now: float) -> Then:
    """What waits for the last round is forgotten too: a paused schedule triggers nothing."""
    return _schedule(run, paused=True, trigger_at=None)


def unpause(run: Run, event: ResumeAsked, now: float) -> Then:
    assert run.policy.schedule is not None
    return _schedule(run, paused=False, trigger_at=next_after(run.policy.schedule, now))


def _schedule(run: Run, *, paused: bool, trigger_at: float | None) -> Then:
    assert run.policy.schedule is not None
    policy = replace(run.policy, schedule=replace(run.policy.schedule, paused=paused))
    note = "its schedule is paused" if paused else "its schedule goes on"
    return ask(Repolicy(), policy=policy, trigger_at=trigger_at, queued=False, note=note)


# When rows apply.


def returns(run: Run) -> bool:
    return run.policy.schedule is not None and run.reason not in USER


def scheduled(run: Run, event: Event, now: float) -> bool:
    return run.policy.schedule is not None


def goes_on(run: Run, event: Event, now: float) -> bool:
    return returns(run) and run.policy.schedule is not None and not run.policy.schedule.paused


def pauses(run: Run, event: Event, now: float) -> bool:
    return returns(run) and run.policy.schedule is not None and run.policy.schedule.paused


def queues(run: Run, event: Event, now: float) -> bool:
    return returns(run) and run.policy.schedule is not None and run.policy.schedule.overlap is Overlap.QUEUE


def backs_off(run: Run, event: Event, now: float) -> bool:
    """Its round is not over: a retry is to come."""
    return scheduled(run, event, now) and run.resume_at is not None


def backs_off_and_queues(run: Run, event: Event, now: float) -> bool:
    return run.resume_at is not None and queues(run, event, now)


def triggered(run: Run, event: TimeUp, now: float) -> bool:
    return run.resume_at is None and trigger_due(run, now)


def trigger_due(run: Run, now: float) -> bool:
    return run.trigger_at is not None and run.trigger_at <= now


def triggered_and_queues(run: Run, event: Event, now: float) -> bool:
    schedule = run.policy.schedule
    return trigger_due(run, now) and schedule is not None and schedule.overlap is Overlap.QUEUE


def triggered_meanwhile(run: Run, event: TimeUp, now: float) -> bool:
    return trigger_due(run, now)


def returns_to_schedule(run: Run, event: Event, now: float) -> bool:
    return returns(run)
