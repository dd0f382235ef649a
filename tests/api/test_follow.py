"""Who begins to read a log gets its runner asked, also when somebody else has just stopped."""

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

from stoker.core.errors import NotFound
from stoker.core.ids import InstanceId, JobId
from stoker.server.follow import Followers
from stoker.server.log_hub import Bell, LogHub
from tests.api.conftest import eventually


class Orders:
    """Knows no job; the next reader comes in the moment in which a follower learns that."""

    def __init__(self) -> None:
        self.asked: list[UUID] = []
        self.followers: Followers | None = None

    async def place(self, id: JobId) -> InstanceId:
        self.asked.append(id)
        if self.followers is not None and len(self.asked) == 1:
            asyncio.get_running_loop().call_soon(self.followers.want, id)
        raise NotFound("It is not there yet.")


async def test_a_reader_who_comes_in_the_moment_in_which_a_follower_ends_is_not_forgotten() -> None:
    orders, hub, id = Orders(), LogHub(), uuid4()
    nobody = cast(Any, None)
    followers = Followers(nobody, cast(Any, orders), nobody, hub)
    orders.followers = followers
    hub.wanted = followers.want

    async def asked_twice() -> bool:
        return len(orders.asked) == 2

    async def over() -> bool:
        return not followers._tasks

    with hub.hung(id, Bell()):
        await eventually(asked_twice, "the runner is looked for again", 5.0)
        await eventually(over, "nothing is left of it", 5.0)
