"""Why a gang was left waiting, as a value: a code for programs, a sentence and numbers for people."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from stoker.core.block import ENGINE, Misfit, busy, pick, shortage
from stoker.core.board import Board, Scope, Seat
from stoker.core.gang import Gang, InstanceRoom, ease
from stoker.core.ids import FleetId, InstanceId, ProjectId, RunId
from stoker.core.offer import FleetRoom
from stoker.core.phrase import counted, joined
from stoker.core.resources import Request

MAX_REASONS = 20
# The further down the list a machine fails, the closer it is to what was asked for.
_CLOSENESS = ("gpu", "cpu", "memory", "disk")


class WhyCode(Enum):
    NOT_READY = "not_ready"
    VOLUME = "volume"
    NO_FLEET = "no_fleet"
    NO_INSTANCE = "no_instance"
    OTHER_PROJECT = "other_project"
    IMPOSSIBLE = "impossible"
    BARRED = "barred"
    BUSY = "busy"
    KEPT = "kept"
    NEXT = "next"
    FLEET_LIMIT = "fleet_limit"
    NO_OFFER = "no_offer"


class Reason(NamedTuple):
    """What stands against one instance."""

    instance_id: InstanceId
    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Why:
    """`limit` names what is too small where nothing could ever fit. `place` of `of` left waiting, from 1.

    The sentence speaks of CPUs, memory and GPUs; `needs` and `has` are the numbers that were compared, which are blocks
    unless `limit` names something else.
    """

    run_id: RunId
    replica: int
    code: WhyCode
    sentence: str
    needs: float = 0
    has: float = 0
    limit: str = ""
    reasons: tuple[Reason, ...] = ()
    more: int = 0  # instances whose reason is not listed, where reasons are
    place: int = 0
    of: int = 0
    fail_now: bool = False

    def __str__(self) -> str:
        end = "fails now" if self.fail_now else f"{self.place} of {self.of} waiting"
        return f"run {self.run_id}/{self.replica}: {self.sentence} ({end})"


@dataclass(frozen=True, slots=True)
class Group:
    """Instances of one kind in one fleet, as the plan left them."""

    fleet_id: FleetId | None
    project_id: ProjectId | None
    kind: int
    usable: tuple[Seat, ...]  # with the most free first
    barred: tuple[InstanceRoom, ...]


class Refusal(NamedTuple):
    """Why nothing of one kind was launched in one fleet; the smallest `distance` came closest to a launch."""

    distance: int
    code: WhyCode
    sentence: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is left when the plan is made, grouped: thousands of gangs ask about the same few kinds."""

    board: Board
    groups: tuple[Group, ...]
    refusals: Mapping[tuple[FleetId, int], Refusal]
    kept: Mapping[int, int]  # how many instances are kept for a gang, by its `id()`


def outlook(board: Board) -> Outlook:
    alike: dict[tuple[FleetId | None, ProjectId | None, int], list[tuple[Seat, InstanceRoom]]] = {}
    for seat, room in zip(board.seats, board.instances, strict=False):
        alike.setdefault((seat.fleet_id, seat.project_id, seat.kind), []).append((seat, room))
    groups = tuple(
        Group(
            fleet_id,
            project_id,
            kind,
            tuple(sorted((seat for seat, room in some if not room.barred), key=lambda one: -one.free_count)),
            tuple(room for _, room in some if room.barred),
        )
        for (fleet_id, project_id, kind), some in alike.items()
    )
    refusals: dict[tuple[FleetId, int], Refusal] = {}
    for place, offer in enumerate(board.offers):
        for fleet in board.fleets:
            divided = offer if board.refusals[fleet.fleet_id, place] else fleet.divided(offer)
            kind = board.kind(divided.capacity, divided.blocks)
            refusal, known = _refusal(board, fleet, place), refusals.get((fleet.fleet_id, kind))
            if known is None or refusal.distance < known.distance:
                refusals[(fleet.fleet_id, kind)] = refusal
    kept = Counter(id(seat.kept_for) for seat in board.seats if seat.kept_for is not None)
    return Outlook(board, groups, refusals, kept)


