"""A whole server with the dummy backend and a fleet that may launch machines there."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import asyncpg
import pytest

from stoker.backends.dummy.steering import Steering
from stoker.core.ids import RunId
from stoker.engine.clock import DatabaseClock
from stoker.runner.proc import has_in_environment, pids
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.server.workshop import MACHINE_VARIABLE
from tests.api.conftest import Client
from tests.conftest import Databases

PATIENCE_S = 30.0
PROJECT = "/api/projects/main"


@dataclass
class Town:
    """`served` anew after each restart."""

    settings: Settings
    http: aiohttp.ClientSession
    served: Served = field(init=False)
    life: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def context(self) -> Context:
        return self.served.context

    @property
    def steering(self) -> Steering:
        assert self.context.dummy is not None
        return self.context.dummy

    @property
    def admin(self) -> Client:
        return Client(self.http, self.served.url, Keyring(self.settings.config_file).secret)

    async def rows(self, query: str, *arguments: Any) -> list[dict[str, Any]]:
        async with self.context.database.connection() as connection:
            return [dict(row) for row in await connection.fetch(query, *arguments)]

    async def fleet(self, nodes: int | str, name: str = "dummies", **more: Any) -> None:
        """Made, or changed in place."""
        configuration = {"type": "fleet", "name": name, "backends": ["dummy"], "nodes": nodes, **more}
        done = await self.admin.post(f"{PROJECT}/fleets", {"configuration": configuration})
        assert done.status in (200, 201), done.body

    async def behave(self, **said: Any) -> None:
        """Of the provider, from now on."""
        done = await self.admin.ask("PATCH", "/api/dummy/offers/box", said)
        assert done.status == 200, done.body

    async def strike(self, id: UUID, what: str, **body: Any) -> None:
        """A machine is to `preempt`, `vanish`, `hang` or `resume`."""
        done = await self.admin.post(f"/api/dummy/machines/{id}/{what}", body or None)
        assert done.status == 204, done.body

    async def submit(self, *commands: str, **more: Any) -> RunId:
        """As `POST /runs` takes it; of a length of time in seconds the name may say so: `stop_duration_s=0.1`."""
        said = {name.removesuffix("_s"): value for name, value in more.items()}
        configuration = {"type": "task", **({"commands": list(commands)} if commands else {}), **said}
        made = await self.admin.made(f"{PROJECT}/runs", {"configuration": configuration})
        return RunId(UUID(made["id"]))

    async def run(self, run_id: RunId, *states: str) -> dict[str, Any]:
        """As the API shows it, once it is in one of these states; in any, if none is named."""

        async def there() -> dict[str, Any] | None:
            shown = await self.admin.get(f"{PROJECT}/runs/{run_id}")
            assert shown.status == 200, shown.body
            return shown.body if not states or shown.body["status"] in states else None

        found: dict[str, Any] = await self.until(there, f"the run is {states}", lambda: self.jobs(run_id))
        return found

    async def ask(self, run_id: RunId, what: str, **body: Any) -> dict[str, Any]:
        """`stop`, `trigger`, `release` and so on."""
        done = await self.admin.post(f"{PROJECT}/runs/{run_id}/{what}", body or None)
        assert done.status in (200, 201), done.body
        told: dict[str, Any] = done.body
        return told

    async def story(self, run_id: RunId) -> list[tuple[str, str]]:
        """The states that the run itself went through, with what was said."""
        told = await self.admin.get(f"{PROJECT}/runs/{run_id}/events?limit=500")
        return [(one["target"], one["message"]) for one in told.body["items"] if one["kind"] == "run"]

    async def jobs(self, run_id: RunId) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM job WHERE run_id = $1 ORDER BY replica, node, attempt", run_id)

    async def job(self, run_id: RunId, *states: str) -> dict[str, Any]:
        """Its latest submission, once it is in one of these states."""

        async def there() -> dict[str, Any] | None:
            job = (await self.jobs(run_id))[-1]
            return job if job["state"] in states else None

        found: dict[str, Any] = await self.until(there, f"the job is {states}", lambda: self.jobs(run_id))
        return found

    async def instances(self) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM instance WHERE backend = 'dummy' ORDER BY id")

    async def instance(self, id: UUID, *states: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            (row,) = await self.rows("SELECT * FROM instance WHERE id = $1", id)
            return row if row["state"] in states else None

        found: dict[str, Any] = await self.until(there, f"the instance is {states}", self.instances)
        return found

    async def until(
        self, ask: Callable[[], Awaitable[Any]], what: str, seen: Callable[[], Awaitable[Any]] | None = None
    ) -> Any:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not (found := await ask()):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"waited {PATIENCE_S:.0f} s in vain: {what}; {await seen() if seen else ''}")
            await asyncio.sleep(0.005)
        return found

    def later(self, seconds: float) -> None:
        """So long passes at once for the server; its machines do not notice."""
        clock = self.context.engine.clock
        assert isinstance(clock, DatabaseClock)
        clock._offset += seconds
        for loop in ("timer", "fleets"):
            self.context.engine.wake(loop)

    def next_minute(self) -> None:
        """Another one does not come by itself while a test lasts."""
        self.later(61.0 - self.context.engine.clock.now() % 60.0)

    async def restarted(self, *while_away: str) -> None:
        """With these statements in between."""
        await self.close()
        connection = await asyncpg.connect(self.settings.database_url)
        for statement in while_away:
            await connection.execute(statement)
        await connection.close()
        await self.open()

    async def open(self) -> None:
        self.served = await self.life.enter_async_context(running(self.settings))

    async def close(self) -> None:
        await self.life.aclose()

    async def empty(self) -> None:
        """Nothing leaks: everything with our tag is gone, and so are all instances."""

        async def gone() -> bool:
            left = [one for one in await self.instances() if one["state"] != "TERMINATED"]
            return not left and not self.steering.dummy.machines

        await self.until(gone, "everything is gone", self.instances)

    async def retire_all(self) -> None:
        for one in await self.instances():
            if one["state"] != "TERMINATED":
                await self.delete(one["id"])
        await self.empty()

    async def delete(self, id: UUID) -> None:
        done = await self.admin.delete(f"{PROJECT}/instances/{id}?force=true")
        assert done.status == 200, done.body


Towns = Callable[..., AbstractAsyncContextManager[Town]]


@pytest.fixture
def home(shared_directory: Path) -> Iterator[Path]:
    made = shared_directory / f"town-{uuid4().hex[:6]}"
    made.mkdir(mode=0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def town(database: Databases, home: Path) -> Towns:
    """`offer` is the only one, with two locations; `nodes` is how many the fleet may have."""

    @asynccontextmanager
    async def open(*, nodes: int = 4, **offer: Any) -> AsyncIterator[Town]:
        said = {"name": "box", "cpu": 2, "memory": "4GB", "price": 1} | offer
        (home / "backends.yml").write_text(json.dumps({"dummy": {"offers": [said]}}))
        async with database() as db, aiohttp.ClientSession() as http:
            settings = Settings(home, port=0, database_url=db.url, logs=home / "logs", name="town")
            made, ids = Town(settings, http), set[UUID]()
            await made.open()
            try:
                await made.fleet(f"0..{nodes}")
                made.context.engine.wake("market")
                yield made
            finally:
                ids = {one["id"] for one in await made.instances()}
                for machine in list(made.steering.dummy.machines.values()):
                    await made.steering.dummy.end(machine, "the test is over")
                await made.close()
        marks = [f"{MACHINE_VARIABLE}={id}".encode() for id in ids]
        assert not [pid for pid in pids() if any(has_in_environment(pid, mark) for mark in marks)]

    return open
