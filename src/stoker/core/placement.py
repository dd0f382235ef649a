"""Decides which waiting gang goes where: `plan` gives a value that can be printed before anything happens.

Theory of operation. Gangs are taken in turn: priority, then age, then id. Each is placed entirely or not
at all, and nothing is held for a gang that is not placed, so two gangs can never wait for each other's
half. A job goes to the instance that has the fewest blocks left after it (best fit): ready ones first, then
those on their way, then machines that this plan launches already, then a new one by price. A job without
GPUs avoids machines with GPUs while another of the same step fits. Several jobs of a gang stay within one
fleet and at one site, so that they reach each other.

Best fit, job after job, is exact for a single job, and for equal jobs where nothing is launched. For mixed
jobs, or where a fleet has few nodes left, it may miss; a gang of up to `SEARCH_JOBS` jobs is then searched,
within `SEARCH_STEPS` moves (`PLAN_STEPS` for the whole plan).

A gang that does not fit lets the ones behind it pass. Once it has waited for `reserve_after_s` and would
fit if instances drained, those that need the least draining are kept: nobody behind it takes them, so
small jobs cannot starve a large one. Blocks of jobs without an end are not expected to drain.

Within one plan what is free only shrinks (what it launches was open to every gang before), so a shape that
did not fit once is not tried again: thousands of equal gangs cost one attempt.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stoker.core.block import Misfit, numbers_of
from stoker.core.board import NEW, Board, Move, Scope, Seat
from stoker.core.gang import Gang, InstanceRoom, OnNoCapacity, ease
from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, RunId
from stoker.core.offer import FleetRoom, Offer, Site
from stoker.core.why import Why, explain, outlook

RESERVE_AFTER_S = 900.0
DETAILED = 100
SEARCH_JOBS = 8
SEARCH_STEPS = 2_000
PLAN_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job on an instance that exists, with the blocks it takes."""

    job_id: JobId
    instance_id: InstanceId
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A new instance of a fleet, and the jobs that it is for."""

    fleet_id: FleetId
    offer: Offer
    jobs: tuple[tuple[JobId, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    assignments: tuple[Assignment, ...] = ()
    launches: tuple[Launch, ...] = ()
    left: tuple[Why, ...] = ()

    def lines(self) -> Iterator[str]:
        """For people: `stoker why` and dry runs."""
        for one in self.assignments:
            yield f"job {one.job_id} -> instance {one.instance_id}, {len(one.blocks)} blocks"
        for new in self.launches:
            jobs = ", ".join(str(job) for job, _ in new.jobs)
            yield f"launch {new.offer} in fleet {new.fleet_id} for {jobs}"
        for why in self.left:
            yield str(why)


def plan(
    waiting: Iterable[Gang],
    instances: Iterable[InstanceRoom],
    offers: Iterable[Offer] = (),
    fleets: Iterable[FleetRoom] = (),
    *,
    now: float,
    reserve_after_s: float = RESERVE_AFTER_S,
    detail: Container[RunId] = (),
    told: Callable[[Gang], bool] = lambda gang: True,
) -> Plan:
    """Offers are launched only within `fleets`; instances need none. The reason of each instance is told to the
    first `DETAILED` that are left, and to the runs in `detail`: somebody asks about those. Only
    those that are `told` are told why: that costs more than the plan."""
    board = Board(instances, offers, fleets, now)
    failed: set[_Shape] = set()
    unkept: set[_Shape] = set()  # no instances are left that could be kept for such a gang
    left: list[tuple[Gang, _Shape]] = []
    before, shape = None, None
    for gang in sorted(waiting, key=lambda gang: gang.turn):
        if shape is None or before is None or not gang.like(before):
            shape = _shape(board, gang)
        before = gang
        if gang.barred or board.taken(gang):
            left.append((gang, shape))
            continue
        if gang.ready and shape not in failed:
            if _place(board, gang):
                board.claimed.update(claim.id for claim in gang.claims)
                continue
            failed.add(shape)
        if gang.ready and shape not in unkept and now - gang.submitted_at >= reserve_after_s and not _keep(board, gang):
            unkept.add(shape)
        left.append((gang, shape))
    return Plan(
        tuple(
            Assignment(job, seat.instance_id, numbers_of(mask))
            for seat in board.seats
            if seat.instance_id is not None
            for job, mask in seat.jobs
        ),
        tuple(
            Launch(seat.fleet_id, seat.offer, tuple((job, numbers_of(mask)) for job, mask in seat.jobs))
            for seat in board.seats
            if seat.offer is not None and seat.fleet_id is not None
        ),
        _reasons(board, left, detail, told),
    )


# Gangs of one shape are interchangeable: the same requests, in the same fleets, with the same instances open to them.
_Shape = tuple[bool, frozenset[FleetId] | None, tuple[str, ...], ProjectId | None, InstanceId | None, tuple[int, ...]]


def _shape(board: Board, gang: Gang) -> _Shape:
    requests = tuple(board.number(request) for _, request in gang.jobs)
    return gang.whole, gang.fleets, gang.absent, board.tenant(gang), gang.only, requests


def _reasons(
    board: Board, left: Sequence[tuple[Gang, _Shape]], detail: Container[RunId], told: Callable[[Gang], bool]
) -> tuple[Why, ...]:
    """Why each of them waits; equal gangs wait for equal reasons, unless machines are kept for one of them."""
    asked = [(place, gang, shape) for place, (gang, shape) in enumerate(left, start=1) if told(gang)]
    if not asked:
        return ()
    view = outlook(board)
    known: dict[tuple[object, ...], Why] = {}
    whys = []
    for place, gang, shape in asked:
        detailed = place <= DETAILED or gang.run_id in detail
        volumes = (gang.barred, board.taken(gang))
        key = (shape, gang.ready, detailed, id(gang) if id(gang) in view.kept else 0, volumes)
        if key not in known:
            known[key] = explain(view, gang, detailed=detailed)
        whys.append(
            replace(
                known[key],
                run_id=gang.run_id,
                replica=gang.replica,
                place=place,
                of=len(left),
                fail_now=fails(gang),
            )
        )
    return tuple(whys)


def fails(gang: Gang) -> bool:
    """Whether it does not wait: left out of a plan, it ends."""
    return gang.ready and (gang.on_no_capacity is OnNoCapacity.FAIL or gang.hopeless)


def _place(board: Board, gang: Gang) -> bool:
    """All jobs or none; with a launch only where no fleet can do without one."""
    jobs = [(job, board.number(request)) for job, request in sorted(gang.jobs, key=lambda one: ease(one[1]))]
    equal = len({request for _, request in jobs}) == 1
    scopes = board.scopes(gang)
    for launching in (False, True) if board.can_launch else (False,):
        for scope in scopes:
            if _greedy(board, jobs, gang.whole, scope, launching):
                return True
            worthwhile = 1 < len(jobs) <= SEARCH_JOBS and (launching or not equal)
            until = min(board.searched + SEARCH_STEPS, PLAN_STEPS)
            if worthwhile and _search(board, jobs, gang.whole, scope, launching, until, scope.site):
                return True
    return False


def _greedy(board: Board, jobs: Sequence[tuple[JobId, int]], whole: bool, scope: Scope, launching: bool) -> bool:
    moves: list[Move] = []
    site = scope.site
    for job, request in jobs:
        option = board.best(request, whole, scope, site)
        if option is None and launching:
            option = next(board.launches(request, whole, scope, site), None)
        if option is None:
            for move in reversed(moves):
                board.undo(move)
            return False
        moves.append(board.move(job, option))
        site = site or moves[-1].seat.site
    return True


def _search(
    board: Board,
    jobs: Sequence[tuple[JobId, int]],
    whole: bool,
    scope: Scope,
    launching: bool,
    until: int,
    site: Site,
) -> bool:
    """Every way to place the jobs, one after the other, until one works or the board has seen enough moves."""
    if not jobs:
        return True
    # One job without a place makes all that is tried before it useless.
    if any(next(board.options(request, whole, scope, site), None) is None for request in {one[1] for one in jobs}):
        return False
    (job, request), rest = jobs[0], jobs[1:]
    for option in board.options(request, whole, scope, site):
        if (option.launch and not launching) or board.searched >= until:
            return False
        board.searched += 1
        move = board.move(job, option)
        if _search(board, rest, whole, scope, launching, until, site or move.seat.site):
            return True
        board.undo(move)
    return False


def _keep(board: Board, gang: Gang) -> bool:
    """Keeps the instances for the gang that would serve it with the least draining, if they ever can."""
    for scope in board.scopes(gang):
        aim: dict[int, int] = {}  # blocks that the gang's earlier jobs would take, by seat
        for _, request in gang.jobs:
            seat, n = _least_draining(board, board.number(request), gang.whole, scope, aim)
            if seat is None:
                break
            aim[seat.order] = aim.get(seat.order, 0) + n
        else:
            for order in aim:
                board.seats[order].kept_for = gang
            return True
    return False


def _least_draining(
    board: Board, request: int, whole: bool, scope: Scope, aim: dict[int, int]
) -> tuple[Seat | None, int]:
    best: tuple[int, int, int] | None = None
    for seat, room in zip(board.seats, board.instances, strict=False):
        if room.barred or seat.kept_for is not None or seat.tier == NEW:
            continue
        n = board.need(request, seat.kind, whole)
        used = aim.get(seat.order, 0)
        if isinstance(n, Misfit) or seat.total - seat.lasting - used < n:
            continue
        if scope.takes(seat) and (scope.site is None or seat.site in (None, scope.site)):
            key = (max(0, n + used - seat.free_count), seat.order, n)
            best = key if best is None else min(best, key)
    return (board.seats[best[1]], best[2]) if best else (None, 0)
