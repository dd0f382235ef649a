"""What the volumes of a job mean for its placement: where it has to go, whom it waits for, and why it cannot go at
all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.core.gang import Claim
from stoker.core.ids import FleetId, InstanceId, JobId
from stoker.core.volume_facts import COMING, Kind, S, Volume


@dataclass(frozen=True, slots=True)
class Tie:
    only: InstanceId | None = None
    tied: str = ""
    claims: tuple[Claim, ...] = ()
    fleets: frozenset[FleetId] | None = None
    """Where a local one that is nowhere yet may be made; None: anywhere."""
    barred: str = ""
    hopeless: bool = False
    """It would wait for ever."""


FREE = Tie()


def tie(volumes: Sequence[Volume | None], names: Mapping[InstanceId, str], users: Mapping[JobId, str]) -> Tie:
    """`names` of unfinished instances, `users`: jobs to which volumes are attached. None: a volume that is no more."""
    for one in volumes:
        if hopeless := _hopeless(one):
            return Tie(barred=hopeless, hopeless=True)
    for one in volumes:
        if one is not None and (barred := _barred(one, names, users)):
            return Tie(barred=barred)
    there = [one for one in volumes if one is not None]
    settled = [one for one in there if one.instance_id is not None]
    if len({one.instance_id for one in settled}) > 1:
        first, other = settled[0], next(one for one in settled if one.instance_id != settled[0].instance_id)
        return Tie(
            barred=f"volume {first.name} is on {_where(first, names)}, volume {other.name} on {_where(other, names)}",
            hopeless=True,
        )
    # One that is nowhere yet goes where the first job lands that wants it: a second one has to see where that was.
    open_ = [one for one in there if one.kind is Kind.LOCAL and one.instance_id is None]
    fleets = {one.fleet_id for one in open_ if one.fleet_id is not None}
    return Tie(
        only=settled[0].instance_id if settled else None,
        tied=f"volume {settled[0].name} is on {_where(settled[0], names)}" if settled else "",
        claims=tuple(Claim(one.id, one.name) for one in there if one.exclusive or one in open_),
        fleets=None if not fleets else frozenset(fleets if len(fleets) == 1 else ()),
    )


def _hopeless(one: Volume | None) -> str:
    if one is None:
        return "a volume of it is not there any more"
    match one.state:
        case S.DELETED:
            return f"volume {one.name} is not there any more"
        case S.DELETING:
            return f"volume {one.name} is being deleted"
        case S.FAILED:
            return f"volume {one.name} has failed: {one.message}"
    return ""


def _barred(one: Volume, names: Mapping[InstanceId, str], users: Mapping[JobId, str]) -> str:
    if one.state in COMING:
        return f"volume {one.name} is not there yet, it is {one.state}"
    if one.exclusive and one.held:
        who = users.get(one.held[0], "another job")
        return f"volume {one.name} is attached to {who}, and only one job may have it at a time"
    if one.instance_id is not None and one.instance_id not in names:
        return f"volume {one.name} is on an instance that is gone"
    return ""


def _where(one: Volume, names: Mapping[InstanceId, str]) -> str:
    return names[one.instance_id] if one.instance_id is not None else ""
