"""The loop that keeps fleets in balance, on a real PostgreSQL, with a provider that is made up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId, InstanceId, RunId
from stoker.core.instance_facts import Destroy, Launch, Refused, Unwanted
from stoker.core.offer import REST_S, Offer
from stoker.core.resources import Capacity
from stoker.core.run_facts import StopAsked
from stoker.engine.change import Change, RunBirth, of_instance, of_run
from stoker.engine.engine import Engine
from stoker.engine.hint import FLEETS, PLACEMENT
from stoker.store import fleet as fleet_store
from stoker.store.database import Database
from stoker.store.outbox import Errand
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with, eventually
from tests.engine.test_engine import Agents, run_of, until

CLOUD = FleetId(UUID(int=7))
STATES = "SELECT array_agg(state ORDER BY id) FROM instance"
SMALL = Offer("dummy", "small", "north", Capacity(2, 4096, 10_000), price=1.0)
POLICY = Fleet(2, 4, backends=("dummy",))


class Shop:
    """A merchant with what a test puts on the shelf."""

    def __init__(self, *offers: Offer) -> None:
        self.shelf = list(offers or (SMALL,))

    def offers(self, now: float) -> list[Offer]:
        return self.shelf


class Provider(Agents):
    """Machines come up at once, unless it is told to refuse or to wait."""

    def __init__(self) -> None:
        super().__init__(exit_code=None)
        self.refusing = False
        self.launched: list[UUID] = []
        self.slow = asyncio.Event()
        self.slow.set()

    def performers(self) -> dict[Any, Any]:
        return {**super().performers(), Launch: self.launch, Destroy: self.destroy}

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        self.launched.append(errand.target)
        await self.slow.wait()
        if self.refusing:
            return Change(facts=(of_instance(InstanceId(errand.target), Refused("no capacity")),))
        return await super().launch(errand, effect)


@asynccontextmanager
async def fleet_of(
    db: Database, policy: Fleet = POLICY, *offers: Offer, without: tuple[str, ...] = (FLEETS, PLACEMENT)
) -> AsyncIterator[tuple[Engine, Provider]]:
    """Loops run when the test calls them, unless it wants them."""
    provider = Provider()
    async with engine_with(db, provider.performers(), without=without, merchant=Shop(*offers)) as engine:
        async with db.transaction() as tx:
            await fleet_store.insert(tx, CLOUD, "cloud", None, "{}", policy, engine.clock.now())
        yield engine, provider


async def change(db: Database, policy: Fleet) -> None:
    async with db.transaction() as tx:
        version = await tx.fetchval("SELECT version FROM fleet WHERE id = $1", CLOUD)
        await fleet_store.change(tx, CLOUD, version, "{}", policy)


async def states(db: Database) -> list[str]:
    return await ask(db, STATES) or []


async def comes_to(db: Database, *wanted: str) -> None:
    async def there() -> bool:
        return sorted(await states(db)) == sorted(wanted)

    await eventually(there, f"instances are {wanted}, not {await states(db)}", deadline_s=10.0)


async def age(db: Database, seconds: float) -> None:
    """All machines have been where they are for so much longer."""
    async with db.transaction() as tx:
        await tx.execute("UPDATE instance SET entered_at = entered_at - $1, version = version + 1", seconds)


async def test_a_fleet_is_filled_to_its_least_and_no_further(database: Databases) -> None:
    async with database() as db, fleet_of(db) as (engine, provider):
        assert (await engine.fleets.once()).did == 2
        await comes_to(db, "IDLE", "IDLE")
        assert (await engine.fleets.once()).did == 0
        assert len(provider.launched) == 2
        row = await ask(db, "SELECT (offer, location, price, fleet_id)::text FROM instance LIMIT 1")
        assert row == f"(small,north,1,{CLOUD})"


async def test_the_cheapest_machine_that_fits_is_launched_and_divided_as_the_fleet_says(database: Databases) -> None:
    cheap = replace(SMALL, name="tiny", price=0.1, capacity=Capacity(1, 1024, 0))
    policy = replace(POLICY, min_nodes=1, blocks=4, resources=Fleet.from_json({"resources": {"cpu": "2.."}}).resources)
    big = replace(SMALL, name="big", price=9.0)
    async with database() as db, fleet_of(db, policy, big, cheap, SMALL) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE")
        assert await ask(db, "SELECT offer || ' ' || blocks FROM instance") == "small 4"


async def test_no_more_than_is_in_stock_is_asked_for(database: Databases) -> None:
    few = replace(SMALL, available=1)
    async with database() as db, fleet_of(db, POLICY, few) as (engine, _):
        assert (await engine.fleets.once()).did == 1


async def test_a_machine_that_leaves_is_replaced_without_waiting_for_the_clock(database: Databases) -> None:
    """Somebody deleted one of two."""
    async with database() as db, fleet_of(db, without=(PLACEMENT,)) as (engine, provider):
        engine.wake(FLEETS)
        await comes_to(db, "IDLE", "IDLE")
        one = await ask(db, "SELECT id FROM instance LIMIT 1")
        await engine.commit(Change(facts=(of_instance(one, Unwanted("deleted")),)))
        await comes_to(db, "IDLE", "IDLE", "TERMINATED")
        assert len(provider.launched) == 3


async def test_idle_machines_above_the_least_go_at_their_time(database: Databases) -> None:
    """By the clock: the pass says when it wants to be called again."""
    async with database() as db, fleet_of(db, replace(POLICY, idle_duration_s=100.0)) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE", "IDLE")
        await change(db, replace(POLICY, min_nodes=0, idle_duration_s=100.0))
        counts = await engine.fleets.once()
        assert counts.did == 0
        assert counts.again_after_s is not None and 90 < counts.again_after_s <= 100
        await age(db, 101)
        assert (await engine.fleets.once()).did == 2
        await comes_to(db, "TERMINATED", "TERMINATED")
        message = await ask(db, "SELECT message FROM instance LIMIT 1")
        assert message.startswith("idle for 10")


async def test_a_brief_idle_duration_is_kept_without_a_hint_from_anybody(database: Databases) -> None:
    policy = Fleet(0, 2, 0.05, backends=("dummy",))
    async with database() as db, fleet_of(db, policy, without=()) as (engine, _):
        engine.wake(FLEETS)
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await until(db, birth.run.id, "RUNNING")
        assert await states(db) == ["BUSY"]
        await engine.commit(Change(facts=(of_run(birth.run.id, StopAsked()),)))
        await comes_to(db, "TERMINATED")


async def test_a_launch_that_was_refused_is_not_asked_again_at_once(database: Databases) -> None:
    """The provider is full. Each refusal makes the next try later; another offer would be taken instead."""
    async with database() as db, fleet_of(db, replace(POLICY, min_nodes=1)) as (engine, provider):
        provider.refusing = True
        await engine.fleets.once()
        await comes_to(db, "TERMINATED")
        counts = await engine.fleets.once()
        assert counts.did == 0
        assert counts.again_after_s is not None and REST_S - 5 < counts.again_after_s <= REST_S
        async with db.transaction() as tx:
            await tx.execute("UPDATE instance SET failed_at = failed_at - $1", REST_S)
        assert (await engine.fleets.once()).did == 1
        await comes_to(db, "TERMINATED", "TERMINATED")
        counts = await engine.fleets.once()
        assert counts.again_after_s is not None and counts.again_after_s > REST_S + 5
        engine.merchant.shelf.append(replace(SMALL, name="dear", price=5.0))  # type: ignore[attr-defined]
        provider.refusing = False
        assert (await engine.fleets.once()).did == 1
        await comes_to(db, "TERMINATED", "TERMINATED", "IDLE")
        assert await ask(db, "SELECT offer FROM instance WHERE state = 'IDLE'") == "dear"


async def test_the_placer_and_the_fleet_together_never_launch_one_too_many(database: Databases) -> None:
    """Both find room for two at the same moment, on two replicas: whoever comes second counts the first one's."""
    policy = Fleet(2, 2, backends=("dummy",))
    async with (
        database() as db,
        fleet_of(db, policy) as (engine, _),
        engine_with(db, Provider().performers(), "b", without=[FLEETS, PLACEMENT], merchant=Shop()) as other,
    ):
        births = [run_of(engine, f"r{n}") for n in range(4)]
        await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))
        for _ in range(6):
            await asyncio.gather(
                engine.fleets.once(), other.placement.once(), engine.placement.once(), other.fleets.once()
            )
            assert await ask(db, "SELECT count(*) FROM instance") <= 2
        assert await ask(db, "SELECT count(*) FROM instance") == 2


