"""What workers of the swarm say over HTTP, and what they are told."""

import asyncio
from base64 import b64encode
from uuid import uuid4

import aiohttp
import pytest

from tests.api.conftest import Api, Apis, eventually
from tests.api.swarming import TASKS, WORKERS, Worker, held, one, state_of, submit, worker


async def test_a_report_claims_the_next_task_in_the_same_breath(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, {"ref": "a", "command": "x", "continuations": ["b"]}, {"ref": "b", "command": "y"})
        w = await worker(a)
        (work,) = await w.claim()
        told = await w.report(ended=[{**held(work), "exit_status": 0}], claim=w.claiming())
        assert (told["refused"], len(told["tasks"])) == ([], 1)


async def test_a_claim_waits_for_the_first_task(api: Apis) -> None:
    async with api() as a:
        w = await worker(a)
        waiting = asyncio.create_task(w.claim(wait_s=30))
        await eventually(lambda: _standing(a), "it stands")
        id = await one(a.admin)
        assert [work["id"] for work in await waiting] == [id]
        assert await w.claim(wait_s=0.05) == []


async def _standing(api: Api) -> bool:
    return api.context.engine.muster.standing == 1


async def test_nobody_gets_a_task_who_is_not_there_any_more(api: Apis) -> None:
    """A worker that is killed while it waits closes its connection, and the next one gets the task at once."""
    async with api() as a:
        gone, stays = await worker(a), await worker(a)
        waiting = asyncio.create_task(gone.claim(wait_s=30))
        await eventually(lambda: _standing(a), "it stands")
        waiting.cancel()

        async def nobody() -> bool:
            return a.context.engine.muster.standing == 0

        await eventually(nobody, "its place is free")
        id = await one(a.admin)
        assert [work["id"] for work in await stays.claim()] == [id]


async def test_a_worker_gets_what_fits(api: Apis) -> None:
    async with api() as a:
        big, small, gpu, many = await submit(
            a.admin,
            {"command": "x", "requested_resources": {"cpus": 8}, "priority": 9},
            {"command": "x", "requested_resources": {"cpus": 0.5}},
            {"command": "x", "requested_resources": {"gpus": 1}},
            {"command": "x", "requested_resources": {"cpus": 4}, "alternatives": [{"cpus": 1, "memory": "1GB"}]},
        )
        w = await worker(a, cpus=2)
        assert {work["id"] for work in await w.claim()} == {small, many}
        assert await state_of(a.admin, big) == await state_of(a.admin, gpu) == "available"


async def test_priority_then_age_decides(api: Apis) -> None:
    async with api() as a:
        ids = [await one(a.admin, priority=priority) for priority in (0, 5, 0, 9)]
        w = await worker(a)
        assert [ids.index(work["id"]) for work in await w.claim()] == [3, 1, 0, 2]


async def test_of_a_key_only_so_many_run(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, *({"command": "x", "concurrency_key": "db", "concurrency_limit": 2} for _ in range(5)))
        first, second = await worker(a), await worker(a)
        works = await first.claim()
        assert len(works) == 2 and await second.claim() == []
        await first.end(works[0])
        assert len(await second.claim()) == 1


async def test_a_worker_takes_its_group_and_what_ends_in_its_time(api: Apis) -> None:
    async with api() as a:
        (mine, long), other = (
            await submit(
                a.admin,
                {"command": "x", "group": "g", "estimated_runtime": 50},
                {"command": "x", "group": "g", "estimated_runtime": 70},
            ),
            await one(a.admin),
        )
        w = await worker(a, group="g")
        assert [work["id"] for work in await w.claim(time_left=60)] == [mine]
        assert [work["id"] for work in await w.claim()] == [long]
        assert await state_of(a.admin, other) == "available"


async def test_late_news_of_an_earlier_attempt_is_refused_with_the_state(api: Apis) -> None:
    async with api() as a:
        id = await one(a.admin, max_retry_count=3)
        w = await worker(a)
        (first,) = await w.claim()
        await w.end(first, exit_status=1)
        (second,) = await w.claim()
        told = await w.end(first, exit_status=0)
        assert told["refused"] == [{**held(first), "state": "running"}]
        assert (await w.end({"id": str(uuid4()), "attempt": 1}))["refused"][0]["state"] is None
        assert (await w.end(second))["refused"] == []
        history = (await a.admin.get(f"{TASKS}/{id}/history")).body["items"]
        assert [(item["attempt"], item["exit_status"]) for item in history] == [(1, 1), (2, 0)]


async def test_what_the_answer_did_not_bring_goes_back(api: Apis) -> None:
    """The answer to a claim was lost on the way: the next heartbeat does not list it."""
    async with api() as a:
        id = await one(a.admin)
        w = await worker(a)
        await w.claim()
        await w.beat(number=0)
        assert await state_of(a.admin, id) == "running"
        await w.beat(number=1)
        assert await state_of(a.admin, id) == "available"
        shown = (await a.admin.get(f"{TASKS}/{id}")).body
        assert (shown["retry_count"], shown["execution_info"]) == (0, None)


