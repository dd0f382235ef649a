"""The placer: one in the cluster, hundreds of placements a pass; the plan is core's, here are its eyes and hands."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import InstanceId, JobId, instance_name
from stoker.core.instance import LIVE, UP, Instance, S
from stoker.core.job_facts import NoCapacity, Placed, Reserved
from stoker.core.limits import FEW_GANGS, MOST_GANGS
from stoker.core.machine import Event
from stoker.core.offer import FleetRoom, Offer
from stoker.core.placement import Launch, Plan, plan
from stoker.core.resources import Request
from stoker.engine.aside import Aside
from stoker.engine.change import Change, of_job
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.store import instance as instance_store
from stoker.store.database import Connection, Record
from stoker.store.gang import IMPATIENT
from stoker.store.gang import WAITING as WAITING
from stoker.store.instance import Unfinished
from stoker.store.run import policy_of

LOCK = 0x706C6163


@dataclass(frozen=True, slots=True)
class Market:
    """What could be launched, and within which fleets; `nodes_left` of a fleet is its maximum here."""

    offers: tuple[Offer, ...] = ()
    fleets: tuple[FleetRoom, ...] = ()


class Merchant(Protocol):
    """Knows the backends' offers without asking them: the pass holds a lock."""

    def market(self, now: float) -> Market: ...


class NoMarket:
    def market(self, now: float) -> Market:
        return Market()


class Placement:
    def __init__(self, committer: Committer, clock: Clock, merchant: Merchant, new_id: Callable[[], UUID]) -> None:
        self._committer, self._merchant, self._new_id = committer, merchant, new_id
        self._aside = Aside(clock)

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
        rows = await self._waiting(tx, FEW_GANGS)
        if not rows:
            return []
        unfinished = await instance_store.unfinished(tx)
        seen = {one.instance.id: one.instance for one in unfinished}
        market = self._merchant.market(now)
        nodes = Counter(one.fleet_id for one in seen.values())
        fleets = [_left(fleet, nodes[fleet.fleet_id]) for fleet in market.fleets]
        rooms = [_room(one) for one in unfinished]
        gangs = [_gang(row) for row in rows]
        made = plan(gangs, rooms, market.offers, fleets, now=now)
        if len(rows) >= FEW_GANGS and (market.offers or not _full(rooms, made) or await tx.fetchval(IMPATIENT)):
            # Where the first few take all the room there is, it does not matter how many wait behind them.
            rows = await self._waiting(tx, MOST_GANGS)
            gangs = [_gang(row) for row in rows]
            made = plan(gangs, rooms, market.offers, fleets, now=now)
        attempts = {id: attempt for row in rows for id, attempt in zip(row["jobs"], row["attempts"], strict=True)}
        return list(_Hands(made, gangs, attempts, seen, self._new_id, now).changes())

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
        self._events: dict[JobId, Event] = {}
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
                yield from (
                    Change(facts=(of_job(job, gang.run_id, NoCapacity(sentence, attempt=self._attempts[job])),))
                    for job in ids
                )
            elif all(job in self._events for job in ids):
                facts = tuple(of_job(job, gang.run_id, self._events[job]) for job in ids)
                born = {new.id: new for job in ids if (new := self._born.get(job))}
                # All of it or nothing: a machine for a job that has ended meanwhile would be for nobody.
                yield Change(facts=facts, instances=tuple(born.values()), strict=True)

    def _arrival(self, job: JobId, instance: Instance, blocks: tuple[int, ...]) -> Event:
        attempt = self._attempts[job]
        if instance.state is S.PENDING:
            return Reserved(instance.id, blocks, attempt=attempt)
        where = instance_name(instance.backend, instance.id)
        return Placed(instance.id, blocks, owned=instance.owned, shim=instance.shim, where=where, attempt=attempt)

    def _launch(self, launch: Launch) -> None:
        """The row first, the provider later: what a crash leaves behind is found by our id."""
        offer = launch.offer
        instance = Instance(
            id=InstanceId(self._new_id()), fleet_id=launch.fleet_id, backend=offer.backend,
            blocks=Blocks(offer.capacity, offer.blocks), entered_at=self._now, price=offer.price, spot=offer.spot,
            shim=offer.shim,
        )  # fmt: skip
        for job, blocks in launch.jobs:
            self._events[job] = self._arrival(job, instance, blocks)
            self._born[job] = instance


def _full(rooms: Iterable[InstanceRoom], made: Plan) -> bool:
    """Whether no block is left on any machine that is open, once this is done."""
    free = sum(room.blocks.free_count for room in rooms if not room.barred)
    return free <= sum(len(one.blocks) for one in made.assignments)


def _left(fleet: FleetRoom, nodes: int) -> FleetRoom:
    return fleet if fleet.nodes_left is None else replace(fleet, nodes_left=max(0, fleet.nodes_left - nodes))


def _gang(row: Record) -> Gang:
    policy, request = policy_of(row["policy"]), _request(row["resources"])
    return Gang(
        run_id=row["run_id"], replica=row["replica"], submitted_at=row["submitted_at"],
        jobs=tuple((job, request) for job in row["jobs"]), priority=policy.priority, whole=policy.nodes > 1,
        on_no_capacity=policy.on_no_capacity, ready=not row["held_up"], project_id=row["project_id"],
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _request(text: str) -> Request:
    return Request.from_json(json.loads(text))


def _room(unfinished: Unfinished) -> InstanceRoom:
    one, barred = unfinished.instance, ""
    if one.state not in LIVE:
        barred = one.state.value
    elif one.cordoned:
        barred = "cordoned"
    elif one.unreachable_since is not None:
        barred = "unreachable"
    return InstanceRoom(
        one.id, one.blocks, one.fleet_id, ready=one.state in UP, barred=barred, name=instance_name(one.backend, one.id),
        project_id=unfinished.project_id,
    )  # fmt: skip