async def test_what_no_longer_fits_goes_when_no_job_is_on_it(database: Databases) -> None:
    """Spot machines were allowed and are not any more; one of them is at work."""
    spot = replace(SMALL, spot=True)
    async with database() as db, fleet_of(db, POLICY, spot) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE", "IDLE")
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await engine.placement.once()
        await until(db, birth.run.id, "RUNNING")
        engine.merchant.shelf[:] = [replace(SMALL, price=3.0)]  # type: ignore[attr-defined]
        await change(db, Fleet.from_json({**POLICY.to_json(), "spot_policy": "on-demand"}))
        await engine.fleets.once()
        await comes_to(db, "BUSY", "TERMINATED", "IDLE", "IDLE")
        await engine.commit(Change(facts=(of_run(birth.run.id, StopAsked()),)))
        await until(db, birth.run.id, "TERMINATED")
        await engine.fleets.once()
        await comes_to(db, "TERMINATED", "TERMINATED", "IDLE", "IDLE")


async def test_a_cluster_grows_where_it_is(database: Databases) -> None:
    """The cheaper offer of today is elsewhere."""
    policy = replace(POLICY, cluster=True)
    south = replace(SMALL, location="south", price=0.5, available=1)
    async with database() as db, fleet_of(db, replace(policy, min_nodes=1), SMALL, south) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE")
        assert await ask(db, "SELECT location FROM instance") == "south"
        await change(db, policy)
        engine.merchant.shelf[:] = [SMALL, replace(south, price=7.0)]  # type: ignore[attr-defined]
        await engine.fleets.once()
        await comes_to(db, "IDLE", "IDLE")
        assert await ask(db, "SELECT array_agg(DISTINCT location) FROM instance") == ["south"]


