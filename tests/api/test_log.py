"""Logs over HTTP: by offset, followed as they grow, and ended when the job is."""

import asyncio
from base64 import b64decode
from functools import partial
from uuid import UUID

from stoker.store.log import runner_log
from stoker.wire.frame import Frame, Stream, decode, encode
from tests.api.conftest import Api, Apis, Json, eventually, task
from tests.api.test_run import until

RUNS = "/api/projects/main/runs"


def frames(*lines: str) -> bytes:
    return b"".join(encode(Frame(Stream.STDOUT, 1, line.encode())) for line in lines)


def text(data: bytes) -> str:
    return b"".join(frame.data for frame in decode(data)).decode()


async def started(a: Api, name: str = "train") -> UUID:
    run = await a.admin.made(RUNS, {"configuration": task(name=name)})
    await until(a.admin, name, "RUNNING")
    return UUID(run["jobs"][0]["id"])


async def append(a: Api, id: UUID, *lines: str) -> None:
    end = await a.context.logs.end(id)
    await a.context.logs.append(id, end, frames(*lines))
    a.context.log_hub.notify(id)


async def test_a_log_is_read_from_any_offset(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "one\n", "two\n")
        whole = await a.admin.get(f"{RUNS}/train/logs")
        assert text(whole.body) == "one\ntwo\n"
        assert whole.headers["Stoker-Log-Complete"] == "false"
        assert whole.headers["Stoker-Next-Offset"] == whole.headers["Stoker-Log-End"] == str(len(whole.body))
        first = await a.admin.get(f"{RUNS}/train/logs?limit={len(frames('one!'))}&job={job}")
        assert text(first.body) == "one\n"
        rest = await a.admin.get(f"{RUNS}/train/logs?offset={first.headers['Stoker-Next-Offset']}&submission=1")
        assert text(rest.body) == "two\n"
        assert (await a.admin.get(f"{RUNS}/train/logs?offset=3")).code == "log_offset"
        beyond = await a.admin.get(f"{RUNS}/train/logs?offset=99999")
        assert (beyond.status, beyond.body) == (200, b"")
        for wrong in ("replica=1", "node=1", "submission=2", f"job={UUID(int=1)}"):
            assert (await a.admin.get(f"{RUNS}/train/logs?{wrong}")).status == 404, wrong
        for wrong in ("offset=-1", "limit=0", "limit=99999999", "job=x", "replica=x", f"offset={2**70}"):
            assert (await a.admin.get(f"{RUNS}/train/logs?{wrong}")).status == 422, wrong
        await a.admin.post(f"{RUNS}/train/stop")
        await until(a.admin, "train", "TERMINATED")
        done = await a.admin.get(f"{RUNS}/train/logs?offset={len(whole.body)}")
        assert (done.body, done.headers["Stoker-Log-Complete"]) == (b"", "true")


async def test_the_runners_own_log_is_another(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "the job's")
        await append(a, runner_log(job), "the runner's")
        assert text((await a.admin.get(f"{RUNS}/train/logs?runner=true")).body) == "the runner's"
        assert text((await a.admin.get(f"{RUNS}/train/logs")).body) == "the job's"


async def test_a_follower_hears_what_is_appended_at_once_and_then_the_end(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "zero\n")
        told: list[tuple[str, str, str]] = []

        async def follow() -> None:
            async for one in a.admin.events(f"{RUNS}/train/logs/follow"):
                told.append(one)

        following = asyncio.ensure_future(follow())
        await eventually(lambda: _told(told, 1), "what was there")
        loop = asyncio.get_running_loop()
        for number in range(1, 4):
            began = loop.time()
            await append(a, job, f"{number}\n")
            await eventually(partial(_told, told, number + 1), "it is told")
            assert loop.time() - began < 1.0
        assert a.context.streams == 1
        await a.admin.post(f"{RUNS}/train/stop")
        await asyncio.wait_for(following, 10)
        assert "".join(text(b64decode(data)) for _, name, data in told if not name) == "zero\n1\n2\n3\n"
        assert told[-1][1] == "end"
        assert int(told[-1][0]) == await a.context.logs.end(job)
        await eventually(lambda: _no_streams(a), "the stream is closed")
        last = {"Last-Event-ID": told[1][0]}
        again = [one async for one in a.admin.events(f"{RUNS}/train/logs/follow", headers=last)]
        assert "".join(text(b64decode(data)) for _, name, data in again if not name) == "2\n3\n"


async def _told(told: list[Json], number: int) -> bool:
    return len(told) >= number


async def _no_streams(a: Api) -> bool:
    return a.context.streams == 0 and len(a.context.log_hub) == 0


async def test_a_follower_that_leaves_is_forgotten(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "x")
        async for _ in a.admin.events(f"{RUNS}/train/logs/follow"):
            assert a.context.streams == 1
            break
        await eventually(lambda: _no_streams(a), "nobody follows any more")


async def test_a_stop_of_the_server_ends_what_is_followed(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await started(a)

        async def follow() -> int:
            return len([one async for one in a.admin.events(f"{RUNS}/train/logs/follow")])

        following = asyncio.ensure_future(follow())
        await eventually(lambda: _streams(a), "it is followed")
        a.context.stop()
        assert await asyncio.wait_for(following, 5) == 0


async def _streams(a: Api) -> bool:
    return len(a.context.log_hub) > 0


async def test_a_wrong_offset_is_an_error_before_the_stream_begins(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "something")
        assert (await a.admin.get(f"{RUNS}/train/logs/follow?offset=3")).code == "log_offset"
        wrong = await a.admin.get(f"{RUNS}/train/logs/follow", headers={"Last-Event-ID": "x"})
        assert wrong.status == 400
