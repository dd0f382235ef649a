"""Every route needs a token and the right role; what is not yours does not exist."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from fastapi.routing import APIRoute

from stoker.server.api import health, server
from stoker.server.app import NOUNS, PUBLIC, create_app
from tests.api.conftest import Apis, Client, eventually, task

RUNS = "/api/projects/main/runs"


def routes() -> list[tuple[str, APIRoute]]:
    """Every route that we wrote, with its whole path."""
    routers = [("", health.router), ("/api", server.public), *(("/api", noun.router) for noun in NOUNS)]
    return [
        (prefix + route.path, route)
        for prefix, router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
    ]


def filled(path: str) -> str:
    named = {"project": "main", "run": "x", "user": "x", "name": "x", "id": "x", "job": "x"}
    named |= {"worker": str(UUID(int=1)), "task": str(UUID(int=2)), "attempt": "1", "stream": "stdout"}
    for name, value in (named | {"field": "exit_status"}).items():
        path = path.replace("{" + name + "}", value)
    return path


async def test_every_route_needs_a_token_but_a_few(api: Apis) -> None:
    async with api() as a:
        every = routes()
        described = create_app(a.context).openapi()["paths"]
        hidden = {path for path, route in every if not route.include_in_schema}
        assert {path for path, _ in every} - hidden == set(described), "the application has routes of no noun"
        assert len(described) > 25
        assert PUBLIC - {path for path, _ in every} == {"/api/openapi.json"}
        nobody = a.admin.speaking_as("")
        wrong = a.admin.speaking_as("stk_" + "x" * 43)
        for path, route in every:
            for method in (route.methods or ()) if path not in PUBLIC else ():
                for client in (nobody, wrong):
                    answer = await client.ask(method, filled(path))
                    assert answer.status == 401, (method, path, answer.body)
                    assert answer.code == "unauthorized"
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
        for path in PUBLIC:
            assert (await nobody.get(path)).status == 200, path


def test_every_route_of_a_project_goes_through_its_door() -> None:
    """Read from the routes themselves: none of them reaches a project without asking for a role in it."""
    inside = [(path, route) for path, route in routes() if "{project}" in path]
    assert len(inside) > 20
    for path, route in inside:
        assert "enter" in _doors(route.dependant), path
    for path, route in routes():
        if path not in PUBLIC:
            assert _doors(route.dependant) & {"_signed_in", "enter"}, path


def _doors(dependant: Any) -> set[str]:
    names = {dependant.call.__name__} if dependant.call else set()
    for inner in dependant.dependencies:
        names |= _doors(inner)
    return names


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "stk_x", "bearer wrong", "Bearer ü"])
async def test_a_header_that_is_no_token_is_refused(api: Apis, header: str) -> None:
    async with api() as a:
        answer = await a.admin.speaking_as("").get("/api/users/me", headers={"Authorization": header})
        assert answer.status == 401
        assert header.split(" ")[-1] not in ("x", "wrong") or header.split(" ")[-1] not in str(answer.body)


async def test_an_expired_token_opens_nothing(api: Apis) -> None:
    async with api() as a:
        short = await a.admin.made("/api/tokens", {"name": "short", "expires_in": 0.2})
        client = a.admin.speaking_as(short["token"])
        assert short["expires_at"] is not None
        assert (await client.get("/api/users/me")).status == 200
        await eventually(lambda: refused(client), "it expires")
        answer = await client.get("/api/users/me")
        assert (answer.status, answer.code) == (401, "expired")


async def refused(client: Client) -> bool:
    return (await client.get("/api/users/me")).status == 401


async def test_a_deleted_token_opens_nothing_at_once(api: Apis) -> None:
    async with api() as a:
        made = await a.admin.made("/api/tokens", {"name": "short"})
        client = a.admin.speaking_as(made["token"])
        assert (await client.get("/api/users/me")).status == 200
        assert (await a.admin.delete(f"/api/tokens/{made['id']}")).status == 204
        assert (await client.get("/api/users/me")).status == 401
        assert (await a.admin.delete(f"/api/tokens/{made['id']}")).status == 404


async def test_a_project_that_is_not_yours_does_not_exist(api: Apis) -> None:
    async with api() as a:
        await a.admin.made("/api/projects", {"name": "other"})
        eve = await a.user("eve", "user", "other")
        secret = await a.admin.made(RUNS, {"configuration": task(name="secret")})
        for path in ("", "/runs", "/runs/secret", f"/runs/{secret['id']}", "/runs/secret/logs", "/events", "/members"):
            answer = await eve.get(f"/api/projects/main{path}")
            assert (answer.status, answer.code) == (404, "not_found"), path
            assert "secret" not in answer.body["error"]["message"]
        assert (await eve.post(f"{RUNS}/secret/stop")).status == 404
        assert (await eve.delete(f"{RUNS}/secret")).status == 404
        # Nor by the id of a run, through a project that is.
        assert (await eve.get(f"/api/projects/other/runs/{secret['id']}")).status == 404
        assert (await eve.get(f"/api/projects/other/runs/{secret['id']}/logs")).status == 404
        assert [one["name"] for one in (await eve.get("/api/projects")).body["items"]] == ["other"]
        assert (await a.admin.get(f"{RUNS}/secret")).body["status"] == "SUBMITTED"


async def test_a_token_for_one_project_opens_that_one_only(api: Apis) -> None:
    async with api() as a:
        await a.admin.made("/api/projects", {"name": "other"})
        made = await a.admin.made("/api/tokens", {"name": "ci", "project": "other"})
        assert made["project"] == "other"
        ci = a.admin.speaking_as(made["token"])
        assert (await ci.get("/api/projects/other/runs")).status == 200
        assert (await ci.get(RUNS)).status == 404
        assert (await ci.get("/api/users")).status == 403
        assert (await ci.post("/api/tokens", {"name": "more"})).status == 403
        assert (await ci.get("/api/users/me")).body["admin"] is False


async def test_roles_in_a_project(api: Apis) -> None:
    """Users have their own runs, managers everybody's; managers bring in users, admins anybody."""
    async with api() as a:
        ada, eve, max_, root = [await a.user(n, r) for n, r in
                                (("ada", "user"), ("eve", "user"), ("max", "manager"), ("boss", "admin"))]  # fmt: skip
        for name in ("one", "two", "three"):
            await ada.made(RUNS, {"configuration": task(name=name, env={"KEY": "hunter2"})})
        assert (await eve.get(f"{RUNS}/one")).body["configuration"]["env"] == {"KEY": "•••"}
        assert (await ada.get(f"{RUNS}/one")).body["configuration"]["env"] == {"KEY": "hunter2"}
        assert (await max_.get(f"{RUNS}/one")).body["configuration"]["env"] == {"KEY": "hunter2"}
        stopped = await eve.post(f"{RUNS}/one/stop")
        assert (stopped.status, stopped.code) == (403, "forbidden")
        assert (await eve.post(f"{RUNS}/stop", {"runs": ["one"]})).status == 403
        assert (await eve.post(f"{RUNS}/stop", {"all": True})).body["items"] == []
        assert (await eve.delete(f"{RUNS}/one")).status == 403
        assert (await ada.get(f"{RUNS}/one")).body["status"] == "SUBMITTED"
        assert (await max_.post(f"{RUNS}/one/stop")).status == 200
        assert (await ada.post(f"{RUNS}/two/stop")).status == 200

        members = "/api/projects/main/members"
        await a.admin.made("/api/users", {"name": "new"})
        assert (await ada.ask("PUT", f"{members}/new", {"role": "user"})).status == 403
        assert (await max_.ask("PUT", f"{members}/new", {"role": "user"})).status == 200
        assert (await max_.ask("PUT", f"{members}/new", {"role": "manager"})).status == 403
        assert (await max_.ask("PUT", f"{members}/boss", {"role": "user"})).status == 403
        assert (await max_.delete(f"{members}/boss")).status == 403
        assert (await root.ask("PUT", f"{members}/new", {"role": "manager"})).status == 200
        assert (await max_.delete(f"{members}/new")).status == 403
        assert (await root.delete(f"{members}/new")).status == 204
        assert (await max_.delete("/api/projects/main")).status == 403
        assert (await ada.get(members)).status == 200


