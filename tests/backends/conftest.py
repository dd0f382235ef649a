"""A whole server with the dummy backend and a fleet that may launch machines there."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest

from stoker.backends.dummy.steering import Steering
from stoker.core.family import found
from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId, InstanceId, RunId
from stoker.core.instance_facts import DeleteAsked
from stoker.core.policy import Policy
from stoker.core.reason import RetryEvent
from stoker.core.resources import Request
from stoker.core.retry import Retry
from stoker.engine.change import Change, RunBirth, of_instance
from stoker.runner.proc import has_in_environment, pids
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.server.workshop import MACHINE_VARIABLE
from stoker.store import fleet as fleet_store
from stoker.store import project as project_store
from stoker.store.run_spec import RunSpec
from stoker.wire.configuration import TaskConfiguration, stored
from tests.api.conftest import Client
from tests.conftest import Databases

PATIENCE_S = 30.0


@dataclass
class Town:
    """`served` anew after each restart."""

    settings: Settings
    http: aiohttp.ClientSession
    served: Served
    submissions: int = 0

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

    async def fleet(self, policy: Fleet) -> None:
        async with self.context.database.transaction() as tx:
            spec = json.dumps({"type": "fleet", "name": "dummies", "backends": ["dummy"], "nodes": "0.."})
            id, _ = await fleet_store.ensure(tx, FleetId(UUID(int=7)), "dummies", None, spec, policy, 0.0)
            await tx.execute("UPDATE fleet SET policy = $2 WHERE id = $1", id, json.dumps(policy.to_json()))

    async def submit(self, *commands: str, retry: bool = False, **policy: Any) -> RunId:
        """By a commit, since retries cannot be asked for otherwise."""
        self.submissions += 1
        engine, name = self.context.engine, f"run-{self.submissions}"
        async with self.context.database.connection() as connection:
            project = await project_store.get(connection, "main")
        events = Retry(on_events=frozenset(RetryEvent)) if retry else None
        run = found(RunId(engine.new_id()), project.id, name, Policy(retry=events, **policy), engine.clock.now())
        configuration = TaskConfiguration(type="task", commands=commands)
        spec = RunSpec(run.id, project.id, name, "test", configuration.type, stored(configuration))
        await engine.commit(Change(runs=(RunBirth(run, Request(), spec),)))
        return run.id

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
        await self.context.engine.commit(Change(facts=(of_instance(InstanceId(id), DeleteAsked(force=True)),)))


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
            async with running(settings) as served:
                made = Town(settings, http, served)
                await made.fleet(Fleet(0, nodes, backends=("dummy",)))
                served.context.engine.wake("market")
                ids = set[UUID]()
                try:
                    yield made
                finally:
                    ids = {one["id"] for one in await made.instances()}
                    for machine in list(made.steering.dummy.machines.values()):
                        await made.steering.dummy.end(machine, "the test is over")
        marks = [f"{MACHINE_VARIABLE}={id}".encode() for id in ids]
        assert not [pid for pid in pids() if any(has_in_environment(pid, mark) for mark in marks)]

    return open
