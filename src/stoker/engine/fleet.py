"""Keeps fleets in balance: launches what is missing, retires what nobody needs; the plan is core's.

It looks without a lock, and takes the placer's only when there is something to do: whoever launches counts the nodes of
the fleet under it, so that both together never launch one too many.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.commitment import Moved
from stoker.core.fleet import Create, Join, Retire, is_keen, next_at, plan_fleet, seen
from stoker.core.ids import FleetId, InstanceId
from stoker.core.instance_facts import DeleteAsked, Divided, Instance, S, Unwanted
from stoker.core.limits import PAGE
from stoker.core.offer import PENALTY_HALF_LIFE_S, FleetRoom, Offer, rank, rests_until
from stoker.core.resources import Capacity
from stoker.core.route import SSH
from stoker.engine.aside import Aside
from stoker.engine.change import Change, of_instance
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.hint import FLEETS
from stoker.engine.loop import Counts
from stoker.engine.placement import LOCK, Merchant, wanted
from stoker.engine.terrain import to_divide
from stoker.store import fleet as fleet_store
from stoker.store import instance as instance_store
from stoker.store import journal
from stoker.store import ssh as ssh_store
from stoker.store import volume as volume_store
from stoker.store.bundle import Bundle
from stoker.store.database import Connection, Database
from stoker.store.fleet import Standing

Kind = tuple[str, str, str, bool]
"""Backend, offer, location and whether it is spot: what failures are remembered by."""
MOST_FAILURES = 10_000
REMEMBERED_S = 6 * PENALTY_HALF_LIFE_S
"""A failure that is older weighs next to nothing."""
BUSY_S = 0.05
"""When to try again while the placer is at it."""


@dataclass(slots=True)
class _Todo:
    changes: list[Change] = field(default_factory=list)
    births: int = 0
    gone: bool = False
    """A fleet that is being deleted has no instance left."""
    again_at: float = float("inf")
    """When time alone changes what there is to do."""

    def later(self, at: float | None, now: float) -> None:
        if at is not None and at > now:
            self.again_at = min(self.again_at, at)


class Fleets:
    def __init__(
        self,
        database: Database,
        committer: Committer,
        clock: Clock,
        merchant: Merchant,
        new_id: Callable[[], UUID],
        period_s: float,
    ) -> None:
        self._database, self._committer, self._clock = database, committer, clock
        self._merchant, self._new_id, self._period_s = merchant, new_id, period_s
        self._aside = Aside(clock)
        self._keen = frozenset[FleetId]()
        """Fleets that wait for one of their machines to fall idle."""

    def saw(self, moved: Iterable[Moved], wake: Callable[[str], None]) -> None:
        """A machine that leaves may have to be replaced; one that falls idle matters to few fleets at once."""
        for one in moved:
            if one.kind == "instance" and one.after.fleet_id is not None and one.before is not None:
                state = one.after.state
                left = state in (S.TERMINATING, S.TERMINATED) and one.before.state is not state
                if left or (state is S.IDLE and one.after.fleet_id in self._keen):
                    wake(FLEETS)
                    return

    async def once(self) -> Counts:
        now = self._clock.now()
        async with self._database.connection() as connection:
            todo = await self._todo(connection, now)
        if not todo.changes and not todo.gone:
            return Counts(0, self._wait_s(todo, now))
        results = await self._committer.commit_planned(LOCK, self._plan)
        if results is None:
            return Counts(0, again_after_s=BUSY_S)
        failures = self._aside.learn((change, answer) for change, answer in results if change.facts)
        soon = failures.failed or len(results) >= PAGE or any(answer is None for _, answer in results)
        return Counts(len(results), BUSY_S if soon else self._wait_s(todo, now), failures.bugs, failures.error)

    def _wait_s(self, todo: _Todo, now: float) -> float | None:
        times = [todo.again_at - now, self._aside.again_after_s() or float("inf")]
        return None if min(times) == float("inf") else max(0.001, min(times))

    async def _plan(self, tx: Connection, now: float) -> Sequence[Change]:
        todo = await self._todo(tx, now)
        if todo.gone:
            await _bury(tx, now)
        return todo.changes[:PAGE]

    async def _todo(self, tx: Connection, now: float) -> _Todo:
        fleets, mine = await fleet_store.standing(tx), await instance_store.of_fleets(tx)
        homes = await volume_store.homes(tx)
        todo, keen, missing = _Todo(), set[FleetId](), list[tuple[Standing, int]]()
        for fleet in fleets:
            instances = mine.get(fleet.id, [])
            there = seen(fleet.policy, instances, homes)
            if is_keen(fleet.policy, there, self._period_s) or any(map(fleet.policy.divides, instances)):
                keen.add(fleet.id)
            todo.later(next_at(fleet.policy, there), now)
            todo.gone = todo.gone or (fleet.policy.deleting and not instances)
            for action in plan_fleet(fleet.policy, there, now):
                match action:
                    case Retire():
                        todo.changes += self._retired(fleet, action)
                    case Create():
                        missing.append((fleet, action.n))
                    case Join():
                        todo.changes.append(Change(instances=(self._joining(fleet, action, now),)))
        every = (one for some in mine.values() for one in some)
        policies = {one.id: one.policy for one in fleets}
        todo.changes += [Change(facts=(of_instance(id, Divided(total)),)) for id, total in to_divide(every, policies)]
        if missing:
            shop = _Shop(self._merchant.offers(now), await _failures(tx, now), now)
            for fleet, n in missing:
                self._create(todo, shop, fleet, mine.get(fleet.id, []), n, now)
        self._keen = frozenset(keen)
        return todo

    def _joining(self, fleet: Standing, action: Join, now: float) -> Instance:
        """What it has is not known before it was reached."""
        id, unknown = InstanceId(self._new_id()), Blocks(Capacity(0.0, 0), 1)
        return Instance(id, fleet.id, SSH, unknown, entered_at=now, owned=True, location=action.place)

    def _retired(self, fleet: Standing, action: Retire) -> list[Change]:
        if action.instance_id in self._aside.ids():
            return []
        event = DeleteAsked(force=True) if fleet.policy.forced else Unwanted(action.reason)
        return [Change(facts=(of_instance(action.instance_id, event),))]

    def _create(
        self, todo: _Todo, shop: "_Shop", fleet: Standing, instances: Sequence[Instance], n: int, now: float
    ) -> None:
        room = fleet.policy.room(fleet.id, fleet.project_id, instances)
        if room is None:
            return
        # What is launched in one pass is bounded; the next one follows at once.
        for _ in range(min(n, PAGE - todo.births)):
            offer = shop.cheapest(room)
            if offer is None:
                break
            one = wanted(InstanceId(self._new_id()), fleet.id, room.divided(offer), now)
            todo.changes.append(Change(instances=(one,)))
            todo.births += 1
            room = replace(room, site=offer.site) if room.cluster else room
        todo.later(shop.opens_at(room), now)


class _Shop:
    """Offers, cheapest first, with what this pass has left of them; those that failed a moment ago rest."""

    def __init__(self, offers: Iterable[Offer], failures: Mapping[Kind, Sequence[float]], now: float) -> None:
        known = [replace(one, failures=tuple({*one.failures, *failures.get(_kind(one), ())})) for one in offers]
        self._now = now
        self._offers = sorted(known, key=lambda one: rank(one, now))
        self._stock = [one.available for one in self._offers]

    def cheapest(self, room: FleetRoom) -> Offer | None:
        for place, offer in enumerate(self._offers):
            if self._stock[place] != 0 and not room.refuses(offer) and rests_until(offer.failures) <= self._now:
                stock = self._stock[place]
                self._stock[place] = None if stock is None else stock - 1
                return offer
        return None

    def opens_at(self, room: FleetRoom) -> float | None:
        """When the first of those that rest may be asked for again."""
        times = (rests_until(one.failures) for one in self._offers if not room.refuses(one))
        return min((at for at in times if at > self._now), default=None)


async def _failures(tx: Connection, now: float) -> dict[Kind, list[float]]:
    found: dict[Kind, list[float]] = {}
    for one in await instance_store.failures(tx, now - REMEMBERED_S, MOST_FAILURES):
        found.setdefault((one.backend, one.offer, one.location, one.spot), []).append(one.failed_at)
    return found


def _kind(offer: Offer) -> Kind:
    return offer.backend, offer.name, offer.location, offer.spot


async def _bury(tx: Connection, now: float) -> None:
    gone = await fleet_store.bury(tx, now)
    if gone:
        await ssh_store.bury(tx, gone)
        bundle = Bundle()
        entries = [journal.Entry("fleet", id, id, "Gone", "DELETING", "DELETED", "", "", id) for id in gone]
        journal.append(bundle, entries, now)
        await bundle.write(tx)
