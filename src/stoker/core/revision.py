"""What may change of a run while it lives: its policy, replaced as a whole, and whether it is held."""

from dataclasses import replace

from stoker.core.machine import Event, Then, ask
from stoker.core.policy import Policy
from stoker.core.round import returns
from stoker.core.run_facts import HoldAsked, ReleaseAsked, Repolicy, Revised, Run, S
from stoker.core.schedule import next_after


def revised(current: Policy, wanted: Policy, *, hold_too: bool) -> Policy:
    """What a changed configuration makes of a policy: what people did by hand stays, unless the file speaks of it, and
    what no file speaks of."""
    schedule = wanted.schedule
    if schedule is not None:
        schedule = None if current.schedule is None else replace(schedule, paused=current.schedule.paused)
    hold = wanted.hold if hold_too else current.hold
    return replace(
        wanted,
        schedule=schedule,
        hold=hold,
        only=current.only,
        retry_of=current.retry_of,
        volumes=current.volumes,
        fleets=current.fleets,
    )


def revise(run: Run, event: Revised, now: float) -> Then:
    was, schedule = run.policy.schedule, event.policy.schedule
    trigger_at = run.trigger_at
    if was is not None and schedule is not None and (was.lines, was.zone) != (schedule.lines, schedule.zone):
        trigger_at = None if schedule.paused else next_after(schedule, now)
    return ask(Repolicy(), policy=event.policy, trigger_at=trigger_at, note=event.note)


def hold(run: Run, event: HoldAsked, now: float) -> Then:
    return ask(Repolicy(), policy=replace(run.policy, hold=True), note="held")


def release(run: Run, event: ReleaseAsked, now: float) -> Then:
    return ask(Repolicy(), policy=replace(run.policy, hold=False), note="released")


# When rows apply.


def as_seen(run: Run, event: Revised, now: float) -> bool:
    """Whoever wants the change has seen the run as it is: of two at once, one wins."""
    return run.version == event.version


def returns_as_seen(run: Run, event: Revised, now: float) -> bool:
    return returns(run) and as_seen(run, event, now)


def waits(run: Run, event: Event, now: float) -> bool:
    """Something of it has not begun yet, so there is something to hold."""
    return not run.policy.hold and (run.state is S.PENDING or run.tally.submitted > 0)


def held(run: Run, event: Event, now: float) -> bool:
    return run.policy.hold
