"""The life of an instance: a machine that can run jobs, from the wish for it until it is certainly gone.

The row exists before a provider is asked, and stays unfinished until the provider (or the host's own
agent, or a person) confirms that the machine is gone: nothing we started is ever forgotten.
"""

import math
from dataclasses import replace

from stoker.core.block import Blocks
from stoker.core.instance_facts import (
    COMING,
    LIVE,
    UP,
    CordonAsked,
    DeleteAsked,
    Destroy,
    Destroyed,
    Divided,
    DrainAsked,
    Examined,
    Gone,
    Heard,
    Instance,
    Launched,
    PreemptionNoticed,
    Refused,
    S,
    ShimAnswered,
    Silent,
    TellJobs,
    Tidings,
    Unwanted,
)
from stoker.core.job_facts import Freed, Taken
from stoker.core.limits import LAUNCH_S, LEAVING_GRACE_S, PROVIDER_SILENCE_S
from stoker.core.machine import Event, Machine, Row, Then, TimeUp, ask, pairs, rows, stay


def take(instance: Instance, event: Taken, now: float) -> Then:
    # A job that was reserved when the launch was already accepted would wait for news that has passed.
    missed = event.reserved and instance.state is not S.PENDING
    told = (TellJobs(Tidings.PLACED),) if missed else ()
    return ask(*told, blocks=instance.blocks.hold(event.job_id, event.blocks))


def give(instance: Instance, event: Freed, now: float) -> Then:
    return ask(blocks=instance.blocks.give(event.job_id))


def launched(instance: Instance, event: Launched, now: float) -> Then:
    if instance.unmet and event.capacity is not None:
        # Nothing was placed on it before.
        return ask(handle=event.handle, launched_at=now, blocks=Blocks(event.capacity, event.total))
    return ask(TellJobs(Tidings.PLACED), handle=event.handle, launched_at=now)


def answered(instance: Instance, event: ShimAnswered, now: float) -> Then:
    # Once more: the word of the launch is not current any more if nobody passed it on before this one came.
    told = (TellJobs(Tidings.PLACED),) if instance.blocks.held else ()
    return ask(*told, unreachable_since=None)


def mark_silent(instance: Instance, event: Silent, now: float) -> Then:
    return ask(unreachable_since=now, note="unreachable")


def mark_heard(instance: Instance, event: Heard, now: float) -> Then:
    return ask(unreachable_since=None, note="reachable again")


def note_health(instance: Instance, event: Examined, now: float) -> Then:
    """What runs there runs on: it may need nothing of what is wrong, and only its owner knows."""
    notes: list[str] = []
    capacity = instance.blocks.capacity
    if event.health != instance.health:
        notes.append(f"unhealthy: {event.health}" if event.health else "well again")
    if engine_changed(instance, event):
        capacity = replace(capacity, docker=event.docker is True)
        notes.append("has a container engine" if event.docker else "its container engine does not answer")
    blocks = Blocks(capacity, instance.blocks.total, instance.blocks.held)
    return ask(health=event.health, blocks=blocks, note="; ".join(notes))


def keep_handle(instance: Instance, event: Launched, now: float) -> Then:
    return ask(handle=event.handle)


def cordon(instance: Instance, event: CordonAsked, now: float) -> Then:
    drain_at = instance.drain_at if event.on else None
    told = (TellJobs(Tidings.DRAINING),) if drain_at != instance.drain_at else ()
    return ask(*told, cordoned=event.on, drain_at=drain_at, note="cordoned" if event.on else "open again")


def drain(instance: Instance, event: DrainAsked, now: float) -> Then:
    return ask(TellJobs(Tidings.DRAINING), cordoned=True, drain_at=event.deadline_at, note="draining")


def redivide(instance: Instance, event: Divided, now: float) -> Then:
    note = f"divided into {event.total} blocks"
    return ask(blocks=Blocks(instance.blocks.capacity, event.total), note=note)


def end(
    instance: Instance,
    message: str,
    now: float,
    grace_s: float,
    *,
    failed: bool = False,
    tidings: Tidings = Tidings.INTERRUPTED,
) -> Then:
    """Jobs on it get their grace before the machine is destroyed; on one that is still coming nothing runs yet."""
    failed_at = now if failed else instance.failed_at
    if grace_s > 0 and instance.blocks.held and instance.state in UP:
        return ask(TellJobs(tidings), message=message, note=message, failed_at=failed_at, destroy_at=now + grace_s)
    return ask(TellJobs(Tidings.INTERRUPTED), Destroy(), message=message, note=message, failed_at=failed_at)


def end_refused(instance: Instance, event: Refused, now: float) -> Then:
    return end(instance, event.message or "the provider refused", now, 0, failed=True)


