"""A request that is sent twice makes one thing and is answered alike."""

import asyncio

from tests.api.conftest import Apis, task

RUNS = "/api/projects/main/runs"


async def test_the_same_request_makes_one_run(api: Apis) -> None:
    async with api() as a:
        body = {"configuration": task()}
        first = await a.admin.post(RUNS, body, key="k1")
        second = await a.admin.post(RUNS, body, key="k1")
        assert first.status == second.status == 201
        assert first.body["id"] == second.body["id"]
        assert "Idempotent-Replayed" not in first.headers
        assert second.headers["Idempotent-Replayed"] == "true"
        other = await a.admin.post(RUNS, body, key="k2")
        assert other.body["id"] != first.body["id"]
        assert len((await a.admin.get(RUNS)).body["items"]) == 2


async def test_another_request_under_the_same_key_is_refused(api: Apis) -> None:
    async with api() as a:
        await a.admin.made(RUNS, {"configuration": task("true")}, key="k1")
        other = await a.admin.post(RUNS, {"configuration": task("false")}, key="k1")
        assert (other.status, other.code) == (409, "key_reused")
        assert len((await a.admin.get(RUNS)).body["items"]) == 1


async def test_the_same_request_many_times_at_the_same_moment(api: Apis) -> None:
    """A client whose connection broke sends it again while the first is still under way."""
    async with api() as a:
        body = {"configurations": [task(name="one"), task()]}
        answers = await asyncio.gather(*(a.admin.post(RUNS, body, key="k1") for _ in range(12)))
        assert {answer.status for answer in answers} == {201}
        assert len({tuple(one["id"] for one in answer.body["items"]) for answer in answers}) == 1
        assert len((await a.admin.get(RUNS)).body["items"]) == 2


async def test_a_key_belongs_to_its_user_and_project(api: Apis) -> None:
    async with api() as a:
        ada = await a.user("ada")
        await a.admin.made("/api/projects", {"name": "other"})
        body = {"configuration": task()}
        ids = {
            (await a.admin.made(RUNS, body, key="k"))["id"],
            (await ada.made(RUNS, body, key="k"))["id"],
            (await a.admin.made("/api/projects/other/runs", body, key="k"))["id"],
        }
        assert len(ids) == 3


async def test_a_refused_request_leaves_its_key_free(api: Apis) -> None:
    async with api() as a:
        await a.admin.made(RUNS, {"configuration": task(name="one")})
        assert (await a.admin.post(RUNS, {"configuration": task(name="one")}, key="k")).status == 409
        await a.admin.made(RUNS, {"configuration": task(name="two")}, key="k")


async def test_a_run_that_was_deleted_is_not_made_again(api: Apis) -> None:
    async with api() as a:
        body = {"configuration": task(name="one")}
        await a.admin.made(RUNS, body, key="k")
        await a.admin.post(f"{RUNS}/one/stop")
        waited = await a.admin.get(f"{RUNS}/one/wait")
        assert waited.body["status"] == "TERMINATED"
        assert (await a.admin.delete(f"{RUNS}/one")).status == 204
        assert (await a.admin.post(RUNS, body, key="k")).status == 404


async def test_users_projects_and_tokens_are_made_once_too(api: Apis) -> None:
    async with api() as a:
        for path, body in (("/api/users", {"name": "ada"}), ("/api/projects", {"name": "other"})):
            first, second = [await a.admin.made(path, body, key="k") for _ in range(2)]
            assert first == second
            assert (await a.admin.post(path, body, key="j")).code == "name_taken"
            assert (await a.admin.post(path, {"name": "different"}, key="k")).code == "key_reused"
        tokens = await asyncio.gather(*(a.admin.made("/api/tokens", {"name": "ci"}, key="k") for _ in range(5)))
        assert len({token["token"] for token in tokens}) == 1
        assert (await a.admin.speaking_as(tokens[0]["token"]).get("/api/users/me")).status == 200
        other = await a.admin.made("/api/tokens", {"name": "ci"}, key="j")
        assert other["token"] != tokens[0]["token"]
        through_the_other = await a.admin.speaking_as(other["token"]).post("/api/tokens", {"name": "ci"}, key="k")
        assert through_the_other.body["id"] != tokens[0]["id"]


async def test_a_key_that_is_none_is_refused(api: Apis) -> None:
    async with api() as a:
        for key in ("x" * 256, "a b", "ü"):
            answer = await a.admin.post(RUNS, {"configuration": task()}, headers={"Idempotency-Key": key})
            assert answer.status == 422, key
