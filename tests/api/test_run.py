"""Runs over HTTP: submitted, listed, watched, stopped, deleted, with clear answers to what cannot be."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.core.ids import instance_name
from tests.api.conftest import Api, Apis, Client, Json, eventually, task

RUNS = "/api/projects/main/runs"


async def submit(client: Client, **fields: Any) -> Json:
    return await client.made(RUNS, {"configuration": task(**fields)})


async def status(client: Client, ref: str) -> str:
    answer = await client.get(f"{RUNS}/{ref}")
    found: str = answer.body["status"]
    return found


async def until(client: Client, ref: str, wanted: str) -> None:
    async def there() -> bool:
        return await status(client, ref) == wanted

    await eventually(there, f"{ref} is {wanted}")


async def test_a_run_is_accepted_runs_and_is_done(api: Apis) -> None:
    async with api() as a:
        await a.host()
        run = await submit(a.admin, name="train", env={"EPOCHS": 3})
        assert (run["name"], run["project"], run["user"], run["type"]) == ("train", "main", "admin", "task")
        assert len(run["jobs"]) == 1
        assert run["configuration"] == {"type": "task", "name": "train", "commands": ["true"], "env": {"EPOCHS": "3"}}
        done = (await a.admin.get(f"{RUNS}/train/wait?timeout_s=20")).body
        assert (done["id"], done["status"], done["exit_code"]) == (run["id"], "DONE", 0)
        assert done["termination_reason"] == "ALL_JOBS_DONE"
        assert done["submitted_at"] < done["started_at"] <= done["finished_at"]
        assert done["jobs"][0]["id"] == run["jobs"][0]["id"]
        assert done["jobs"][0]["status"] == "DONE"
        assert done == (await a.admin.get(f"{RUNS}/{run['id']}")).body


async def test_a_run_that_fails_says_how(api: Apis) -> None:
    async with api(exit_code=3) as a:
        await a.host()
        await submit(a.admin, name="bad")
        done = (await a.admin.get(f"{RUNS}/bad/wait?timeout_s=20")).body
        assert (done["status"], done["exit_code"], done["status_message"]) == ("FAILED", 3, "exited with 3")
        assert done["jobs"][0]["termination_reason"] == "CONTAINER_EXITED_WITH_ERROR"


async def test_a_run_without_a_name_gets_one(api: Apis) -> None:
    async with api() as a:
        names = {(await submit(a.admin))["name"] for _ in range(5)}
        assert len(names) == 5
        for name in names:
            assert (await a.admin.get(f"{RUNS}/{name}")).status == 200


async def test_many_are_accepted_all_or_none(api: Apis) -> None:
    async with api() as a:
        many = await a.admin.made(RUNS, {"configurations": [task(name=f"m{n}") for n in range(20)]})
        assert [one["name"] for one in many["items"]] == [f"m{n}" for n in range(20)]
        assert all(len(one["jobs"]) == 1 for one in many["items"])
        refused = await a.admin.post(RUNS, {"configurations": [task(name="new"), task(name="m3")]})
        assert (refused.status, refused.code) == (409, "name_taken")
        assert (await a.admin.get(f"{RUNS}/new")).status == 404
        twice = await a.admin.post(RUNS, {"configurations": [task(name="new"), task(name="new")]})
        assert twice.status == 422
        assert (await a.admin.post(RUNS, {"configurations": []})).status == 422
        assert (await a.admin.post(RUNS, {"configurations": [task()] * 1001})).status == 422
        assert (await a.admin.post(RUNS, {})).status == 422
        assert (await a.admin.post(RUNS, {"configuration": task(), "configurations": [task()]})).status == 422


async def test_a_name_is_refused_while_its_run_is_unfinished_and_free_afterwards(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        first = await submit(a.admin, name="train")
        again = await a.admin.post(RUNS, {"configuration": task(name="train")})
        assert (again.status, again.code) == (409, "name_taken")
        assert "train" in again.body["error"]["message"]
        await a.admin.post(f"{RUNS}/train/stop")
        await until(a.admin, "train", "TERMINATED")
        second = await submit(a.admin, name="train")
        assert second["id"] != first["id"]
        assert (await a.admin.get(f"{RUNS}/train")).body["id"] == second["id"]
        assert (await a.admin.get(f"{RUNS}/{first['id']}")).body["status"] == "TERMINATED"


async def test_of_many_of_one_name_at_the_same_moment_one_is_accepted(api: Apis) -> None:
    async with api() as a:
        answers = await asyncio.gather(*(a.admin.post(RUNS, {"configuration": task(name="train")}) for _ in range(10)))
        assert sorted(answer.status for answer in answers) == [201] + [409] * 9
        assert {answer.code for answer in answers if answer.status == 409} == {"name_taken"}


async def test_what_was_seen_in_the_plan_must_still_be_so(api: Apis) -> None:
    async with api() as a:
        await a.host()
        await submit(a.admin, name="train")
        await a.admin.get(f"{RUNS}/train/wait?timeout_s=20")
        plan = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(name="train")})).body
        assert plan["action"] == "create"
        assert plan["current"]["status"] == "DONE"
        other = {"id": str(uuid4()), "version": 1}
        changed = await a.admin.post(RUNS, {"configuration": task(name="train"), "expected": other})
        assert (changed.status, changed.code) == (409, "changed")
        nameless = await a.admin.post(RUNS, {"configuration": task(), "expected": plan["expected"]})
        assert nameless.status == 422
        taken = await a.admin.post(RUNS, {"configuration": task(name="train"), "expected": plan["expected"]})
        assert taken.status == 201


async def test_a_plan_says_where_it_would_go_or_why_not(api: Apis) -> None:
    async with api(None) as a:
        empty = (await a.admin.post(f"{RUNS}/plan", {"configuration": task()})).body
        assert (empty["action"], empty["why"]["code"], empty["name"]) == ("queue", "no_instance", None)
        host = await a.host(cpu=2)
        fits = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(resources={"cpu": 2})})).body
        assert (fits["action"], fits["places"][0]["instance"]) == ("create", host)
        large = task(resources={"cpu": 64})
        never = (await a.admin.post(f"{RUNS}/plan", {"configuration": large})).body
        assert (never["action"], never["why"]["code"]) == ("queue", "impossible")
        name = instance_name("local", UUID(host))
        assert fits["sentence"] == f"It would start at once on {name}."
        assert never["why"]["reasons"] == [{"instance": host, "name": name, "sentence": "needs 64 CPUs, has 2"}]
        fails = (await a.admin.post(f"{RUNS}/plan", {"configuration": large | {"on_no_capacity": "fail"}})).body
        assert fails["action"] == "fail"
        await submit(a.admin, name="train")
        refused = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(name="train")})).body
        assert refused["action"] == "unchanged"
        listed = (await a.admin.get(RUNS)).body["items"]
        assert [one["name"] for one in listed] == ["train"]


async def test_why_a_run_waits_is_said_when_it_is_asked(api: Apis) -> None:
    async with api(None) as a:
        host = await a.host(cpu=2)
        await submit(a.admin, name="all", resources={"cpu": 2})
        await until(a.admin, "all", "RUNNING")
        await submit(a.admin, name="late", resources={"cpu": 1})
        why = (await a.admin.get(f"{RUNS}/late/why")).body
        assert why["code"] == "busy"
        name = instance_name("local", UUID(host))
        assert why["sentence"] == f"late waits: needs 1 CPU, {name} has 0 of 2 CPUs free."
        assert (why["reasons"][0]["instance"], why["reasons"][0]["name"]) == (host, name)
        (job,) = (await a.admin.get(f"{RUNS}/all")).body["jobs"]
        assert (job["instance"], job["instance_name"]) == (host, name)
        (shown,) = (await a.admin.get("/api/projects/main/instances")).body["items"]
        assert (shown["name"], shown["free"]["cpu"], shown["resources"]["cpu"]) == (name, 0, 2)
        assert (await a.admin.get(f"/api/projects/main/instances/{name}")).body["id"] == host
        assert (await a.admin.get("/api/projects/main/instances/local-x")).code == "not_found"
        assert (why["place"], why["waiting"]) == (1, 1)
        assert (await a.admin.get(f"{RUNS}/all/why")).body["code"] == "not_waiting"


async def test_stopping_twice_and_stopping_what_has_ended_changes_nothing(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await submit(a.admin, name="train")
        await until(a.admin, "train", "RUNNING")
        first, second = await asyncio.gather(*(a.admin.post(f"{RUNS}/train/stop") for _ in range(2)))
        assert first.status == second.status == 200
        await until(a.admin, "train", "TERMINATED")
        third = await a.admin.post(f"{RUNS}/train/stop", {"abort": True})
        assert third.status == 200
        assert third.body["termination_reason"] == "STOPPED_BY_USER"
        assert (await a.admin.post(f"{RUNS}/nothing/stop")).status == 404


async def test_a_run_that_waits_can_be_stopped_and_aborted(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, name="one")
        await submit(a.admin, name="two")
        await a.admin.post(f"{RUNS}/one/stop", {})
        aborted = (await a.admin.post(f"{RUNS}/two/stop", {"abort": True})).body
        assert aborted["termination_reason"] == "ABORTED_BY_USER"
        await until(a.admin, "one", "TERMINATED")
        await until(a.admin, "two", "TERMINATED")


async def test_several_are_stopped_at_once_and_all_with_one_word(api: Apis) -> None:
    async with api() as a:
        for name in ("one", "two", "three", "four"):
            await submit(a.admin, name=name)
        missing = await a.admin.post(f"{RUNS}/stop", {"runs": ["one", "nothing"]})
        assert missing.status == 404
        assert await status(a.admin, "one") == "SUBMITTED"
        some = (await a.admin.post(f"{RUNS}/stop", {"runs": ["one", "two", "one"]})).body
        assert [one["name"] for one in some["items"]] == ["one", "two"]
        rest = (await a.admin.post(f"{RUNS}/stop", {"all": True, "abort": True})).body
        assert {one["name"] for one in rest["items"]} >= {"three", "four"}
        for name in ("one", "two", "three", "four"):
            await until(a.admin, name, "TERMINATED")
        several: list[Json] = [{}, {"runs": ["one"], "all": True}, {"runs": []}]
        for wrong in several:
            assert (await a.admin.post(f"{RUNS}/stop", wrong)).status == 422


async def test_only_what_has_finished_is_deleted_with_its_log(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        run = await submit(a.admin, name="train")
        await until(a.admin, "train", "RUNNING")
        await a.context.logs.append(run_job(run), 0, b"")
        refused = await a.admin.delete(f"{RUNS}/train")
        assert (refused.status, refused.code) == (409, "not_finished")
        await a.admin.post(f"{RUNS}/train/stop")
        await until(a.admin, "train", "TERMINATED")
        assert (await a.admin.delete(f"{RUNS}/train")).status == 204
        assert (await a.admin.delete(f"{RUNS}/train")).status == 404
        assert (await a.admin.get(f"{RUNS}/{run['id']}")).status == 404
        assert (await a.admin.get(RUNS)).body["items"] == []

        async def removed() -> bool:
            async with a.context.database.connection() as connection:
                return bool(await connection.fetchval("SELECT count(*) = 0 FROM run"))

        await eventually(removed, "its rows are gone")


def run_job(run: Json) -> Any:
    from uuid import UUID

    return UUID(run["jobs"][0]["id"])


async def test_pages_do_not_move_while_others_submit(api: Apis) -> None:
    async with api() as a:
        await a.admin.made(RUNS, {"configurations": [task(name=f"r{n}") for n in range(7)]})
        first = (await a.admin.get(f"{RUNS}?limit=3")).body
        await submit(a.admin, name="late")
        second = (await a.admin.get(f"{RUNS}?limit=3&cursor={first['next_cursor']}")).body
        third = (await a.admin.get(f"{RUNS}?limit=3&cursor={second['next_cursor']}")).body
        names = [one["name"] for page in (first, second, third) for one in page["items"]]
        assert sorted(names) == [f"r{n}" for n in range(7)]
        assert third["next_cursor"] is None
        assert first["items"][0]["jobs"] == []
        assert first["items"][0]["configuration"] is None


async def test_lists_are_cut_by_what_is_asked_for(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, name="waits")
        await submit(a.admin, name="ends")
        await a.admin.post(f"{RUNS}/ends/stop")
        await until(a.admin, "ends", "TERMINATED")

        async def names(query: str) -> list[str]:
            answer = await a.admin.get(f"{RUNS}?{query}")
            assert answer.status == 200, answer.body
            return [one["name"] for one in answer.body["items"]]

        assert await names("active=true") == ["waits"]
        assert await names("active=false") == ["ends"]
        assert await names("status=TERMINATED&status=DONE") == ["ends"]
        assert await names("name=waits") == ["waits"]
        assert await names("user=admin&type=task") == ["ends", "waits"]
        assert await names("user=nobody") == []
        assert await names("since=2020-01-01T00:00:00Z") == ["ends", "waits"]
        assert await names("since=2999-01-01T00:00:00Z") == []
        for wrong in ("status=LOST", "limit=0", "limit=501", "cursor=x", "since=yesterday", "name=A%00b", "active=2"):
            assert (await a.admin.get(f"{RUNS}?{wrong}")).status in (400, 422), wrong


async def test_jobs_are_listed_and_found(api: Apis) -> None:
    async with api() as a:
        run = await submit(a.admin, name="train")
        jobs = (await a.admin.get(f"{RUNS}/train/jobs?limit=1")).body
        assert jobs == {"items": run["jobs"], "next_cursor": None}
        assert (await a.admin.get(f"{RUNS}/train/jobs/{run['jobs'][0]['id']}")).body == run["jobs"][0]
        assert (await a.admin.get(f"{RUNS}/train/jobs/{uuid4()}")).status == 404
        assert (await a.admin.get(f"{RUNS}/train/jobs?cursor=1-2")).status == 400


async def test_who_waits_is_woken_by_the_commit_and_not_by_a_clock(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, name="train")
        waiting = asyncio.ensure_future(a.admin.get(f"{RUNS}/train/wait?timeout_s=50"))
        await eventually(lambda: _watched(a), "somebody waits")
        loop = asyncio.get_running_loop()
        await a.host()
        began = loop.time()
        done = await waiting
        assert done.body["status"] == "DONE"
        assert loop.time() - began < 1.5
        assert len(a.context.runs) == 0


async def _watched(a: Api) -> bool:
    return len(a.context.runs) > 0


async def test_who_waits_in_vain_is_answered_when_the_time_is_over(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, name="train")
        answer = await a.admin.get(f"{RUNS}/train/wait?timeout_s=0.05")
        assert (answer.status, answer.body["status"]) == (200, "SUBMITTED")
        assert (await a.admin.get(f"{RUNS}/train/wait?timeout_s=3600")).status == 422


@pytest.mark.parametrize(
    "name",
    ["A", "a_b", "-a", "a-", "a.b", "a b", "ä", "../x", "a/b", "a\u0000", "💥", "", "x" * 64, "a\n", "%2e%2e", "'; --"],
)
async def test_names_with_odd_characters_are_refused_everywhere(api: Apis, name: str) -> None:
    from urllib.parse import quote

    async with api() as a:
        refused = await a.admin.post(RUNS, {"configuration": task(name=name)})
        assert (refused.status, refused.body["error"]["problems"][0]["key"]) == (422, "configuration.name")
        quoted = quote(name, safe="")
        paths = (f"{RUNS}/{quoted}", f"/api/users/{quoted}", f"/api/projects/{quoted}", f"/api/projects/{quoted}/runs")
        others = [f"/api/projects/main/{nouns}/{quoted}" for nouns in ("fleets", "instances")]
        for path in (*paths, f"{RUNS}/{quoted}/logs", *others):
            answer = await a.admin.get(path)
            assert answer.status in ((200, 404) if not name else (404,)), path
            assert name or answer.status
        assert (await a.admin.post("/api/users", {"name": name})).status == 422
        assert (await a.admin.post("/api/projects", {"name": name})).status == 422


async def test_a_run_is_found_by_the_beginning_of_its_id(api: Apis) -> None:
    """Two runs had the same name, and the older one is meant."""
    async with api() as a:
        await a.host()
        ids = []
        for _ in range(2):
            ids.append((await submit(a.admin, name="train"))["id"])
            await until(a.admin, ids[-1], "DONE")
        for ref in (ids[0][:13], ids[0][:13].upper(), ids[0].replace("-", "")[:12], ids[0]):
            assert (await a.admin.get(f"{RUNS}/{ref}")).body["id"] == ids[0], ref
        assert (await a.admin.get(f"{RUNS}/train")).body["id"] == ids[1]
        assert (await a.admin.get(f"{RUNS}/{ids[0][:13]}/events")).status == 200
        several = await a.admin.get(f"{RUNS}/{ids[0][:4]}")
        assert (several.status, several.code) == (409, "ambiguous")
        assert all(f"{id} (train)" in several.body["error"]["hint"] for id in ids)
        for ref in ("ffff-", "01", ids[0][:12] + "-", "0" * 33, ids[0][:13] + "x", "9999"):
            assert (await a.admin.get(f"{RUNS}/{ref}")).status == 404, ref
