"""A whole server in the test's own event loop, on a loopback port, with agents that answer at once."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stoker.core.instance_facts import Launched, ShimAnswered
from stoker.engine.change import Change, of_instance
from stoker.server.agents import Agents
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from tests.conftest import Databases
from tests.engine.test_engine import Agents as FakeAgents
from tests.engine.test_engine import host

Json = Any
_numbers = itertools.count(1)


@dataclass
class Reply:
    status: int
    body: Json
    headers: Any

    @property
    def code(self) -> str:
        code: str = self.body["error"]["code"]
        return code


class Client:
    """Speaks as one user."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self.session, self.url, self.token = session, url, token

    async def ask(self, method: str, path: str, body: Json = None, *, key: str = "", **options: Any) -> Reply:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= {"Idempotency-Key": key} if key else {}
        headers |= options.pop("headers", {})
        if body is not None:
            options["json"] = body
        async with self.session.request(method, self.url + path, headers=headers, **options) as answer:
            text = await answer.read()
            is_json = answer.content_type == "application/json"
            return Reply(answer.status, json.loads(text) if is_json and text else text, answer.headers)

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Json = None, **options: Any) -> Reply:
        return await self.ask("POST", path, body, **options)

    async def delete(self, path: str, **options: Any) -> Reply:
        return await self.ask("DELETE", path, **options)

    async def made(self, path: str, body: Json, **options: Any) -> Json:
        answer = await self.post(path, body, **options)
        assert answer.status == 201, answer.body
        return answer.body

    def speaking_as(self, token: str) -> "Client":
        return Client(self.session, self.url, token)

    async def events(self, path: str, **options: Any) -> AsyncGenerator[tuple[str, str, str], None]:
        """(id, name, data) of server-sent events."""
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        async with self.session.get(self.url + path, headers=headers, **options) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            found: dict[str, str] = {}
            async for raw in answer.content:
                line = raw.decode().rstrip("\n")
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(": ")
                    found[name] = value
                elif found:
                    yield found.get("id", ""), found.get("event", ""), found.get("data", "")
                    found = {}


@dataclass
class Api:
    served: Served
    admin: Client
    agents: FakeAgents

    @property
    def context(self) -> Context:
        return self.served.context

    async def user(self, name: str, role: str | None = "user", project: str = "main") -> Client:
        """A new user with a token, and a role in a project."""
        await self.admin.made("/api/users", {"name": name})
        if role is not None:
            done = await self.admin.ask("PUT", f"/api/projects/{project}/members/{name}", {"role": role})
            assert done.status == 200, done.body
        token = await self.admin.made("/api/tokens", {"user": name, "name": "test"})
        return self.admin.speaking_as(token["token"])

    async def host(self, cpu: int = 4) -> str:
        """A machine that is up."""
        engine = self.context.engine
        one = host(engine, cpu)
        await engine.commit(Change(instances=(one,)))
        await engine.commit(Change(facts=(of_instance(one.id, Launched("x")), of_instance(one.id, ShimAnswered()))))
        return str(one.id)


Apis = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def api(database: Databases, tmp_path: Path) -> Apis:
    """`async with api() as api`: `exit_code` None leaves programs running until they are stopped."""

    @asynccontextmanager
    async def open(
        exit_code: int | None = 0, url: str = "", home: Path | None = None, agents: FakeAgents | None = None
    ) -> AsyncIterator[Api]:
        agents = agents or FakeAgents(exit_code)
        place = home or tmp_path / f"home-{next(_numbers)}"

        def build(context: Context) -> Agents:
            return Agents(performers=agents.performers())

        async with database() as db:
            logs = tmp_path / "logs"
            settings = Settings(place, port=0, database_url=url or db.url, logs=logs, name=f"r{next(_numbers)}")
            async with running(settings, build) as served, aiohttp.ClientSession() as session:
                secret = Keyring(settings.config_file).secret
                yield Api(served, Client(session, served.url, secret), agents)

    return open


async def eventually(ask: Callable[[], Any], what: str, deadline_s: float = 20.0) -> Any:
    """What `ask` gives once it is true."""
    deadline = asyncio.get_running_loop().time() + deadline_s
    while not (found := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.01)
    return found


def task(*commands: str, **fields: Any) -> Json:
    return {"type": "task", "commands": list(commands or ("true",)), **fields}