async def test_a_second_attempt_that_is_given_back_was_none(api: Apis) -> None:
    """The figures say of further attempts what the history says."""
    async with api() as a:
        id = await one(a.admin, max_retry_count=3)
        w = await worker(a)
        await w.end(*await w.claim(), exit_status=1)
        (second,) = await w.claim()
        assert (await a.admin.get(f"{TASKS}/statistics")).body["retries"] == 1
        await w.report(given_back=[held(second)])
        assert (await a.admin.get(f"{TASKS}/statistics")).body["retries"] == 0
        assert (await a.admin.get(f"{TASKS}/{id}/statistics")).body["retries"] == 0
        await w.end(*await w.claim())
        assert (await a.admin.get(f"{TASKS}/statistics")).body["retries"] == 1


async def test_output_is_kept_byte_for_byte(api: Apis) -> None:
    short, long = b"\x00\xff short\n", bytes(range(256)) * 10_000
    async with api() as a:
        await submit(a.admin, {"command": "x"}, {"command": "y"})
        w = await worker(a)
        first, second = await w.claim()
        await w.end(first, stdout=b64encode(short).decode(), stderr=b64encode(b"e").decode(), result="42")
        path = f"{w.path}/tasks/{second['id']}/1/stdout"
        for offset in (0, 0, 1_000_000, 2_000_000):
            kept = await w.client.ask("PUT", f"{path}?offset={offset}", data=long[offset : offset + 1_000_000])
            assert kept.status == 200, kept.body
        gap = await w.client.ask("PUT", f"{path}?offset=9000000", data=b"x")
        assert (gap.status, gap.code) == (409, "output_gap")
        await w.end(second)
        assert (await a.admin.get(f"{TASKS}/{first['id']}/logs")).body == short
        assert (await a.admin.get(f"{TASKS}/{first['id']}/logs?stream=stderr")).body == b"e"
        assert (await a.admin.get(f"{TASKS}/{first['id']}")).body["execution_info"]["result"] == "42"
        whole, offset = b"", 0
        while True:
            piece = await a.admin.get(f"{TASKS}/{second['id']}/logs?offset={offset}")
            whole, offset = whole + piece.body, int(piece.headers["Stoker-Next-Offset"])
            if piece.headers["Stoker-Log-Complete"] == "true":
                break
        assert whole == long
        foreign = await (await worker(a)).client.ask("PUT", f"{path}?offset=0", data=b"x")
        assert foreign.status == 401


async def test_a_worker_opens_its_own_doors_only(api: Apis) -> None:
    async with api() as a:
        id = await one(a.admin)
        mine, other = await worker(a), await worker(a)
        for path in (f"{WORKERS}/{other.id}/claim", f"{WORKERS}/{other.id}/report", f"{WORKERS}/{other.id}/heartbeat"):
            assert (await mine.client.post(path, {})).status == 401, path
        for path in (TASKS, WORKERS, "/api/users", "/api/projects/main/runs", f"{TASKS}/{id}"):
            assert (await mine.client.get(path)).status == 401, path
        assert (await mine.client.post(f"{TASKS}/cancel", {"all": True})).status == 401
        assert (await mine.client.delete(other.path)).status == 401
        (work,) = await mine.claim()
        told = await other.end(work)
        assert told["refused"] == [{**held(work), "state": "running"}]
        assert (await other.patch(id, {"state": "terminated"})).status == 409
        assert (await a.admin.post(f"{mine.path}/claim", mine.claiming())).status == 401


