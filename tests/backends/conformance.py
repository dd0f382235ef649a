"""What every backend keeps: the contract of `backends/base`, sentence by sentence.

A backend passes by a class of tests that inherits `Conformance` and says in `provider` how it is made.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from stoker.backends.base import Backend, Handle, Order, Refused, Want
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, uuid7
from stoker.core.sight import Sight, Stage

PATIENCE_S = 30.0


@dataclass
class Provider:
    """A backend, and a hand on whatever stands behind it."""

    backend: Backend
    order: Callable[[InstanceId], Order]
    """That it accepts."""
    impossible: Callable[[InstanceId], Order]
    """That it refuses."""
    lose: Callable[[InstanceId], Awaitable[Any]]
    """The machine is gone without a word."""
    preempt: Callable[[InstanceId, float], Awaitable[Any]]
    reopen: Callable[[], Awaitable[Backend]]
    """The process was killed and started again."""


Providers = Callable[[], AbstractAsyncContextManager[Provider]]


def new_id() -> InstanceId:
    """Not one that a test beside this one has: real machines are known, and killed, by their ids."""
    return InstanceId(uuid7(1_700_000_000.0, secrets.randbits(80)))


async def sight(backend: Backend, id: InstanceId, handle: str = "") -> Sight:
    return (await backend.look([Handle(id, handle)]))[id]


async def comes(backend: Backend, id: InstanceId, stage: Stage) -> Sight:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (seen := await sight(backend, id)).stage is not stage:
        assert asyncio.get_running_loop().time() < deadline, f"{id} is {seen}, and not {stage}"
        await asyncio.sleep(0.01)
    return seen


async def destroyed(backend: Backend, handle: Handle) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            return await backend.destroy(handle)
        except Unavailable:
            assert asyncio.get_running_loop().time() < deadline, f"{handle} is not destroyed"
            await asyncio.sleep(0.01)


class Conformance:
    @pytest.fixture
    def provider(self) -> Providers:
        raise NotImplementedError

    async def test_what_is_offered_can_be_launched_and_comes_up_with_the_way_to_it(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            offers = {(offer.name, offer.location, offer.spot): offer for offer in await one.backend.offers(Want())}
            assert offers[order.offer, order.location, order.spot].backend == one.backend.name
            assert await one.backend.launch(order)
            way = (await comes(one.backend, order.id, Stage.UP)).way
            assert way is not None
            assert way.address.partition(":")[2]
            assert way.token
            await destroyed(one.backend, Handle(order.id))

    async def test_a_launch_that_is_asked_for_twice_makes_one_machine(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            handles = await asyncio.gather(one.backend.launch(order), one.backend.launch(order))
            again = await one.backend.launch(order)
            assert {*handles, again} == {handles[0]}
            assert len(await one.backend.find()) == 1
            await destroyed(one.backend, Handle(order.id, again))

    async def test_what_cannot_be_had_is_refused_and_leaves_nothing(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.impossible(new_id())
            with pytest.raises(Refused):
                await one.backend.launch(order)
            assert await one.backend.find() == []
            assert (await sight(one.backend, order.id)).stage is Stage.GONE

    async def test_a_machine_is_found_by_its_tag_and_among_all(self, provider: Providers) -> None:
        async with provider() as one:
            first, second = one.order(new_id()), one.order(new_id())
            handles = {order.id: await one.backend.launch(order) for order in (first, second)}
            assert {handle.id: handle.name for handle in await one.backend.find()} == handles
            assert await one.backend.find(first.id) == [Handle(first.id, handles[first.id])]
            assert await one.backend.find(new_id()) == []
            for order in (first, second):
                await destroyed(one.backend, Handle(order.id))

    async def test_a_machine_is_destroyed_without_its_handle_and_as_often_as_one_likes(
        self, provider: Providers
    ) -> None:
        async with provider() as one:
            order = one.order(new_id())
            await one.backend.launch(order)
            await destroyed(one.backend, Handle(order.id))
            await destroyed(one.backend, Handle(order.id))
            await destroyed(one.backend, Handle(new_id()))
            assert await one.backend.find() == []
            assert (await sight(one.backend, order.id)).stage is Stage.GONE

    async def test_stopping_is_a_courtesy_that_may_be_repeated_and_comes_too_late(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            handle = Handle(order.id, await one.backend.launch(order))
            await one.backend.stop(handle, 0.0)
            await one.backend.stop(handle, 0.0)
            await destroyed(one.backend, handle)
            await one.backend.stop(handle, 0.0)
            assert await one.backend.find() == []

    async def test_a_launch_and_a_destroy_at_once_leave_nothing_that_is_not_found(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            launch = asyncio.ensure_future(one.backend.launch(order))
            await destroyed(one.backend, Handle(order.id))
            await launch
            for handle in await one.backend.find():
                await destroyed(one.backend, handle)
            assert await one.backend.find(order.id) == []

    async def test_a_machine_that_is_lost_is_gone_and_its_backend_says_so_by_itself(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            await one.backend.launch(order)
            await comes(one.backend, order.id, Stage.UP)
            told = asyncio.Event()
            one.backend.changed(told.set)
            await one.lose(order.id)
            await comes(one.backend, order.id, Stage.GONE)
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()

    async def test_a_preemption_is_noticed_with_the_time_that_is_left(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            await one.backend.launch(order)
            assert (await comes(one.backend, order.id, Stage.UP)).taken_in_s is None
            await one.preempt(order.id, 60.0)
            seen = await sight(one.backend, order.id)
            assert seen.stage is Stage.UP
            assert seen.taken_in_s is not None
            assert 50.0 < seen.taken_in_s <= 60.0
            await destroyed(one.backend, Handle(order.id))

    async def test_a_preempted_machine_is_gone_when_its_time_has_come(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            await one.backend.launch(order)
            await comes(one.backend, order.id, Stage.UP)
            await one.preempt(order.id, 0.05)
            await comes(one.backend, order.id, Stage.GONE)

    async def test_machines_outlive_the_process_that_launched_them(self, provider: Providers) -> None:
        async with provider() as one:
            order = one.order(new_id())
            handle = await one.backend.launch(order)
            before = await comes(one.backend, order.id, Stage.UP)
            again = await one.reopen()
            assert await again.find() == [Handle(order.id, handle)]
            assert (await comes(again, order.id, Stage.UP)).way == before.way
            assert await again.launch(order) == handle
            await destroyed(again, Handle(order.id))
