"""What could be launched, as the placer sees it: kept up to date, and without what has just failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stoker.backends.base import Backend, Handle, Order, Want
from stoker.core.block import Blocks
from stoker.core.commitment import Moved
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, uuid7
from stoker.core.instance_facts import Destroy, Instance, Launch, Launched, PreemptionNoticed, Refused
from stoker.core.machine import Effect
from stoker.core.offer import Offer
from stoker.core.resources import Capacity
from stoker.core.sight import Sight
from stoker.engine.change import Change, of_instance
from stoker.engine.errand import Performer
from stoker.engine.market import Market
from stoker.store.outbox import Errand
from tests.conftest import Databases
from tests.engine.conftest import engine_with

SMALL = Offer("shop", "small", "here", Capacity(2, 4096), price=1.0, available=5)
LARGE = replace(SMALL, name="large", price=4.0)
NOW = 10_000.0


async def _nothing(errand: Errand, effect: Effect) -> Change:
    return Change()


IDLE: dict[type[Effect], Performer] = {Launch: _nothing, Destroy: _nothing}
"""Nobody does what instances wish."""


class Shop:
    """A backend that only has offers."""

    name = "shop"

    def __init__(self, *offers: Offer) -> None:
        self.said: Sequence[Offer] | None = offers

    async def offers(self, want: Want) -> Sequence[Offer]:
        if self.said is None:
            raise Unavailable("not now")
        return self.said

    async def launch(self, order: Order) -> str:
        raise AssertionError

    async def look(self, handles: Sequence[Handle]) -> Mapping[InstanceId, Sight]:
        raise AssertionError

    async def stop(self, handle: Handle, grace_s: float) -> None:
        raise AssertionError

    async def destroy(self, handle: Handle) -> None:
        raise AssertionError

    async def find(self, tag: InstanceId | None = None) -> Sequence[Handle]:
        raise AssertionError

    def changed(self, tell: Callable[[], None]) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


class Bell:
    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def shops(*shops: Backend) -> dict[str, Backend]:
    return {f"{one.name}-{number}": one for number, one in enumerate(shops)}


def machine(offer: Offer, number: int = 1) -> Instance:
    id = InstanceId(uuid7(NOW, number))
    return Instance(id, None, offer.backend, Blocks(offer.capacity, 1), offer=offer.name, location=offer.location)


async def test_the_placer_hears_of_offers_that_changed_and_not_of_those_that_did_not(database: Databases) -> None:
    async with database() as db:
        shop, bell = Shop(SMALL), Bell()
        market = Market(db, lambda: NOW, shops(shop), bell)
        assert market.offers(NOW) == ()
        await market.once()
        await market.once()
        assert (market.offers(NOW), bell.rung) == ((SMALL,), 1)
        shop.said = (replace(SMALL, available=0),)
        await market.once()
        assert (market.offers(NOW), bell.rung) == ((replace(SMALL, available=0),), 2)


async def test_a_backend_that_does_not_answer_is_known_by_what_it_said_before(database: Databases) -> None:
    async with database() as db:
        silent, other = Shop(SMALL), Shop(LARGE)
        market = Market(db, lambda: NOW, shops(silent, other), Bell())
        await market.once()
        silent.said, other.said = None, (replace(LARGE, price=3.0),)
        assert "not now" in (await market.once()).error
        assert market.offers(NOW) == (SMALL, replace(LARGE, price=3.0))


async def test_what_was_refused_rests_and_comes_back_with_its_failure_in_its_rank(database: Databases) -> None:
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        market = Market(db, engine.clock.now, shops(Shop(SMALL, LARGE)), Bell())
        one = machine(SMALL)
        await engine.commit(Change(instances=(one,)))
        await engine.commit(Change(facts=(of_instance(one.id, Refused("full")),)))
        counts = await market.once()
        small, large = market.offers(0.0)
        assert (small.available, len(small.failures), large) == (0, 1, LARGE)
        assert small.resting_until is not None, "whoever asks is told when it is tried again"
        assert 0.9 <= small.resting_until - small.failures[0] <= 2.0
        assert counts.again_after_s is not None
        assert 0 < counts.again_after_s <= 1.001
        later = Market(db, lambda: engine.clock.now() + 2.0, shops(Shop(SMALL)), Bell())
        await later.once()
        (rested,) = later.offers(0.0)
        assert (rested.available, rested.failures) == (5, small.failures)
        forgotten = Market(db, lambda: engine.clock.now() + 86_400.0, shops(Shop(SMALL)), Bell())
        await forgotten.once()
        assert forgotten.offers(0.0) == (SMALL,)


async def test_a_machine_that_was_preempted_after_a_good_life_costs_rank_and_no_rest(database: Databases) -> None:
    async with database() as db, engine_with(db, IDLE, without=("placement", "timer")) as engine:
        market = Market(db, engine.clock.now, shops(Shop(SMALL)), Bell())
        one = machine(SMALL)
        await engine.commit(Change(instances=(one,)))
        await engine.commit(
            Change(facts=(of_instance(one.id, Launched("x")), of_instance(one.id, PreemptionNoticed())))
        )
        async with db.connection() as connection:
            await connection.execute("UPDATE instance SET launched_at = failed_at - 3600")
        await market.once()
        (offer,) = market.offers(0.0)
        assert (offer.available, len(offer.failures)) == (5, 1)


async def test_a_failure_is_known_before_the_next_look(database: Databases) -> None:
    """The commit that tells it wakes the placer too, which must not ask the same again."""
    async with database() as db:
        market = Market(db, lambda: NOW, shops(Shop(SMALL)), Bell())
        await market.once()
        before = machine(SMALL)
        after = replace(before, failed_at=NOW)
        assert not market.saw([Moved("instance", before, before, None, None)])
        assert market.saw([Moved("instance", before, after, None, None)])
        assert [offer.available for offer in market.offers(NOW)] == [0]
        assert not market.saw([Moved("instance", after, after, None, None)])