async def test_a_cancelled_task_is_told_over_the_socket_at_once(api: Apis) -> None:
    async with api() as a:
        id = await one(a.admin)
        w = await worker(a)
        (work,) = await w.claim()
        url = a.admin.url.replace("http", "ws") + f"{w.path}/socket"
        async with a.admin.session.ws_connect(url, headers={"Authorization": f"Bearer {w.client.token}"}) as socket:
            await socket.send_json({"held": [held(work)], "number": 1})
            assert (await socket.receive_json(timeout=10))["renewed"] is True
            asked = await a.admin.post(f"{TASKS}/cancel", {"ids": [id]})
            assert asked.body == {"cancelled": 0, "pending": 1}
            assert (await socket.receive_json(timeout=10))["cancelled"] == [held(work)]
            assert await state_of(a.admin, id) == "pending_cancellation"
            await w.report(ended=[{**held(work), "stopped": True}])
            assert await state_of(a.admin, id) == "cancelled"
            await socket.send_str("nonsense")
            assert (await socket.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await a.admin.session.ws_connect(url, headers={"Authorization": f"Bearer {a.admin.token}"})


async def test_who_leaves_gives_back_and_who_is_declared_lost_loses(api: Apis) -> None:
    async with api() as a:
        ids = await submit(a.admin, {"command": "x", "max_retry_count": 5}, {"command": "y", "max_retry_count": 5})
        good, bad = await worker(a), await worker(a)
        await good.claim(1)
        await bad.claim(1)
        assert (await good.client.delete(good.path)).status == 204
        assert (await a.admin.delete(bad.path)).status == 204
        shown = [(await a.admin.get(f"{TASKS}/{id}")).body for id in ids]
        assert [one["state"] for one in shown] == ["available", "available"]
        assert [one["crash_count"] for one in shown] == [0, 1]
        gone = await good.client.post(f"{good.path}/claim", good.claiming())
        assert gone.status == 404
        listed = (await a.admin.get(f"{WORKERS}?all=true")).body["items"]
        assert {item["state"] for item in listed} == {"left"}


async def test_poison_is_held_and_let_go_by_a_person(api: Apis) -> None:
    """It takes down whoever runs it: after two workers nobody gets it any more."""
    async with api() as a:
        id = await one(a.admin, max_retry_count=10, crash_limit=2, group="g")
        for _ in range(2):
            w = await worker(a)
            assert len(await w.claim()) == 1
            await a.admin.delete(w.path)
        w = await worker(a)
        assert await w.claim() == []
        shown = (await a.admin.get(f"{TASKS}/{id}")).body
        assert (shown["state"], shown["held"]) == ("available", "poison")
        assert (await a.admin.get(f"{TASKS}/wait?group=g&timeout_s=5")).body["held"] == 1
        assert [item["id"] for item in (await a.admin.get(f"{TASKS}?held=true")).body["items"]] == [id]
        assert (await a.admin.post(f"{TASKS}/retry", {"ids": [id]})).body["released"] == 1
        assert len(await w.claim()) == 1


async def test_a_task_starts_after_its_moment_and_is_cancelled_after_its_deadline(api: Apis) -> None:
    async with api() as a:
        later = await one(a.admin, start_after="2099-01-01T00:00:00Z")
        late = await one(a.admin, state="inactive", deadline="2020-01-01T00:00:00Z")
        w = await worker(a)
        assert await w.claim() == []
        assert (await a.admin.get(f"{TASKS}/{later}")).body["held"] == "clock"
        for path in (f"{TASKS}/{later}/statistics", f"{TASKS}/statistics"):
            assert (await a.admin.get(path)).body["held"] == 0, "it goes on by itself"

        async def over() -> bool:
            return await state_of(a.admin, late) == "cancelled"

        await eventually(over, "its deadline is over")
        await a.admin.ask("PATCH", f"{TASKS}/{later}", {"state": "available"})
        assert [work["id"] for work in await w.claim()] == [later]


async def test_samples_are_appended_to_the_attempt(api: Apis) -> None:
    async with api() as a:
        id = await one(a.admin)
        w = await worker(a)
        (work,) = await w.claim()
        for memory in (1e6, 2e6):
            await w.report(sampled=[{**held(work), "memory_bytes": memory, "cpus": 1.5}])
        info = (await a.admin.get(f"{TASKS}/{id}/current_history")).body
        assert info["memory_usage"]["values"] == [1e6, 2e6]
        assert info["cpu_utilization"]["values"] == [1.5, 1.5]
        assert [info["memory_usage"][name] for name in ("count", "mean", "most")] == [2, 1.5e6, 2e6]


async def test_how_busy_its_gpus_were_is_a_figure_of_an_attempt(api: Apis) -> None:
    async with api() as a:
        id, _ = await submit(a.admin, {"command": "x", "group": "g"}, {"command": "y", "group": "g"})
        w = await worker(a)
        works = {work["id"]: work for work in await w.claim()}
        for gpu in (0.5, 1.0, 0.9):
            await w.report(sampled=[{**held(works[id]), "gpu": gpu}])
        await w.end(*works.values())
        for scope in ("statistics?group=g", f"{id}/statistics"):
            seen = (await a.admin.get(f"{TASKS}/{scope}")).body["gpu"]
            assert (seen["count"], seen["mean"]) == (1, pytest.approx(0.8)), scope
            assert seen["p50"] == pytest.approx(0.8, rel=0.05), scope


async def test_two_thousand_claimers_and_ten_tasks(api: Apis) -> None:
    """Exactly ten win, whichever way they ask."""
    async with api() as a:
        ids = await submit(a.admin, *({"command": "x"} for _ in range(10)))
        workers = await asyncio.gather(*(worker(a) for _ in range(20)))

        async def batched(w: Worker) -> int:
            return len(await w.claim(1))

        async def by_patch(w: Worker, id: str) -> int:
            answer = await w.patch(id, {"state": "running", "execution_info": {"worker": w.id}})
            assert answer.status in (200, 409), answer.body
            return int(answer.status == 200)

        asks = [batched(w) for w in workers for _ in range(50)]
        asks += [by_patch(w, ids[n % 10]) for w in workers for n in range(50)]
        assert sum(await asyncio.gather(*asks)) == 10
