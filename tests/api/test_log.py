"""Logs over HTTP: by offset, followed as they grow, and ended when the job is."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from stoker.core.limits import MOST_TAIL_LINES
from stoker.server.http import GRACE_S
from stoker.store.log import READ_BYTES, runner_log
from stoker.wire.frame import Frame, Stream, decode, encode, located
from stoker.wire.log import Skipping, skip_of
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


def stamped(stream: int, time_s: float, *lines: str) -> bytes:
    return b"".join(encode(Frame(stream, round(time_s * 1e6), line.encode())) for line in lines)


NOON = 1_763_287_200.0
"""2025-11-16T10:00:00Z"""


async def _hour(a: Api, job: UUID) -> bytes:
    """A line a minute, and now and then a complaint."""
    written = b"".join(
        stamped(Stream.STDOUT, NOON + 60 * minute, f"{minute}\n")
        + (stamped(Stream.STDERR, NOON + 60 * minute, f"oh {minute}", "!\n") if minute % 20 == 19 else b"")
        for minute in range(60)
    )
    await a.context.logs.append(job, 0, written)
    return written


def shown(answer: Any) -> tuple[str, str]:
    """Of stdout and stderr, as a reader shows an answer that has all of it."""
    skipping = Skipping(skip_of(answer.headers["Stoker-Log-Skip"]))
    told = {Stream.STDOUT: "", Stream.STDERR: ""}
    for _, frame in skipping.rest(located(answer.body, int(answer.headers["Stoker-Log-Start"]))):
        told[Stream(frame.stream)] += frame.data.decode()
    return told[Stream.STDOUT], told[Stream.STDERR]


async def test_the_last_lines_and_what_was_written_since_are_found_by_the_server(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        written = await _hour(a, job)
        last = await a.admin.get(f"{RUNS}/train/logs?tail=3")
        assert shown(last) == ("58\n59\n", "oh 59!\n")
        assert last.headers["Stoker-Next-Offset"] == last.headers["Stoker-Log-End"] == str(len(written))
        assert written.endswith(last.body) and len(last.body) < 200
        since = await a.admin.get(f"{RUNS}/train/logs?since=2025-11-16T10:57:30Z")
        assert shown(since) == ("58\n59\n", "oh 59!\n")
        assert since.headers["Stoker-Log-Skip"] == ""
        both = await a.admin.get(f"{RUNS}/train/logs?since=2025-11-16T11:57:30%2B01:00&tail=1")
        assert shown(both) == ("", "oh 59!\n")
        assert shown(await a.admin.get(f"{RUNS}/train/logs?tail=0")) == ("", "")
        small = await a.admin.get(f"{RUNS}/train/logs?tail=3&limit=25")
        assert len(list(decode(small.body))) == 1
        rest = await a.admin.get(f"{RUNS}/train/logs?offset={small.headers['Stoker-Next-Offset']}")
        assert small.body + rest.body == last.body


async def test_an_answer_says_of_which_run_and_submission_it_is(api: Apis) -> None:
    """A name means the latest run of it: who goes on with the second half must not get another's."""
    async with api(None) as a:
        await a.host()
        await started(a)
        answer = await a.admin.get(f"{RUNS}/train/logs")
        run = (await a.admin.get(f"{RUNS}/train")).body
        assert answer.headers["Stoker-Log-Run"] == run["id"]
        assert answer.headers["Stoker-Log-Submission"] == "1"


