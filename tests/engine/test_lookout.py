"""The lookout: what providers say reaches our records, and machines that nobody wants are not left behind."""

from collections.abc import Callable, Mapping, Sequence

from stoker.backends.base import Handle, Order, Want
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, uuid7
from stoker.core.instance_facts import Destroyed, Launched, PreemptionNoticed, S
from stoker.core.offer import Offer
from stoker.core.sight import Sight, Stage, Way
from stoker.engine.change import Change, of_instance
from stoker.engine.engine import Engine
from stoker.engine.lookout import Lookout
from stoker.store import host as host_store
from stoker.store import instance as instance_store
from stoker.store import journal
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import engine_with
from tests.engine.test_market import IDLE, SMALL, machine


class Cloud:
    """What it knows, and what is asked of it."""

    name = "shop"

    def __init__(self) -> None:
        self.sights: dict[InstanceId, Sight] = {}
        self.destroyed: list[InstanceId] = []
        self.error = ""

    async def offers(self, want: Want) -> Sequence[Offer]:
        return ()

    async def launch(self, order: Order) -> str:
        raise AssertionError

    async def look(self, handles: Sequence[Handle]) -> Mapping[InstanceId, Sight]:
        return {handle.id: self.sights.get(handle.id, Sight(Stage.GONE)) for handle in handles}

    async def stop(self, handle: Handle, grace_s: float) -> None:
        raise AssertionError

    async def destroy(self, handle: Handle) -> None:
        if self.error:
            raise Unavailable(self.error)
        self.destroyed.append(handle.id)
        self.sights.pop(handle.id, None)

    async def find(self, tag: InstanceId | None = None) -> Sequence[Handle]:
        return [Handle(id, "vm") for id in self.sights]

    def changed(self, tell: Callable[[], None]) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def lookout(
    db: Database, engine: Engine, cloud: Cloud, reached: list[str] | None = None, orphan_s: float = 5.0
) -> Lookout:
    told = reached if reached is not None else []
    return Lookout(
        db, engine.commit, engine.clock.now, {"shop": cloud}, lambda: told.append("reached"), orphan_s=orphan_s
    )


async def launched(engine: Engine, number: int) -> InstanceId:
    one = machine(SMALL, number)
    await engine.commit(Change(instances=(one,)))
    await engine.commit(Change(facts=(of_instance(one.id, Launched("vm")),)))
    return one.id


async def state(db: Database, id: InstanceId) -> S:
    async with db.connection() as connection:
        return (await instance_store.get(connection, id)).state


async def test_the_way_to_a_machine_is_written_down_once_as_soon_as_it_is_known(database: Databases) -> None:
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        cloud, reached = Cloud(), list[str]()
        id = await launched(engine, 1)
        look = lookout(db, engine, cloud, reached)
        cloud.sights[id] = Sight(Stage.COMING)
        await look.once()
        assert reached == []
        cloud.sights[id] = Sight(Stage.UP, Way("unix:/x", "secret", "10.0.0.1"))
        await look.once()
        await look.once()
        assert reached == ["reached"]
        async with db.connection() as connection:
            assert await host_store.get(connection, id) == ("unix:/x", "secret", "10.0.0.1")


async def test_what_is_gone_and_what_will_be_is_told_and_a_launch_under_way_is_left_alone(database: Databases) -> None:
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        cloud = Cloud()
        kept, gone, leaving = [await launched(engine, number) for number in (1, 2, 3)]
        pending = machine(SMALL, 4)
        await engine.commit(Change(instances=(pending,)))
        cloud.sights = {kept: Sight(Stage.UP), leaving: Sight(Stage.UP, taken_in_s=30.0)}
        assert (await lookout(db, engine, cloud).once()).did == 2
        states = [await state(db, id) for id in (kept, gone, leaving, pending.id)]
        assert states == [S.PROVISIONING, S.TERMINATING, S.TERMINATING, S.PENDING]
        assert (await lookout(db, engine, cloud).once()).did == 0


async def test_an_orphan_is_left_for_its_grace_then_destroyed_and_shown(database: Databases) -> None:
    """A stopped server left it, or a launch that came true after its instance was given up."""
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        cloud = Cloud()
        known = await launched(engine, 1)
        buried = await launched(engine, 2)
        leave = (of_instance(buried, PreemptionNoticed()), of_instance(buried, Destroyed()))
        await engine.commit(Change(facts=leave))
        foreign = InstanceId(uuid7(5.0, 5))
        cloud.sights = {id: Sight(Stage.UP) for id in (known, buried, foreign)}
        patient = lookout(db, engine, cloud)
        counts = await patient.once()
        assert (counts.did, cloud.destroyed) == (0, [])
        assert counts.again_after_s is not None
        assert 4.0 < counts.again_after_s <= 5.0
        hasty = lookout(db, engine, cloud, orphan_s=0.0)
        cloud.error = "not now"
        assert (await hasty.once()).did == 0
        cloud.error = ""
        assert (await hasty.once()).did == 2
        assert set(cloud.destroyed) == {buried, foreign}
        async with db.connection() as connection:
            (line,) = await journal.story(connection, foreign)
        assert (line.event, line.target) == ("OrphanDestroyed", "TERMINATED")
        assert (await hasty.once()).again_after_s is None


async def test_a_stranger_that_leaves_by_itself_is_forgotten(database: Databases) -> None:
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        cloud = Cloud()
        cloud.sights = {InstanceId(uuid7(5.0, 5)): Sight(Stage.UP)}
        look = lookout(db, engine, cloud)
        assert (await look.once()).again_after_s is not None
        cloud.sights = {}
        assert (await look.once()).again_after_s is None