def end_gone(instance: Instance, event: Gone, now: float) -> Then:
    return ask(
        TellJobs(Tidings.GONE), Destroy(), destroy_at=None, failed_at=now, message=event.message, note=event.message
    )


def end_preempted(instance: Instance, event: PreemptionNoticed, now: float) -> Then:
    return end(instance, "preempted", now, event.notice_s, failed=True, tidings=Tidings.NOTICED)


def end_deleted(instance: Instance, event: DeleteAsked, now: float) -> Then:
    return end(instance, "deleted", now, LEAVING_GRACE_S)


def end_unwanted(instance: Instance, event: Unwanted, now: float) -> Then:
    return end(instance, event.message or "not wanted any more", now, LEAVING_GRACE_S)


def end_drained(instance: Instance, event: Event, now: float) -> Then:
    return end(instance, "drained", now, LEAVING_GRACE_S)


def end_drained_last(instance: Instance, event: Freed, now: float) -> Then:
    return ask(Destroy(), blocks=instance.blocks.give(event.job_id), message="drained", note="drained")


def end_unanswered(instance: Instance, event: TimeUp, now: float) -> Then:
    """Like a refusal: a provider that does not answer may yet create what it was asked for."""
    who = "shim" if instance.state is S.PROVISIONING else "host" if instance.owned else "provider"
    return end(instance, f"no {who} answered within {answer_limit_s(instance):g} s", now, 0, failed=True)


def end_lost(instance: Instance, event: TimeUp, now: float) -> Then:
    return end(instance, f"unreachable for {PROVIDER_SILENCE_S:g} s", now, 0, failed=True)


def destroy_now(instance: Instance, event: TimeUp, now: float) -> Then:
    return ask(Destroy(), destroy_at=None, note="jobs had their grace")


def destroy_empty(instance: Instance, event: Freed, now: float) -> Then:
    return ask(Destroy(), destroy_at=None, blocks=instance.blocks.give(event.job_id))


def bury(instance: Instance, event: Event, now: float) -> Then:
    """What still stood on it fell with it: the jobs are told, and release nothing any more."""
    empty = Blocks(instance.blocks.capacity, instance.blocks.total)
    return ask(TellJobs(Tidings.GONE), blocks=empty, destroy_at=None, ended_at=now)


# When rows apply.


def has_room(instance: Instance, event: Taken, now: float) -> bool:
    return instance.open and all(instance.blocks.free >> number & 1 for number in event.blocks)


def holds(instance: Instance, event: Freed, now: float) -> bool:
    return event.job_id in instance.blocks.held


def last_while_draining(instance: Instance, event: Freed, now: float) -> bool:
    return instance.drain_at is not None and last(instance, event, now)


def last(instance: Instance, event: Freed, now: float) -> bool:
    return set(instance.blocks.held) == {event.job_id}


def held(instance: Instance, event: Event, now: float) -> bool:
    return bool(instance.blocks.held)


def heard_before(instance: Instance, event: Event, now: float) -> bool:
    return instance.unreachable_since is None


def silent_before(instance: Instance, event: Event, now: float) -> bool:
    return instance.unreachable_since is not None


def health_changed(instance: Instance, event: Examined, now: float) -> bool:
    return instance.health != event.health or engine_changed(instance, event)


def engine_changed(instance: Instance, event: Examined) -> bool:
    return event.docker is not None and event.docker is not instance.blocks.capacity.docker


def forced(instance: Instance, event: DeleteAsked, now: float) -> bool:
    return event.force


def unheld(instance: Instance, event: Event, now: float) -> bool:
    return not instance.blocks.held


def divided_otherwise(instance: Instance, event: Divided, now: float) -> bool:
    return instance.blocks.total != event.total


def cordon_changes(instance: Instance, event: CordonAsked, now: float) -> bool:
    return instance.cordoned is not event.on


def unanswered(instance: Instance, event: TimeUp, now: float) -> bool:
    return now >= instance.entered_at + answer_limit_s(instance)


def answer_limit_s(instance: Instance) -> float:
    if instance.unmet:
        # A host that is switched off is waited for.
        return math.inf
    return LAUNCH_S if instance.state is S.PENDING else instance.provisioning_limit_s


def drain_over(instance: Instance, event: TimeUp, now: float) -> bool:
    return instance.drain_at is not None and now >= instance.drain_at


def grace_over(instance: Instance, event: TimeUp, now: float) -> bool:
    return instance.destroy_at is not None and now >= instance.destroy_at


def in_grace(instance: Instance, event: Event, now: float) -> bool:
    return instance.destroy_at is not None


def last_in_grace(instance: Instance, event: Freed, now: float) -> bool:
    return in_grace(instance, event, now) and last(instance, event, now)


def silent_too_long(instance: Instance, event: TimeUp, now: float) -> bool:
    return (at := silence_at(instance)) is not None and now >= at


