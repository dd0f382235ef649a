"""The life of a volume: a place for data that outlives jobs, from the wish for it until nothing of it is left.

It is attached by the commit that gives a job its machine and detached by the one that releases the job, so who has it
is never in doubt; nobody holds one that is not ACTIVE when the job is placed, and none is deleted while somebody
holds it. A local one is where its first job landed, and from then on nowhere else.
"""

from stoker.core.limits import LAUNCH_S
from stoker.core.machine import Machine, Row, Then, TimeUp, ask, nothing, pairs, rows
from stoker.core.volume_facts import (
    COMING,
    THERE,
    Accepted,
    Attached,
    AwaitVolume,
    DeleteAsked,
    Detached,
    Kind,
    Lost,
    Provisioned,
    ProvisionFailed,
    Removed,
    RemoveVolume,
    S,
    Volume,
)

__all__ = ["VOLUME", "S", "Volume", "deadline", "free_for"]


def accept(volume: Volume, event: Accepted, now: float) -> Then:
    return ask(AwaitVolume(), handle=event.handle)


def fail(volume: Volume, event: ProvisionFailed, now: float) -> Then:
    return ask(message=event.message, note=event.message)


def give_up(volume: Volume, event: TimeUp, now: float) -> Then:
    message = f"it was not there within {LAUNCH_S:g} s"
    return ask(message=message, note=message)


def attach(volume: Volume, event: Attached, now: float) -> Then:
    home = event.instance_id if volume.kind is Kind.LOCAL else None
    return ask(held=(*volume.held, event.job_id), instance_id=home)


def detach(volume: Volume, event: Detached, now: float) -> Then:
    held = tuple(job for job in volume.held if job != event.job_id)
    return ask(held=held, used=volume.used or event.ran)


def unsettle(volume: Volume, event: Detached, now: float) -> Then:
    """The machine that was kept for its first job never came, so nothing of it was made there."""
    return ask(held=(), instance_id=None)


def lose(volume: Volume, event: Lost, now: float) -> Then:
    message = event.message or "the instance that it was on is gone"
    return ask(message=message, note=message)


def settle_anew(volume: Volume, event: Lost, now: float) -> Then:
    return ask(instance_id=None, note="its instance is gone; nothing was in it yet")


def remove(volume: Volume, event: DeleteAsked, now: float) -> Then:
    return ask(RemoveVolume(), note="deleted")


# When rows apply.


def free_for(volume: Volume, event: Attached, now: float) -> bool:
    """Nobody else has it, where it is for one; and it is there, where it is in one place."""
    if event.job_id in volume.held or (volume.exclusive and volume.held):
        return False
    return volume.instance_id in (None, event.instance_id)


def holds(volume: Volume, event: Detached, now: float) -> bool:
    return event.job_id in volume.held


def first_never_came(volume: Volume, event: Detached, now: float) -> bool:
    return volume.held == (event.job_id,) and movable(volume) and not event.began


def movable(volume: Volume) -> bool:
    return volume.kind is Kind.LOCAL and not volume.named and not volume.used


def unheld(volume: Volume, event: DeleteAsked, now: float) -> bool:
    return not volume.held


def there(volume: Volume, event: Lost, now: float) -> bool:
    """Its jobs are told first, and release it; it is said again."""
    return volume.instance_id == event.instance_id and not volume.held


def there_and_empty(volume: Volume, event: Lost, now: float) -> bool:
    return there(volume, event, now) and movable(volume)


def late(volume: Volume, event: TimeUp, now: float) -> bool:
    return (at := deadline(volume)) is not None and at <= now


def deadline(volume: Volume) -> float | None:
    return volume.entered_at + LAUNCH_S if volume.state in COMING else None


EVENTS = (Accepted, Provisioned, ProvisionFailed, Attached, Detached, Lost, DeleteAsked, Removed, TimeUp)

VOLUME: Machine[Volume] = Machine("volume", (S.SUBMITTED,), (
    #   from            event            to              then         when
    Row(S.SUBMITTED,    Accepted,        S.PROVISIONING, accept),
    *rows(COMING,       Provisioned,     S.ACTIVE,       nothing),
    *rows(COMING,       ProvisionFailed, S.FAILED,       fail),
    *rows(COMING,       TimeUp,          S.FAILED,       give_up,     late),
    *rows(COMING,       DeleteAsked,     S.DELETING,     remove),
    Row(S.ACTIVE,       Attached,        S.ACTIVE,       attach,      free_for),
    Row(S.ACTIVE,       Detached,        S.ACTIVE,       unsettle,    first_never_came),
    Row(S.ACTIVE,       Detached,        S.ACTIVE,       detach,      holds),
    Row(S.ACTIVE,       Lost,            S.ACTIVE,       settle_anew, there_and_empty),
    Row(S.ACTIVE,       Lost,            S.FAILED,       lose,        there),
    *rows(THERE,        DeleteAsked,     S.DELETING,     remove,      unheld),
    Row(S.DELETING,     Removed,         S.DELETED,      nothing),
), stale=(
    pairs((S.DELETED,), *(event for event in EVENTS if event is not Attached))
    | pairs((S.DELETING,), *(event for event in EVENTS if event not in (Attached, Removed)))
    | pairs(THERE, Accepted, Provisioned, ProvisionFailed, Detached, Lost, TimeUp)
    | pairs(COMING, Accepted, Lost, Detached, TimeUp)
))  # fmt: skip