def _refusal(board: Board, fleet: FleetRoom, place: int) -> Refusal:
    offer = board.offers[place]
    if policy := board.refusals[fleet.fleet_id, place]:
        return Refusal(3, WhyCode.FLEET_LIMIT, f"{offer} is not launched: {policy}")
    if board.nodes_left[fleet.fleet_id] == 0:
        return Refusal(2, WhyCode.FLEET_LIMIT, "the fleet has as many nodes as it may")
    if board.stock[place] == 0 and offer.resting_until is not None:
        return Refusal(1, WhyCode.NO_OFFER, f"{offer} rests, since launches of it failed")
    if board.stock[place] == 0:
        return Refusal(1, WhyCode.NO_OFFER, f"{offer} is not available now")
    return Refusal(0, WhyCode.NO_OFFER, f"there is not enough of {offer} for all its jobs")


@dataclass(frozen=True, slots=True)
class _Case:
    """One request of a gang, and what could hold it if it were empty, with the blocks that it would take there."""

    gang: Gang
    request: Request
    number: int
    groups: tuple[tuple[Group, int], ...]
    launches: tuple[tuple[FleetId, Refusal], ...]
    misfits: tuple[Misfit, ...]

    def why(self, code: WhyCode, sentence: str, needs: float = 0, has: float = 0, limit: str = "") -> Why:
        return Why(self.gang.run_id, self.gang.replica, code, sentence, needs, has, limit)

    def has_room(self, seat: Seat, n: int) -> bool:
        return seat.free_count >= n and bool(pick(seat.capacity, seat.total, seat.free, self.request, n))


def explain(view: Outlook, gang: Gang, *, detailed: bool) -> Why:
    """For a gang that is not in the plan; told by a job that can never be placed, else by the hardest one.

    `detailed` adds the reason of each instance, which costs as much as all the rest.
    """
    if not gang.ready:
        return Why(gang.run_id, gang.replica, WhyCode.NOT_READY, "an earlier try of it has not finished yet")
    if gang.barred:
        return Why(gang.run_id, gang.replica, WhyCode.VOLUME, gang.barred)
    if (claim := view.board.taken(gang)) is not None:
        sentence = f"volume {claim.name} goes to a run before it"
        return Why(gang.run_id, gang.replica, WhyCode.VOLUME, sentence)
    requests = sorted(dict.fromkeys(request for _, request in gang.jobs), key=ease)  # equals stay in order
    cases = [_case(view, gang, request) for request in requests]
    case = next((case for case in cases if not case.groups and not case.launches), cases[0])
    if case.groups or case.launches:
        too_many = next((why for one in cases if (why := _too_many(view.board, one))), None)
        why = too_many or _waiting(view.board, case, view.kept.get(id(gang), 0))
    elif case.misfits:
        why = _impossible(view.board, case)
    else:
        why = _none(view.board, case)
    if gang.only is not None:
        why = replace(why, sentence=f"{why.sentence}; it can go nowhere else, since {gang.tied}")
    if gang.absent and why.code is not WhyCode.NO_FLEET:
        why = replace(why, sentence=f"{why.sentence}; {_missing(gang)}")
    return _with_reasons(view.board, case, why) if detailed else why


def _missing(gang: Gang) -> str:
    """Of the fleets that it may use: somebody deleted them while it waited."""
    some = joined(gang.absent)
    return f"fleet {some} is not there any more" if len(gang.absent) == 1 else f"fleets {some} are not there any more"


