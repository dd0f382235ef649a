"""The story of a run over HTTP: in pages, and as it happens."""

import asyncio
import json

from stoker.core.errors import Unavailable
from stoker.core.job_facts import StartTask
from stoker.engine.change import Change
from stoker.store.outbox import Errand
from tests.api.conftest import Api, Apis, Json, eventually, task

RUNS = "/api/projects/main/runs"


async def test_the_story_of_a_run_is_told_in_pages(api: Apis) -> None:
    async with api() as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train")})
        await a.admin.get(f"{RUNS}/train/wait?timeout_s=20")
        whole = (await a.admin.get(f"{RUNS}/train/events")).body
        assert whole["next_cursor"] is None
        kinds = [(one["kind"], one["event"], one["target"]) for one in whole["items"]]
        assert kinds[0] == ("run", "Created", "SUBMITTED")
        assert whole["items"][0]["by"] == "admin"
        assert kinds[-1] == ("run", "JobsChanged", "DONE")
        told, cursor = [], ""
        while True:
            page = (await a.admin.get(f"{RUNS}/train/events?limit=2{cursor}")).body
            told += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert told == whole["items"]
        assert (await a.admin.get("/api/projects/main/events?run=train")).body["items"] == whole["items"]
        assert (await a.admin.get(f"{RUNS}/train/events?cursor=x")).status == 400


async def test_what_fails_and_is_tried_again_is_shown(api: Apis) -> None:
    """The disk of the host is full: the run is not lost, and whoever looks sees why nothing happens."""
    async with api() as a:

        async def full(errand: Errand, effect: object) -> Change:
            raise Unavailable("There is no space left on the disk.", code="disk_full")

        a.context.engine.errands._performers[StartTask] = full  # type: ignore[index]
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train")})

        async def trouble() -> Json:
            return (await a.admin.get(f"{RUNS}/train/events")).body["troubles"]

        (found,) = await eventually(trouble, "it is seen")
        assert (found["effect"], found["message"]) == ("StartTask", "There is no space left on the disk.")
        run = (await a.admin.get(f"{RUNS}?name=train")).body["items"][0]
        assert "no space left" in run["status_message"]


async def test_the_story_is_followed_to_its_end(api: Apis) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train")})
        told: list[Json] = []

        async def follow() -> None:
            async for _, name, data in a.admin.events(f"{RUNS}/train/events/follow"):
                told.append(name or json.loads(data)["target"])

        following = asyncio.ensure_future(follow())
        await eventually(lambda: _told(told, 2), "the beginning")
        await a.host()
        await eventually(lambda: _in(told, "RUNNING"), "it runs")
        await a.admin.post(f"{RUNS}/train/stop")
        await asyncio.wait_for(following, 10)
        assert told[:2] == ["SUBMITTED", "SUBMITTED"]
        assert told[-2:] == ["TERMINATED", "end"]


async def test_a_project_is_followed_from_now_on(api: Apis) -> None:
    async with api() as a:
        await a.admin.made(RUNS, {"configuration": task(name="before")})
        told: list[Json] = []

        async def follow() -> None:
            async for _, _, data in a.admin.events("/api/projects/main/events/follow"):
                told.extend([json.loads(data)["run"]] if data else [])

        following = asyncio.ensure_future(follow())
        await eventually(lambda: _streams(a), "it is followed")
        await a.admin.made("/api/projects", {"name": "other"})
        await a.admin.made("/api/projects/other/runs", {"configuration": task(name="elsewhere")})
        await a.admin.made(RUNS, {"configurations": [task(name=f"r{n}") for n in range(5)]})
        await eventually(lambda: _told(told, 10), "all of them")
        assert sorted(told) == sorted([f"r{n}" for n in range(5)] * 2)
        following.cancel()


async def _told(told: list[Json], number: int) -> bool:
    return len(told) >= number


async def _in(told: list[Json], word: str) -> bool:
    return word in told


async def _streams(a: Api) -> bool:
    return a.context.streams > 0
