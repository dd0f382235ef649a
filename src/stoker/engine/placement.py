"""The placer: one in the cluster, hundreds of placements a pass; the plan is core's, here are its eyes and hands."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import FleetId, InstanceId, JobId, RunId, instance_name
from stoker.core.instance_facts import Divided, Instance, S
from stoker.core.job_facts import NoCapacity, Placed, Reserved, VolumeFailed
from stoker.core.limits import FEW_GANGS, MANY_GANGS, MOST_GANGS
from stoker.core.offer import Offer, any_to_launch, in_reach
from stoker.core.placement import Launch, Plan, fails, plan
from stoker.core.tie import FREE
from stoker.engine.aside import Aside
from stoker.engine.change import Change, of_instance, of_job
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.engine.rooms import Rooms
from stoker.engine.terrain import Terrain, survey
from stoker.engine.volume import Sight, see
from stoker.store.database import Connection, Record
from stoker.store.gang import IMPATIENT
from stoker.store.gang import WAITING as WAITING
from stoker.store.run import need_of, policy_of

LOCK = 0x706C6163


class Merchant(Protocol):
    """Knows the backends' offers without asking them: the pass holds a lock."""

    def offers(self, now: float) -> Sequence[Offer]: ...


class NoOffers:
    def offers(self, now: float) -> Sequence[Offer]:
        return ()


class Placement:
    def __init__(self, committer: Committer, clock: Clock, merchant: Merchant, new_id: Callable[[], UUID]) -> None:
        self._committer, self._merchant, self._new_id = committer, merchant, new_id
        self._aside = Aside(clock)
        self._rooms = Rooms(lambda: committer.generation)

    async def once(self) -> Counts:
        results = await self._committer.commit_planned(LOCK, self._plan)
        if results is None:
            return Counts(0, again_after_s=0.2)
        failures = self._aside.learn(results)
        # What another commit held, and what is left when those that failed are left out, is for the next pass.
        soon = failures.failed or any(answer is None for _, answer in results)
        again_after_s = 0.02 if soon else self._aside.again_after_s()
        return Counts(len(results), again_after_s, failures.bugs, failures.error)

    async def _plan(self, tx: Connection, now: float) -> Sequence[Change]:
        """Where the first few take all the room there is, it does not matter how many wait behind them."""
        rows = await self._waiting(tx, FEW_GANGS)
        if not rows:
            return []
        terrain = await survey(tx, self._rooms)
        fleets, rooms = terrain.fleet_rooms(), terrain.rooms()
        offers = in_reach(self._merchant.offers(now), fleets)
        looked, hurry = FEW_GANGS, False
        while True:
            sight = await see(tx, rows)
            gangs = [gang_of(row, terrain, sight) for row in within(rows)]
            made = plan(gangs, rooms, offers, fleets, now=now, told=fails)
            if len(rows) < looked or looked >= MOST_GANGS:
                break
            full = _full(rooms, made) and not any_to_launch(offers, fleets)
            if full and not (hurry := hurry or await tx.fetchval(IMPATIENT)):
                # Where the first few take all the room there is, it does not matter how many wait behind them.
                break
            looked = MOST_GANGS if hurry or looked >= MANY_GANGS else MANY_GANGS
            rows = await self._waiting(tx, looked)
        attempts = {id: attempt for row in rows for id, attempt in zip(row["jobs"], row["attempts"], strict=True)}
        divided = [Change(facts=(of_instance(id, Divided(total)),)) for id, total in terrain.divisions]
        return [*divided, *_Hands(made, gangs, attempts, terrain.instances, self._new_id, now).changes()]

    async def _waiting(self, tx: Connection, most: int) -> list[Record]:
        aside = self._aside.ids()
        return [row for row in await tx.fetch(WAITING, most + len(aside)) if aside.isdisjoint(row["jobs"])]