def _case(view: Outlook, gang: Gang, request: Request) -> _Case:
    number, scope = view.board.number(request), _scope(gang)
    here = [
        (group, view.board.need(number, group.kind, gang.whole))
        for group in _at(view.groups, gang.only)
        if scope.admits(group.fleet_id, group.project_id)
    ]
    new = [
        (fleet_id, refusal, view.board.need(number, kind, gang.whole))
        for (fleet_id, kind), refusal in view.refusals.items()
        if scope.only is None and scope.admits(fleet_id, None)
    ]
    return _Case(
        gang,
        request,
        number,
        tuple((group, n) for group, n in here if not isinstance(n, Misfit)),
        tuple((fleet_id, refusal) for fleet_id, refusal, n in new if not isinstance(n, Misfit)),
        tuple(n for n in (*(n for _, n in here), *(n for _, _, n in new)) if isinstance(n, Misfit)),
    )


def _at(groups: Sequence[Group], only: InstanceId | None) -> Sequence[Group]:
    """Where it may go nowhere else, of all instances that one."""
    if only is None:
        return groups
    there = [
        replace(
            group,
            usable=tuple(seat for seat in group.usable if seat.instance_id == only),
            barred=tuple(room for room in group.barred if room.id == only),
        )
        for group in groups
    ]
    return [group for group in there if group.usable or group.barred]


def _scope(gang: Gang) -> Scope:
    return Scope(None if gang.fleets is None else frozenset(gang.fleets), gang.project_id, only=gang.only)


def _none(board: Board, case: _Case) -> Why:
    if case.gang.refused:
        return case.why(WhyCode.NO_FLEET, case.gang.refused)
    if case.gang.absent and not case.gang.fleets:
        return case.why(WhyCode.NO_FLEET, f"{_missing(case.gang)}, and it may use no other")
    if case.gang.only is not None:
        return case.why(WhyCode.VOLUME, "it may not use the one instance that it could go to")
    others = sum(case.gang.fleets is None or room.fleet_id in case.gang.fleets for room in board.instances)
    if not others:
        return case.why(WhyCode.NO_INSTANCE, "the fleets it may use have no instance and no offer")
    serve = "1 serves another one only" if others == 1 else f"{others} serve others only"
    return case.why(WhyCode.OTHER_PROJECT, f"no instance serves its project: {serve}, as agents without root do")


def _with_reasons(board: Board, case: _Case, why: Why) -> Why:
    gang, reasons = case.gang, []
    rooms, scope = board.instances, _scope(gang)
    inside = [
        n
        for n, room in enumerate(rooms)
        if scope.admits(room.fleet_id, room.project_id) and scope.only in (None, room.id)
    ]
    for place in inside[:MAX_REASONS]:
        seat, room = board.seats[place], rooms[place]
        said = _reason(case, seat, room, board.need(case.number, seat.kind, gang.whole))
        reasons.append(Reason(room.id, _called(room), said))
    return replace(why, reasons=tuple(reasons), more=max(0, len(inside) - MAX_REASONS))


def _called(room: InstanceRoom) -> str:
    return room.name or str(room.id)


def _reason(case: _Case, seat: Seat, room: InstanceRoom, n: int | Misfit) -> str:
    if isinstance(n, Misfit):
        return n.sentence
    if room.barred:
        return room.barred
    if seat.kept_for is not None:
        return "kept for it" if seat.kept_for is case.gang else "kept for a run that has waited longer"
    if case.has_room(seat, n):
        return f"has room, but not for all {len(case.gang.jobs)} jobs at once"
    return busy(seat.capacity, seat.total, seat.free_count, n, case.request).sentence


def _impossible(board: Board, case: _Case) -> Why:
    """Told by the machine that comes closest."""
    if all(misfit.code == ENGINE for misfit in case.misfits):
        return _no_engine(board, case)

    def closeness(misfit: Misfit) -> tuple[int, float]:
        order = _CLOSENESS.index(misfit.code) if misfit.code in _CLOSENESS else len(_CLOSENESS)
        return order, misfit.has

    closest = max(case.misfits, key=closeness)
    sentence = f"no instance and no offer could ever hold it: the closest {closest.sentence}"
    return case.why(WhyCode.IMPOSSIBLE, sentence, closest.needs, closest.has, closest.code)


