"""The dummy backend keeps the contract with both kinds of machines, and does what it is told to do wrong."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.backends.base import Backend, Handle, Order, Refused, Want
from stoker.backends.dummy.backend import Dummy
from stoker.backends.dummy.kind import Key, Kind, kinds_of, steered
from stoker.backends.dummy.steering import Steering
from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.core.ids import InstanceId
from stoker.core.sight import Stage
from stoker.runner.proc import has_in_environment, pids
from stoker.server.workshop import MACHINE_VARIABLE, Workshop, kill_agents
from stoker.wire.dummy import Behaviour, DummyOffer, Lie
from tests.backends.conformance import Conformance, Provider, Providers, comes, destroyed, new_id, sight

KEY = Key("box", "here", False)


def offer(*, real: bool = False, **fields: object) -> DummyOffer:
    said = {"name": "box", "cpu": 2, "memory": "4GB", "spot_price": 0, "locations": ["here", "there"]}
    return DummyOffer.model_validate(said | {"real": real} | fields)


def order(id: InstanceId, key: Key = KEY) -> Order:
    return Order(id, key.name, key.location, key.spot, offer().resources)


class Stand:
    """A dummy backend in a directory, which can be closed and opened again."""

    def __init__(self, home: Path, kinds: dict[Key, Kind]) -> None:
        self.home, self.kinds = home, kinds
        self.dummy = self._made()

    def _made(self) -> Dummy:
        dummy = Dummy(self.home, self.kinds, Workshop())
        dummy.open()
        return dummy

    @property
    def steering(self) -> Steering:
        return Steering(self.dummy)

    async def reopen(self) -> Dummy:
        await self.dummy.close()
        self.dummy = self._made()
        return self.dummy


Stands = Callable[..., AbstractAsyncContextManager[Stand]]


@pytest.fixture
def directory(shared_directory: Path) -> Iterator[Path]:
    made = shared_directory / f"dummy-{uuid4().hex[:6]}"
    made.mkdir(mode=0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def stand(directory: Path) -> Stands:
    @asynccontextmanager
    async def open(*, real: bool = False, **fields: object) -> AsyncIterator[Stand]:
        made = Stand(directory / "dummy", kinds_of([offer(real=real, **fields)]))
        try:
            yield made
        finally:
            for machine in list(made.dummy.machines.values()):
                await made.dummy.end(machine, "the test is over")
            await made.dummy.close()
            marks = [f"{MACHINE_VARIABLE}={id}".encode() for id in made.dummy._gone]
            assert not [pid for pid in pids() if any(has_in_environment(pid, mark) for mark in marks)]
            assert list((directory / "dummy" / "machines").iterdir()) == []

    return open


class TestSimulated(Conformance):
    real = False

    @pytest.fixture
    def provider(self, stand: Stands) -> Providers:
        @asynccontextmanager
        async def made() -> AsyncIterator[Provider]:
            async with stand(real=self.real) as one:

                async def lose(id: InstanceId) -> None:
                    await one.steering.vanish(one.dummy.machines[id])

                async def preempt(id: InstanceId, notice_s: float) -> None:
                    one.steering.preempt(one.dummy.machines[id], notice_s)

                async def reopen() -> Backend:
                    return await one.reopen()

                yield Provider(one.dummy, order, lambda id: order(id, KEY._replace(name="none")), lose, preempt, reopen)

        return made


class TestReal(TestSimulated):
    real = True


async def test_a_full_offer_refuses_and_says_so_before(stand: Stands) -> None:
    async with stand(capacity=1) as one:
        left = {offer.location: offer.available for offer in await one.dummy.offers(Want()) if not offer.spot}
        assert left == {"here": 1, "there": 1}
        first = new_id()
        await one.dummy.launch(order(first))
        left = {offer.location: offer.available for offer in await one.dummy.offers(Want()) if not offer.spot}
        assert left == {"here": 0, "there": 1}
        with pytest.raises(Refused, match="no capacity"):
            await one.dummy.launch(order(new_id()))
        await destroyed(one.dummy, Handle(first))
        await one.dummy.launch(order(new_id()))


async def test_a_machine_comes_up_after_its_delay_and_not_before(stand: Stands) -> None:
    async with stand(launch_delay=0.2) as one:
        id = new_id()
        told = asyncio.Event()
        await one.dummy.launch(order(id))
        one.dummy.changed(told.set)
        assert (await sight(one.dummy, id)).stage is Stage.COMING
        with pytest.raises(Unavailable):
            await one.dummy.agents.shim(id, "", "").host()
        async with asyncio.timeout(10):
            await told.wait()
        assert (await sight(one.dummy, id)).stage is Stage.UP
        assert (await one.dummy.agents.shim(id, "", "").host()).cpus == 2


async def test_a_delay_that_a_restart_interrupts_goes_on(stand: Stands) -> None:
    async with stand(launch_delay=0.3) as one:
        id = new_id()
        await one.dummy.launch(order(id))
        again = await one.reopen()
        assert (await sight(again, id)).stage is Stage.COMING
        await comes(again, id, Stage.UP)


async def test_a_provider_that_forgets_says_yes_and_has_nothing(stand: Stands) -> None:
    async with stand(lie="forget") as one:
        id = new_id()
        assert await one.dummy.launch(order(id))
        assert await one.dummy.find() == []
        assert (await sight(one.dummy, id)).stage is Stage.GONE


async def test_a_provider_that_fails_says_no_and_has_a_machine(stand: Stands) -> None:
    async with stand(lie="fail") as one:
        id = new_id()
        with pytest.raises(Refused):
            await one.dummy.launch(order(id))
        assert [handle.id for handle in await one.dummy.find()] == [id]


async def test_a_stillborn_machine_is_always_coming(stand: Stands) -> None:
    async with stand(lie="stillborn") as one:
        id = new_id()
        await one.dummy.launch(order(id))
        assert (await sight(one.dummy, id)).stage is Stage.COMING
        assert one.dummy.machines[id].up_at is None


async def test_a_slow_destroy_is_unavailable_until_it_is_over(stand: Stands) -> None:
    async with stand(destroy_delay=0.2) as one:
        id = new_id()
        await one.dummy.launch(order(id))
        with pytest.raises(Unavailable, match="shutting down"):
            await one.dummy.destroy(Handle(id))
        assert (await sight(one.dummy, id)).stage is Stage.UP
        await destroyed(one.dummy, Handle(id))
        assert (await sight(one.dummy, id)).stage is Stage.GONE


async def test_a_spot_machine_is_taken_back_after_its_time_with_notice_and_others_are_not(stand: Stands) -> None:
    async with stand(preempt_after=0.1, preempt_notice=0.2) as one:
        spot, kept = new_id(), new_id()
        await one.dummy.launch(order(spot, KEY._replace(spot=True)))
        await one.dummy.launch(order(kept))
        deadline = asyncio.get_running_loop().time() + 10
        while (seen := await sight(one.dummy, spot)).taken_in_s is None:
            assert seen.stage is Stage.UP
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        gone = await comes(one.dummy, spot, Stage.GONE)
        assert "preempted" in gone.message
        assert (await sight(one.dummy, kept)).taken_in_s is None


async def test_each_machine_has_an_address_of_its_own(stand: Stands) -> None:
    async with stand() as one:
        ids = [new_id() for _ in range(300)]
        for id in ids:
            await one.dummy.launch(order(id))
        ways = [(await sight(one.dummy, id)).way for id in ids]
        ips = {way.ip for way in ways if way is not None}
        assert len(ips) == 300
        assert all(ip.startswith("127.77.") and ip.rpartition(".")[2] not in ("0", "255") for ip in ips)


async def test_what_was_changed_while_it_ran_is_known_after_a_restart_until_it_is_reset(stand: Stands) -> None:
    async with stand(capacity=5) as one:
        changed = one.steering.change("box", "here", None, Behaviour.model_validate({"capacity": 0, "lie": "fail"}))
        assert {kind.key for kind in changed} == {KEY, KEY._replace(spot=True)}
        again = Steering(Dummy(one.home, one.kinds, Workshop()))
        assert (again.dummy.kinds[KEY].room, again.dummy.kinds[KEY].lie) == (0, Lie.FAIL)
        assert again.dummy.kinds[KEY._replace(location="there")].room == 5
        again.reset()
        assert Steering(Dummy(one.home, one.kinds, Workshop())).dummy.kinds[KEY].room == 5


async def test_what_is_not_there_cannot_be_steered(stand: Stands) -> None:
    async with stand() as one:
        with pytest.raises(NotFound, match="no such offer"):
            one.steering.change("bx", None, None, Behaviour())
        with pytest.raises(NotFound, match="no machine"):
            one.steering.machine("dummy-000000")
        id = new_id()
        await one.dummy.launch(order(id))
        machine = one.steering.machine(one.dummy.machines[id].name)
        one.steering.preempt(machine, 60.0)
        with pytest.raises(Conflict, match="already"):
            one.steering.preempt(one.steering.machine(str(id)), 60.0)


async def test_a_hanging_machine_is_up_at_its_provider_and_answers_nobody(stand: Stands) -> None:
    async with stand() as one:
        id = new_id()
        await one.dummy.launch(order(id))
        shim = one.dummy.agents.shim(id, "", "")
        cursor = (await shim.changes("", 0.0)).cursor
        waiting = asyncio.ensure_future(shim.changes(cursor, 60.0))
        await asyncio.sleep(0)
        await one.steering.hang(one.dummy.machines[id], on=True)
        with pytest.raises(Unavailable):
            await waiting
        assert (await sight(one.dummy, id)).stage is Stage.UP
        again = await one.reopen()
        with pytest.raises(Unavailable, match="hangs"):
            await again.agents.shim(id, "", "").host()
        await one.steering.hang(again.machines[id], on=False)
        assert (await again.agents.shim(id, "", "").changes("", 0.0)).complete


async def test_an_agent_that_was_killed_is_started_again_and_its_machine_is_the_same(stand: Stands) -> None:
    async with stand(real=True) as one:
        id = new_id()
        await one.dummy.launch(order(id))
        before = await comes(one.dummy, id, Stage.UP)
        workshop = Workshop()
        home = one.dummy.shelf.agent(id)
        await asyncio.to_thread(kill_agents, id)
        assert not workshop.listening(home)
        deadline = asyncio.get_running_loop().time() + 30
        while not workshop.listening(home):
            assert asyncio.get_running_loop().time() < deadline
            assert (await sight(one.dummy, id)).stage is Stage.UP
            await asyncio.sleep(0.02)
        assert (await sight(one.dummy, id)).way == before.way


def test_a_kind_is_steered_by_what_is_given_and_by_nothing_else() -> None:
    kind = kinds_of([offer(capacity=3, price=2)])[KEY]
    assert steered(kind, Behaviour.model_validate({"capacity": None})) == replace(kind, room=None)
    assert steered(kind, Behaviour()) == kind