async def test_a_fleet_deleted_while_it_grows_leaves_nothing(database: Databases) -> None:
    """Two machines are being launched, and the provider has not answered yet."""
    async with database() as db, fleet_of(db) as (engine, provider):
        provider.slow.clear()
        await engine.fleets.once()

        async def asked() -> bool:
            return len(provider.launched) == 2

        await eventually(asked, "the provider is asked")
        await change(db, replace(POLICY, deleting=True))
        await engine.fleets.once()
        assert await ask(db, "SELECT deleted_at FROM fleet") is None, "its machines may be there"
        provider.slow.set()
        await comes_to(db, "TERMINATED", "TERMINATED")
        await engine.fleets.once()
        assert await ask(db, "SELECT deleted_at IS NOT NULL FROM fleet")
        assert await ask(db, "SELECT target FROM journal WHERE kind = 'fleet'") == "DELETED"
        assert (await engine.fleets.once()).did == 0
        assert len(provider.launched) == 2


async def test_nothing_is_placed_in_a_fleet_that_is_being_deleted(database: Databases) -> None:
    async with database() as db, fleet_of(db) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE", "IDLE")
        await change(db, replace(POLICY, deleting=True))
        await engine.commit(Change(runs=(run_of(engine),)))
        await engine.placement.once()
        assert await ask(db, "SELECT count(*) FROM job WHERE instance_id IS NOT NULL") == 0


async def test_a_forced_end_interrupts_what_runs(database: Databases) -> None:
    async with database() as db, fleet_of(db, replace(POLICY, min_nodes=1)) as (engine, _):
        birth = await running(db, engine)
        await change(db, replace(POLICY, deleting=True))
        await engine.fleets.once()
        assert await states(db) == ["BUSY"], "unforced, it waits for its job"
        await change(db, replace(POLICY, deleting=True, forced=True))
        await engine.fleets.once()
        await until(db, birth.run.id, "FAILED", "TERMINATED")
        await comes_to(db, "TERMINATED")


async def running(db: Database, engine: Engine) -> RunBirth:
    await engine.fleets.once()
    await comes_to(db, "IDLE")
    birth = run_of(engine)
    await engine.commit(Change(runs=(birth,)))
    await engine.placement.once()
    await until(db, birth.run.id, "RUNNING")
    return birth


async def test_machines_are_divided_anew_once_nobody_uses_them(database: Databases) -> None:
    """And before the next job is placed: it is counted in the new blocks."""
    async with database() as db, fleet_of(db, replace(POLICY, min_nodes=1, blocks=1)) as (engine, _):
        birth = await running(db, engine)
        await change(db, replace(POLICY, min_nodes=1, blocks=8))
        await engine.fleets.once()
        assert await ask(db, "SELECT blocks FROM instance") == 1
        await engine.commit(Change(facts=(of_run(birth.run.id, StopAsked()),)))
        await until(db, birth.run.id, "TERMINATED")
        again = run_of(engine, "again")
        await engine.commit(Change(runs=(again,)))
        await engine.placement.once()
        await until(db, again.run.id, "RUNNING")
        assert await ask(db, "SELECT blocks FROM instance") == 8
        assert await ask(db, "SELECT cardinality(blocks) FROM job WHERE run_id = $1", again.run.id) == 1


async def test_an_idle_machine_is_divided_at_once(database: Databases) -> None:
    async with database() as db, fleet_of(db, replace(POLICY, min_nodes=1, blocks=1)) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE")
        await change(db, replace(POLICY, min_nodes=1, blocks=8))
        assert (await engine.fleets.once()).did == 1
        assert await ask(db, "SELECT blocks FROM instance") == 8
        assert (await engine.fleets.once()).did == 0


async def test_a_run_that_names_fleets_uses_no_other(database: Databases) -> None:
    """One that is made anew under its name is meant again."""
    async with database() as db, fleet_of(db, replace(POLICY, min_nodes=1)) as (engine, _):
        await engine.fleets.once()
        await comes_to(db, "IDLE")
        elsewhere, here = (
            run_of(engine, "elsewhere", fleets=("gpus",)),
            run_of(engine, "here", fleets=("gpus", "cloud")),
        )
        await engine.commit(Change(runs=(elsewhere, here)))
        await engine.placement.once()
        placed = "SELECT array_agg(run.name) FROM job JOIN run ON run.id = run_id WHERE instance_id IS NOT NULL"
        assert await ask(db, placed) == ["here"]
        await until(db, RunId(here.run.id), "RUNNING")
        await engine.commit(Change(facts=(of_run(here.run.id, StopAsked()),)))
        await until(db, here.run.id, "TERMINATED")
        async with db.transaction() as tx:
            await tx.execute("UPDATE fleet SET name = 'gpus' WHERE id = $1", CLOUD)
        await engine.placement.once()
        await until(db, elsewhere.run.id, "RUNNING")