async def test_a_wrong_beginning_is_a_clear_error(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await started(a)
        for route in ("logs", "logs/follow"):
            for wrong in ("tail=-1", f"tail={MOST_TAIL_LINES + 1}", "tail=x", "since=yesterday"):
                answer = await a.admin.get(f"{RUNS}/train/{route}?{wrong}")
                assert (answer.status, answer.body["error"]["problems"][0]["key"]) == (422, wrong.split("=")[0]), wrong
            for wrong in ("tail=1&offset=0", "since=2025-11-16T10:57:30Z&offset=0"):
                answer = await a.admin.get(f"{RUNS}/train/{route}?{wrong}")
                assert (answer.status, answer.code) == (400, "log_range"), wrong


async def test_a_log_is_followed_from_its_last_lines_on(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        job = await started(a)
        written = await _hour(a, job)
        told: list[tuple[str, str, str]] = []
        async for one in a.admin.events(f"{RUNS}/train/logs/follow?tail=1"):
            told.append(one)
            if len(told) == 1:
                await append(a, job, "more\n")
            else:
                break
        assert text(b64decode(told[0][2])) == "oh 59!\n"
        assert (int(told[0][0]), text(b64decode(told[1][2]))) == (len(written), "more\n")
        again = {"Last-Event-ID": told[0][0]}
        async for _, _, data in a.admin.events(f"{RUNS}/train/logs/follow?tail=1", headers=again):
            assert text(b64decode(data)) == "more\n"
            break


async def test_a_follower_of_a_log_that_is_deleted_does_not_take_it_for_whole(api: Apis) -> None:
    """A slow reader is in the middle of it when somebody deletes the finished run."""
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await _much(a, job)
        await a.admin.post(f"{RUNS}/train/stop")
        await until(a.admin, "train", "TERMINATED")
        end, told = await a.context.logs.end(job), []
        async for one in a.admin.events(f"{RUNS}/train/logs/follow"):
            told.append(one)
            if len(told) == 1:
                assert (await a.admin.delete(f"{RUNS}/train")).status == 204
                await eventually(lambda: _is_empty(a, job), "the log is removed")
        assert told[-1][1] == "gone"
        assert int(told[-1][0]) < end
        assert (await a.admin.get(f"{RUNS}/train/logs")).status == 404


async def _much(a: Api, job: UUID) -> str:
    """Far more than the sockets in between hold."""
    written = ""
    for number in range(24):
        lines = [f"{number}.{part}." + "x" * 60_000 + "\n" for part in range(14)]
        written += "".join(lines)
        await append(a, job, *lines)
    return written


async def _is_empty(a: Api, job: UUID) -> bool:
    return await a.context.logs.end(job) == 0


async def test_a_slow_reader_gets_every_byte_and_holds_up_nobody(api: Apis) -> None:
    """It reads nothing while the log grows."""
    async with api(None) as a:
        await a.host()
        job = await started(a)
        await append(a, job, "first\n")
        slow = a.admin.events(f"{RUNS}/train/logs/follow")
        told = [await anext(slow)]
        expected = "first\n" + await _much(a, job)
        quick = [one async for one in _until_end(a, job)]
        assert quick == [expected]
        await a.admin.post(f"{RUNS}/train/stop")
        told += [one async for one in slow]
        assert "".join(text(b64decode(data)) for _, name, data in told if not name) == expected
        assert told[-1][1] == "end"


async def _until_end(a: Api, job: UUID) -> AsyncIterator[str]:
    """All that is there, by somebody who is not slow."""
    end, found = await a.context.logs.end(job), b""
    async for _, _, data in a.admin.events(f"{RUNS}/train/logs/follow"):
        found += b64decode(data)
        if len(found) == end:
            yield text(found)
            return


async def test_a_reader_that_does_not_read_does_not_keep_the_server_from_stopping(
    api: Apis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is in the middle of a send that nobody takes, so it cannot see that the server stops."""
    loop = asyncio.get_running_loop()
    async with api(None) as a:
        await a.host()
        job = await started(a)
        read, last_read_at = a.context.logs.read, [loop.time()]

        async def watched(id: UUID, offset: int, limit: int = READ_BYTES) -> bytes:
            last_read_at[0] = loop.time()
            return await read(id, offset, limit)

        async def is_stuck() -> bool:
            return loop.time() - last_read_at[0] > 0.5

        monkeypatch.setattr(a.context.logs, "read", watched)
        slow = a.admin.events(f"{RUNS}/train/logs/follow")
        await _much(a, job)
        assert (await anext(slow))[1] == ""
        await eventually(is_stuck, "the sockets in between are full")
        assert a.context.streams == 1
        began = loop.time()
        a.context.stop()
        a.served.http.stop()
        await eventually(lambda: _no_streams(a), "the stream is closed", 2 * GRACE_S)
        assert loop.time() - began < GRACE_S + 3.0
        await slow.aclose()
