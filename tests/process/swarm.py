"""What the tests of the swarm share: people and played workers who speak to a real server, and real workers of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from tests.api.conftest import Client, Json, Reply
from tests.api.swarming import TASKS, WORKERS, Worker, one, registered, submit
from tests.process.stand import Stand
from tests.process.stand import until as until_now
from tests.worker.stage import Hand

REAL = "real"
"""The group whose tasks the real worker of the shared server takes."""
PATIENCE_S = 30.0


@dataclass
class Scene:
    """One person who speaks to the server. Tasks and workers of one group do not see those of another."""

    client: Client
    group: str

    async def one(self, **fields: Any) -> str:
        return await one(self.client, **{"group": self.group, **fields})

    async def submit(self, *tasks: Json) -> list[str]:
        return await submit(self.client, *({"group": self.group, **task} for task in tasks))

    async def worker(self) -> Worker:
        """One that says what the test says."""
        return await registered(self.client, group=self.group)

    async def get(self, id: str, part: str = "") -> Json:
        answer = await self.client.get(f"{TASKS}/{id}{part}")
        assert answer.status == 200, answer.body
        return answer.body

    async def state(self, id: str) -> str:
        state: str = (await self.get(id))["state"]
        return state

    async def states(self, *ids: str) -> list[str]:
        return [await self.state(id) for id in ids]

    async def history(self, id: str) -> list[Json]:
        items: list[Json] = (await self.get(id, "/history"))["items"]
        return items

    async def patch(self, id: str, body: Json) -> Reply:
        return await self.client.ask("PATCH", f"{TASKS}/{id}", body)

    async def cancel(self, *ids: str) -> Json:
        answer = await self.client.post(f"{TASKS}/cancel", {"ids": list(ids)})
        assert answer.status == 200, answer.body
        return answer.body

    async def reaches(self, id: str, *states: str, patience_s: float = PATIENCE_S) -> Json:
        """The task, once it is in one of these states."""

        async def there() -> Json:
            task = await self.get(id)
            return task if task["state"] in states else None

        return await until(there, f"{id} is {' or '.join(states)}", patience_s)

    async def begun(self, id: str) -> Json:
        """The task, once its worker has said that it has begun."""

        async def there() -> Json:
            task = await self.get(id)
            return task if (task["execution_info"] or {}).get("time_started") else None

        return await until(there, f"{id} has begun")

    async def output(self, id: str, stream: str = "stdout") -> bytes:
        pieces, offset, complete = [], 0, False
        while not complete:
            piece = await self.client.get(f"{TASKS}/{id}/logs?stream={stream}&offset={offset}")
            assert piece.status == 200, piece.body
            pieces.append(piece.body)
            offset, complete = offset + len(piece.body), piece.headers["Stoker-Log-Complete"] == "true"
        return b"".join(pieces)


@asynccontextmanager
async def scene(stand: Stand, group: str = "") -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(Client(session, stand.url, stand.client.token), group or f"g-{uuid4().hex[:12]}")


async def until(happened: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it is true; it may be asked in vain."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        answer = happened()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        assert asyncio.get_running_loop().time() < deadline, f"waited {patience_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.02)


def hand(stand: Stand, home: Path, *options: str, url: str = "") -> Hand:
    """A real worker that is registered. Whoever starts it kills it."""
    workers = f"{WORKERS}?all=true"
    before = {one["id"] for one in stand.client.get(workers)["items"]}
    made = Hand(stand, home, *options, STOKER_TOKEN=stand.client.token, STOKER_URL=url or stand.url)

    def registered() -> bool:
        assert made.keeper.poll() is None, made.said()
        return any(one["id"] not in before for one in stand.client.get(workers)["items"])

    try:
        until_now(registered, f"the worker of {home} is registered")
    except AssertionError:
        made.kill()
        raise
    return made