class _Hands:
    """Turns a plan into changes, a gang a change."""

    def __init__(
        self, plan: Plan, gangs: Sequence[Gang], attempts: Mapping[JobId, int], seen: Mapping[InstanceId, Instance],
        new_id: Callable[[], UUID], now: float,
    ) -> None:  # fmt: skip
        self._plan, self._gangs, self._attempts, self._seen = plan, gangs, attempts, seen
        self._new_id, self._now = new_id, now
        self._events: dict[JobId, Placed | Reserved] = {}
        self._born: dict[JobId, Instance] = {}

    def changes(self) -> Iterable[Change]:
        for one in self._plan.assignments:
            self._events[one.job_id] = self._arrival(one.job_id, self._seen[one.instance_id], one.blocks)
        for launch in self._plan.launches:
            self._launch(launch)
        failing = {(why.run_id, why.replica): why.sentence for why in self._plan.left if why.fail_now}
        for gang in sorted(self._gangs, key=lambda gang: gang.turn):
            ids = [job for job, _ in gang.jobs]
            if (sentence := failing.get((gang.run_id, gang.replica))) is not None:
                end = VolumeFailed if gang.hopeless else NoCapacity
                yield from (
                    Change(facts=(of_job(job, gang.run_id, end(sentence, attempt=self._attempts[job])),)) for job in ids
                )
            elif all(job in self._events for job in ids):
                facts = tuple(of_job(job, gang.run_id, event) for job, event in self._together(ids))
                born = {new.id: new for job in ids if (new := self._born.get(job))}
                # All of it or nothing: a machine for a job that has ended meanwhile would be for nobody.
                yield Change(facts=facts, instances=tuple(born.values()), strict=True)

    def _arrival(self, job: JobId, instance: Instance, blocks: tuple[int, ...]) -> Placed | Reserved:
        attempt = self._attempts[job]
        if instance.state is S.PENDING:
            return Reserved(instance.id, blocks, attempt=attempt)
        where = instance_name(instance.backend, instance.id)
        return Placed(instance.id, blocks, owned=instance.owned, shim=instance.shim, where=where, attempt=attempt)

    def _together(self, ids: Sequence[JobId]) -> Iterable[tuple[JobId, Placed | Reserved]]:
        """None of a gang is placed before all can be: what one machine still lacks, the others are kept for."""
        events = [self._events[job] for job in ids]
        if any(isinstance(event, Reserved) for event in events):
            events = [Reserved(one.instance_id, one.blocks, attempt=one.attempt) for one in events]
        return zip(ids, events, strict=True)

    def _launch(self, launch: Launch) -> None:
        instance = wanted(InstanceId(self._new_id()), launch.fleet_id, launch.offer, self._now)
        for job, blocks in launch.jobs:
            self._events[job] = self._arrival(job, instance, blocks)
            self._born[job] = instance


def wanted(id: InstanceId, fleet_id: FleetId, offer: Offer, now: float) -> Instance:
    """The row first, the provider later: what a crash leaves behind is found by our id."""
    return Instance(
        id=id, fleet_id=fleet_id, backend=offer.backend, blocks=Blocks(offer.capacity, offer.blocks), entered_at=now,
        price=offer.price, spot=offer.spot, shim=offer.shim, offer=offer.name, location=offer.location,
    )  # fmt: skip


def _full(rooms: Iterable[InstanceRoom], made: Plan) -> bool:
    """Whether no block is left on any machine that is open, once this is done."""
    free = sum(room.blocks.free_count for room in rooms if not room.barred)
    return free <= sum(len(one.blocks) for one in made.assignments)


def within(rows: Sequence[Record]) -> list[Record]:
    """Of each run no more than its `max_parallel` still lets on machines."""
    taken: Counter[RunId] = Counter()
    kept = []
    for row in rows:
        taken[row["run_id"]] += 1
        if row["room"] is None or taken[row["run_id"]] <= row["room"]:
            kept.append(row)
    return kept


def common(some: frozenset[FleetId] | None, others: frozenset[FleetId] | None) -> frozenset[FleetId] | None:
    """None: any."""
    if some is None or others is None:
        return others if some is None else some
    return some & others


def gang_of(row: Mapping[str, Any] | Record, terrain: Terrain, sight: Sight) -> Gang:
    policy, need = policy_of(row["policy"]), need_of(row["resources"])
    usable = terrain.usable(policy.fleets, row["project_id"], privileged=policy.privileged)
    tie = sight.tie(policy.volumes, terrain.names) if policy.volumes else FREE
    return Gang(
        run_id=row["run_id"], replica=row["replica"], submitted_at=row["submitted_at"],
        jobs=tuple((job, need.of(node)) for job, node in zip(row["jobs"], row["nodes"], strict=True)),
        priority=policy.priority, whole=policy.nodes > 1,
        on_no_capacity=policy.on_no_capacity, ready=not row["held_up"], project_id=row["project_id"],
        fleets=common(usable.fleets, tie.fleets), absent=usable.absent, refused=usable.refused, only=tie.only,
        tied=tie.tied, claims=tie.claims, barred=tie.barred, hopeless=tie.hopeless,
    )  # fmt: skip