async def test_who_leaves_a_project_is_shut_out_at_once(api: Apis) -> None:
    async with api() as a:
        ada = await a.user("ada")
        assert (await ada.get(RUNS)).status == 200
        assert (await a.admin.delete("/api/projects/main/members/ada")).status == 204
        assert (await ada.get(RUNS)).status == 404
        assert (await a.admin.delete("/api/users/ada")).status == 204
        assert (await ada.get("/api/users/me")).status == 401


async def test_what_only_admins_of_the_server_may(api: Apis) -> None:
    async with api() as a:
        boss = await a.user("boss", "admin")
        for method, path, body in (
            ("GET", "/api/users", None),
            ("POST", "/api/users", {"name": "x"}),
            ("PATCH", "/api/users/boss", {"admin": True}),
            ("DELETE", "/api/users/admin", None),
            ("POST", "/api/projects", {"name": "x"}),
            ("POST", "/api/tokens", {"user": "admin"}),
            ("GET", "/api/users/admin", None),
        ):
            answer = await boss.ask(method, path, body)
            assert (answer.status, answer.code) == (403, "forbidden"), path
        assert (await boss.get("/api/users/boss")).status == 200


async def test_the_last_admin_stays(api: Apis) -> None:
    async with api() as a:
        assert (await a.admin.delete("/api/users/admin")).code == "last_admin"
        assert (await a.admin.ask("PATCH", "/api/users/admin", {"admin": False})).code == "last_admin"
        await a.admin.made("/api/users", {"name": "second", "admin": True})
        both = await asyncio.gather(a.admin.delete("/api/users/admin"), a.admin.delete("/api/users/second"))
        assert sorted(answer.status for answer in both) in ([204, 401], [204, 409])


async def test_when_a_token_was_used_is_noted(api: Apis) -> None:
    async with api() as a:
        await a.admin.get("/api/users/me")
        await a.context.doorkeeper.flush_once()
        (token,) = (await a.admin.get("/api/tokens")).body["items"]
        assert token["used_at"] is not None
        assert "token" not in token
