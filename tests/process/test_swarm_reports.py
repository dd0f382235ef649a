"""Progress reports from workers, as the swarm's document tells them: each field, each series, and the history."""

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Reply
from tests.api.swarming import TASKS, Worker
from tests.process.stand import Stand
from tests.process.swarm import REAL, Scene, scene

pytestmark = [pytest.mark.xdist_group("swarm"), pytest.mark.usefixtures("swarm_hand")]

SERIES = {"memory_usage": 5e6, "cpu_utilization": 1.5, "gpu_usage": 0.25}
MOMENT = "2026-01-02T03:04:05Z"


async def tell(worker: Worker, id: str, resource: str, body: Any, method: str = "POST") -> Reply:
    """To a virtual resource of the attempt, by the worker's own token."""
    path = f"{TASKS}/{id}/execution_info/{resource}"
    return await worker.client.ask(method, path, body, headers={"Stoker-Worker": worker.id})


async def claimed(of: Scene, **fields: Any) -> tuple[str, Worker]:
    id, worker = await of.one(**fields), await of.worker()
    assert len(await worker.claim()) == 1
    return id, worker


@pytest.mark.parametrize(
    ("field", "value"), [("time_started", MOMENT), ("time_terminated", MOMENT), ("exit_status", 3)]
)
async def test_execution_info_takes_what_the_worker_says_of_its_attempt(swarm: Stand, field: str, value: Any) -> None:
    async with scene(swarm) as s:
        id, worker = await claimed(s)
        told = await tell(worker, id, field, {"value": value})
        assert (told.status, told.body) == (200, {"value": value})
        assert (await s.get(id, f"/execution_info/{field}"))["value"] == value
        assert (await s.get(id))["execution_info"][field] == value
        assert await s.state(id) == "running"


async def test_execution_info_worker_is_the_claim_itself(swarm: Stand) -> None:
    async with scene(swarm) as s:
        id, worker = await s.one(), await s.worker()
        told = await tell(worker, id, "worker", {"value": worker.id})
        assert (told.status, told.body) == (200, {"value": worker.id})
        assert await s.state(id) == "running"
        other = await s.worker()
        refused = await tell(other, id, "worker", {"value": other.id})
        assert (refused.status, (await s.get(id))["worker"]) == (409, worker.id)


@pytest.mark.parametrize("field", SERIES)
async def test_report_appends_to_the_series_and_nothing_else_changes_it(swarm: Stand, field: str) -> None:
    """By POST or by PATCH."""
    async with scene(swarm) as s:
        id, worker = await claimed(s)
        first = SERIES[field]
        assert (await tell(worker, id, f"report_{field}", {"values": [first]})).status == 200
        told = await tell(worker, id, f"report_{field}", {"values": [2 * first, 3 * first]}, method="PATCH")
        assert told.body["value"]["values"] == [first, 2 * first, 3 * first]
        assert (await tell(worker, id, field, {"value": [0]})).status == 422
        patched = await worker.patch(id, {"execution_info": {field: [0]}})
        assert patched.status == 422
        seen = (await s.get(id, f"/execution_info/{field}"))["value"]
        assert seen["values"] == [first, 2 * first, 3 * first] and seen["at"] == sorted(seen["at"])


async def test_reports_need_no_concurrency_control(swarm: Stand) -> None:
    """Sent all at once, by one worker that waits for no answer."""
    async with scene(swarm) as s:
        id, worker = await claimed(s)
        sent = [tell(worker, id, f"report_{field}", {"values": [float(n)]}) for n in range(20) for field in SERIES]
        assert {answer.status for answer in await asyncio.gather(*sent)} == {200}
        info = await s.get(id, "/current_history")
        for field in SERIES:
            assert sorted(info[field]["values"]) == [float(n) for n in range(20)]


async def test_a_report_of_somebody_who_does_not_have_the_task_is_refused(swarm: Stand) -> None:
    async with scene(swarm) as s:
        id, worker = await claimed(s)
        other = await s.worker()
        for speaker in (other, Worker(s.client, worker.id, 1)):
            for resource, body in (("report_memory_usage", {"values": [1.0]}), ("exit_status", {"value": 0})):
                assert (await tell(speaker, id, resource, body)).status in (401, 409)
        info = await s.get(id, "/current_history")
        assert (info["memory_usage"]["values"], info["exit_status"]) == ([], None)


async def test_history_has_an_execution_info_for_each_attempt(swarm: Stand) -> None:
    """The worker says the same things each time and knows of no history; the server puts them where they belong."""
    async with scene(swarm) as s:
        id, worker = await claimed(s, max_retry_count=3)
        for number in (1, 2, 3):
            if number > 1:
                assert [work["attempt"] for work in await worker.claim()] == [number]
            await tell(worker, id, "time_started", {"value": MOMENT})
            await tell(worker, id, "report_memory_usage", {"values": [number * 1e6]})
            ended = {"state": "terminated", "execution_info": {"exit_status": number, "time_terminated": MOMENT}}
            assert (await worker.patch(id, ended)).status == 200
        history = await s.history(id)
        assert [one["attempt"] for one in history] == [1, 2, 3]
        assert [one["exit_status"] for one in history] == [1, 2, 3]
        assert [one["memory_usage"]["values"] for one in history] == [[1e6], [2e6], [3e6]]
        assert await s.get(id, "/current_history") == history[-1] == (await s.get(id))["execution_info"]


async def test_a_task_that_nobody_claimed_has_no_current_history(swarm: Stand) -> None:
    async with scene(swarm) as s:
        id = await s.one()
        assert (await s.client.get(f"{TASKS}/{id}/current_history")).status == 404
        assert (await s.history(id), (await s.get(id))["execution_info"]) == ([], None)


async def test_a_real_worker_reports_when_a_task_began_while_it_runs_and_what_came_of_it(swarm: Stand) -> None:
    async with scene(swarm, REAL) as s:
        script = "test $STOKER_ATTEMPT = 2 || exit 5; echo kept > $STOKER_RESULT; sleep 0.4"
        id = await s.one(command=script, max_retry_count=2)
        await s.reaches(id, "terminated")
        first, second = await s.history(id)
        assert (first["exit_status"], first["result"]) == (5, None)
        assert (second["exit_status"], second["result"]) == (0, "kept\n")
        for info in (first, second):
            assert info["time_started"] <= info["time_terminated"] and info["outcome"] == "ended"