def silence_at(instance: Instance) -> float | None:
    if instance.owned or instance.unreachable_since is None:
        return None
    # Jobs on it are given up first, each for its own reason.
    return instance.unreachable_since + PROVIDER_SILENCE_S + (LEAVING_GRACE_S if instance.blocks.held else 0)


def deadline(instance: Instance) -> float | None:
    match instance.state:
        case S.PENDING | S.PROVISIONING:
            at = instance.entered_at + answer_limit_s(instance)
            return None if math.isinf(at) else at
        case S.IDLE | S.BUSY:
            return min((at for at in (instance.drain_at, silence_at(instance)) if at is not None), default=None)
        case S.TERMINATING | S.TERMINATED:
            return instance.destroy_at


EVENTS = (Taken, Freed, Launched, Refused, ShimAnswered, Silent, Heard, Examined, PreemptionNoticed, Gone,
          CordonAsked, DrainAsked, DeleteAsked, Unwanted, Divided, Destroyed, TimeUp)  # fmt: skip

INSTANCE: Machine[Instance] = Machine("instance", (S.PENDING,), (
    #   from            event              to              then              when
    Row(S.PENDING,      Launched,          S.PROVISIONING, launched),
    Row(S.PENDING,      Refused,           S.TERMINATING,  end_refused),
    Row(S.PROVISIONING, ShimAnswered,      S.BUSY,         answered,         held),
    Row(S.PROVISIONING, ShimAnswered,      S.IDLE,         answered),
    *rows(COMING,       TimeUp,            S.TERMINATING,  end_unanswered,   unanswered),
    *stay(COMING,       Taken,                             take,             has_room),
    *stay(COMING,       Freed,                             give,             holds),
    *rows(COMING,       Unwanted,          S.TERMINATING,  end_unwanted,     unheld),
    *rows(COMING,       DeleteAsked,       S.TERMINATING,  end_deleted),
    *rows(COMING,       DrainAsked,        S.TERMINATING,  end_drained),
    Row(S.IDLE,         Taken,             S.BUSY,         take,             has_room),
    Row(S.IDLE,         Unwanted,          S.TERMINATING,  end_unwanted),
    Row(S.IDLE,         DeleteAsked,       S.TERMINATING,  end_deleted),
    Row(S.IDLE,         DrainAsked,        S.TERMINATING,  end_drained),
    Row(S.IDLE,         Divided,           S.IDLE,         redivide,         divided_otherwise),
    Row(S.BUSY,         Taken,             S.BUSY,         take,             has_room),
    Row(S.BUSY,         Freed,             S.TERMINATING,  end_drained_last, last_while_draining),
    Row(S.BUSY,         Freed,             S.IDLE,         give,             last),
    Row(S.BUSY,         Freed,             S.BUSY,         give,             holds),
    Row(S.BUSY,         DrainAsked,        S.BUSY,         drain),
    Row(S.BUSY,         DeleteAsked,       S.TERMINATING,  end_deleted,      forced),
    Row(S.BUSY,         TimeUp,            S.TERMINATING,  end_drained,      drain_over),
    *rows(UP,           TimeUp,            S.TERMINATING,  end_lost,         silent_too_long),
    *stay(LIVE,         CordonAsked,                       cordon,           cordon_changes),
    *stay(UP,           Silent,                            mark_silent,      heard_before),
    *stay(UP,           Heard,                             mark_heard,       silent_before),
    *stay(UP,           Examined,                          note_health,      health_changed),
    *rows(LIVE,         PreemptionNoticed, S.TERMINATING,  end_preempted),
    *rows(LIVE,         Gone,              S.TERMINATING,  end_gone),
    Row(S.TERMINATING,  Freed,             S.TERMINATING,  destroy_empty,    last_in_grace),
    Row(S.TERMINATING,  Freed,             S.TERMINATING,  give,             holds),
    Row(S.TERMINATING,  TimeUp,            S.TERMINATING,  destroy_now,      grace_over),
    Row(S.TERMINATING,  Gone,              S.TERMINATING,  end_gone,         in_grace),
    Row(S.TERMINATING,  Launched,          S.TERMINATING,  keep_handle),
    Row(S.TERMINATING,  Destroyed,         S.TERMINATED,   bury),
), stale=(
    pairs((S.TERMINATED,), *(event for event in EVENTS if event is not Taken))
    | pairs(LIVE, Freed, Unwanted, Divided, CordonAsked, Silent, Heard, Examined, TimeUp)
    | pairs((*UP, S.PROVISIONING), Launched, Refused)
    | pairs((*UP, S.PENDING), ShimAnswered)
    | pairs((S.TERMINATING,), *(event for event in EVENTS if event not in (Taken, Destroyed)))
))  # fmt: skip