def _no_engine(board: Board, case: _Case) -> Why:
    scope = _scope(case.gang)
    names = [_called(room) for room in board.instances if scope.admits(room.fleet_id, room.project_id)]
    if not names:
        sentence = "it runs in a container, and no machine that could be launched has a Docker engine"
    else:
        others = (
            f", nor have {len(names) - 1} others" if len(names) > 2 else f", nor has {names[1]}" if names[1:] else ""
        )
        sentence = f"it runs in a container, and {names[0]} has no Docker engine{others}"
    return case.why(WhyCode.IMPOSSIBLE, sentence, 1, 0, ENGINE)


def _too_many(board: Board, case: _Case) -> Why | None:
    """More nodes of one kind than any one fleet could ever bring together."""
    nodes = sum(request == case.request for _, request in case.gang.jobs)
    if not case.gang.whole or nodes == 1:
        return None
    most: dict[FleetId | None, float] = {}
    for group, _ in case.groups:
        most[group.fleet_id] = most.get(group.fleet_id, 0) + len(group.usable) + len(group.barred)
    admitting = {fleet_id for fleet_id, refusal in case.launches if refusal.distance < 3}
    for fleet in board.fleets:
        if fleet.fleet_id in admitting:
            left = math.inf if fleet.nodes_left is None else fleet.nodes_left
            most[fleet.fleet_id] = most.get(fleet.fleet_id, 0) + left
    has = max(most.values(), default=0)
    if has >= nodes or not most:
        return None
    sentence = f"needs {nodes} whole instances in one fleet, no fleet can have more than {has:g} that fit"
    return case.why(WhyCode.IMPOSSIBLE, sentence, nodes, has, "nodes")


def _waiting(board: Board, case: _Case, kept: int) -> Why:
    """It could fit, but not now."""
    no_launch = min((refusal for _, refusal in case.launches), key=lambda one: one.distance, default=None)
    if no_launch and not case.groups:
        return case.why(no_launch.code, no_launch.sentence)
    besides = f"; no new one: {no_launch.sentence}" if no_launch else ""
    usable = [(group.usable, n) for group, n in case.groups if group.usable]
    if not usable:
        barred = [room for group, _ in case.groups for room in group.barred]
        many = f"fits {counted(len(barred), 'instance')}, none of which may be used now: " if len(barred) > 1 else ""
        sentence = f"{many}{_called(barred[0])} is {barred[0].barred}{besides}"
        return case.why(WhyCode.BARRED, sentence, 1)
    if kept:
        return case.why(WhyCode.NEXT, f"is next: {counted(kept, 'instance')} kept for it to drain", kept)
    for seats, n in usable:
        for seat in seats:
            if seat.free_count < n:  # and so are all that follow
                break
            if seat.kept_for is not None and case.has_room(seat, n):
                sentence = f"what is free is kept for a run that has waited longer{besides}"
                return case.why(WhyCode.KEPT, sentence, n, seat.free_count)
    return _busy(board, case, usable, besides)


def _busy(board: Board, case: _Case, usable: list[tuple[tuple[Seat, ...], int]], besides: str) -> Why:
    count, jobs = sum(len(seats) for seats, _ in usable), len(case.gang.jobs)
    if jobs > 1:
        now = sum(case.has_room(seat, n) for seats, n in usable for seat in seats)
        room = f"{now} of {counted(count, 'instance')} {'has' if now == 1 else 'have'} some"
        return case.why(WhyCode.BUSY, f"its {jobs} jobs need room at once, {room}{besides}", jobs, now)
    # The first of each group has the most free.
    closest, n = min(((seats[0], n) for seats, n in usable), key=lambda one: (one[1] - one[0].free_count, one[0].order))
    needs, has = shortage(closest.capacity, closest.total, closest.free_count, n, case.request)
    name = _called(board.instances[closest.order])
    where = f"{name} has {has}" if count == 1 else f"the closest of {count} instances, {name}, has {has}"
    return case.why(WhyCode.BUSY, f"needs {needs}, {where}{besides}", n, closest.free_count)
