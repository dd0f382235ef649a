"""Our own description of the API, held against the server by a machine that means harm."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from stoker.server.agents import Agents
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.main import running
from stoker.server.settings import Settings
from stoker.store.postgres import Embedded
from tests.api.conftest import Api, Client, task
from tests.api.swarming import one, worker
from tests.conftest import fresh
from tests.engine.test_engine import Agents as FakeAgents

EXAMPLES: Final = 8
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENDLESS: Final = ("/api/projects/{project}/events/follow", "/api/projects/{project}/tasks/wait")
"""What answers when something else happens."""
RUNS: Final = "/api/projects/main/runs"
RUN: Final = "/api/projects/{project}/runs/{run}"


@contextmanager
def served(postgres: Embedded, template: str, home: Path) -> Iterator[tuple[str, str]]:
    """In a thread of its own, since schemathesis waits for its answers; with a run that is done and one that waits."""
    loop, found, stop = asyncio.new_event_loop(), [], asyncio.Event()
    up = threading.Event()

    async def serve() -> None:
        agents = FakeAgents()

        def build(context: Context) -> Agents:
            return Agents(performers=agents.performers())

        async with (
            fresh(postgres, template) as db,
            running(Settings(home, port=0, database_url=db.url, name="schema"), build) as server,
            aiohttp.ClientSession() as session,
        ):
            secret = Keyring(home / "config.yml").secret
            api = Api(server, Client(session, server.url, secret), agents)
            await api.host()
            await api.user("ada")
            await api.admin.made(RUNS, {"configuration": task(name="train")})
            assert (await api.admin.get(f"{RUNS}/train/wait")).body["status"] == "DONE"
            await api.admin.made(RUNS, {"configuration": task(name="waits", resources={"cpu": 999})})
            await swarming(api)
            found.append((server.url, secret))
            up.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert up.wait(60)
    try:
        assert found, "the server did not start"
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)


THERE: dict[str, str] = {}
"""A worker, its token, and a task in its hands."""


async def swarming(api: Api) -> None:
    w = await worker(api)
    THERE.update(worker=w.id, token=w.client.token, task=await one(api.admin, max_retry_count=1_000))
    assert len(await w.claim()) == 1


def own(case: Any) -> dict[str, str]:
    """A worker's routes are opened by its own token."""
    said = (case.headers or {}).get("Authorization")
    return {"Authorization": said} if said else {}


def known(case: Any, data: st.DataObject) -> None:
    """Half of the time a path leads to something that is there; but what the others need is not deleted."""
    if "/workers/{worker}" in case.operation.path and case.method != "DELETE" and data.draw(st.booleans(), label="own"):
        case.path_parameters |= {"project": "main", "worker": THERE["worker"]}
        if "/claim" in case.operation.path or case.method in ("POST", "PUT"):
            case.headers["Authorization"] = f"Bearer {THERE['token']}"
    if "task" in (case.path_parameters or {}) and data.draw(st.booleans(), label="known task"):
        case.path_parameters["task"] = THERE["task"]
    if case.method == "DELETE" and case.operation.path in ("/api/projects/{project}", RUN):
        case.path_parameters["project"] = "nothing"
        return
    for name, there in (("project", "main"), ("run", "train"), ("user", "ada"), ("name", "ada")):
        if name in (case.path_parameters or {}) and data.draw(st.booleans(), label=f"known {name}"):
            case.path_parameters[name] = there


def test_the_server_answers_as_it_is_described(postgres: Embedded, template: str, tmp_path: Path) -> None:
    with served(postgres, template, tmp_path / "home") as (url, secret), requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{url}/api/openapi.json")
        headers = {"Authorization": f"Bearer {secret}"}
        tried = []
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            if operation.path in ENDLESS:
                continue
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                tried.append(operation.label)
                _attack(operation.as_strategy(generation_mode=mode), url, headers, session)
        assert len(set(tried)) > 35
        assert requests.get(f"{url}{RUNS}/train", headers=headers, timeout=10).json()["status"] == "DONE"


def _attack(cases: Any, url: str, headers: dict[str, str], session: requests.Session) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )  # fmt: skip
    @given(case=cases, data=st.data())
    def attack(case: Any, data: st.DataObject) -> None:
        known(case, data)
        if isinstance(case.body, dict) and "wait_s" in case.body:
            case.body["wait_s"] = 0.1
        answer = case.call(base_url=url, headers={**headers, **own(case)}, session=session, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    try:
        attack()
    except Unsatisfiable:
        # A route that takes nothing cannot be asked wrongly.
        return


@pytest.mark.parametrize("path", ["/api/openapi.json", "/api/schema/task", "/api/schema/fleet"])
def test_descriptions_are_for_everybody(postgres: Embedded, template: str, tmp_path: Path, path: str) -> None:
    with served(postgres, template, tmp_path / "home") as (url, _):
        found = requests.get(url + path, timeout=10).json()
        assert found["title" if "title" in found else "info"]
