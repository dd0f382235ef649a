"""A shim with real runners: a task's life from its order to its removal, and what a server hears of it."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.core.reason import JobReason
from stoker.runner.proc import alive
from stoker.wire.frame import decode
from stoker.wire.runner import Failure
from tests.agents.shim_stage import GPUS, PROJECT, Stage, existing, shared_stage, stage, until
from tests.machine import unavailable


@pytest.fixture(scope="module")
def shim(shared_directory: Path) -> Iterator[Stage]:
    """One for all tests here that leave it alive."""
    with shared_stage(shared_directory) as made:
        yield made


def printed(log: Path, text: bytes) -> bool:
    return any(text in one.read_bytes() for one in log.glob("*.log"))


async def test_a_task_from_its_order_to_its_removal(shim: Stage) -> None:
    """Submitted, given a job, the log read: the runner leaves, everything is released, and the exit code stays."""
    told = await shim.ask("POST", "/tasks", json=(order := shim.order()))
    task = told.task
    assert (told.status, task.state, task.id, task.fence) == (201, "running", UUID(order["id"]), 1)
    groups = shim.cgroups(task.id)
    assert existing(*groups) == groups
    await shim.run(task, "echo out", "echo err >&2", "exit 3")
    ended = await shim.reaches(task.id, lambda task: task.result)
    assert ended.state == "running", "its runner still has the log"
    assert ended.result is not None
    assert (ended.result.exit_code, ended.log_end) == (3, ended.result.log_end)
    await shim.read_log(task)
    gone = await shim.ended(task.id)
    assert (gone.reason, gone.result, gone.socket) == (JobReason.CONTAINER_EXITED_WITH_ERROR, ended.result, "")
    assert sorted(gone.message.splitlines()) == ["err", "out"], "the last lines, for people"
    assert existing(*groups) == []
    assert not (shim.directory(task.id) / "work").exists()
    assert (await shim.remove(task.id, 1)).status == 204
    assert not shim.directory(task.id).exists()
    assert (await shim.ask("GET", f"/tasks/{task.id}")).error == (404, "no_task")


async def test_the_same_order_twice_is_one_task(shim: Stage) -> None:
    """The answer was lost, or two requests crossed: no second runner."""
    order = shim.order()
    told = await asyncio.gather(*(shim.ask("POST", "/tasks", json=order) for _ in range(5)))
    assert sorted(one.status for one in told) == [200, 200, 200, 200, 201]
    assert len({await shim.born(one.task.id) for one in told}) == 1
    again = await shim.ask("POST", "/tasks", json=order | {"fence": 7})
    assert (again.status, again.task.fence) == (200, 7)
    assert (await shim.ask("POST", "/tasks", json=order | {"fence": 6})).error == (409, "fenced")
    other = await shim.ask("POST", "/tasks", json=order | {"fence": 8, "token": "x" * 32})
    assert other.error == (409, "other_order")
    assert len((await shim.ask("GET", "/tasks")).json["tasks"]) == 1


async def test_of_two_orders_at_once_for_one_task_the_first_stands(shim: Stage) -> None:
    """They differ in whom it is for, or in what nobody else may have meanwhile."""
    changes: list[dict[str, Any]] = [{"token": "x" * 32}, {"project_id": str(uuid4())}, {"gpu_indices": [1]}]
    for change in changes:
        order = shim.order(gpu_indices=[0])
        told = await asyncio.gather(*(shim.ask("POST", "/tasks", json=one) for one in (order, order | change) * 3))
        assert sorted(one.status for one in told) == [200, 200, 201, 409, 409, 409], change
        assert {one.error[1] for one in told if one.status == 409} == {"other_order"}
        assert len({one.task.gpu_ids for one in told if one.status != 409}) == 1
        await shim.terminate(UUID(order["id"]))
        assert (await shim.remove(UUID(order["id"]))).status == 204


async def test_news_comes_within_milliseconds_and_only_what_is_new(shared_directory: Path) -> None:
    """One long poll hears of the end of a job when the runner says so, not at the next look."""
    async with stage(shared_directory) as shim:
        task = await shim.start_job("sleep 1000")
        idle = await shim.submit()
        first = await shim.changes()
        assert (first.complete, {one.id for one in first.tasks}) == (True, {task.id, idle.id})
        poll = asyncio.create_task(shim.changes(first.cursor, 20.0))
        await shim.tell_runner(task, "POST", "/stop", json={"fence": 1, "grace_s": 0})
        result = Path(shim.directory(task.id) / "result.json")
        await until(result.exists)
        written = time.monotonic()
        changes = await poll
        assert time.monotonic() - written < 0.5
        assert (changes.complete, [one.id for one in changes.tasks]) == (False, [task.id])
        assert changes.tasks[0].result is not None
        quiet = await shim.changes(changes.cursor, 0.05)
        assert (quiet.tasks, quiet.complete, quiet.cursor) == ((), False, changes.cursor)
        unknown = await shim.changes("0123456789abcdef:3", 20.0)
        assert unknown.complete
        assert (await shim.changes(f"{changes.cursor}9", 20.0)).complete, "a number that was never given"


async def test_a_log_that_grows_is_news_at_a_slow_pace(shim: Stage) -> None:
    task = await shim.start_job("while true; do echo more; sleep 0.01; done")
    seen: list[tuple[float, int]] = []
    changes = await shim.changes()
    while len(seen) < 2:
        changes = await shim.changes(changes.cursor, 10.0)
        seen += [(time.monotonic(), one.log_end) for one in changes.tasks if one.log_end]
    assert seen[0][1] < seen[1][1]
    assert seen[1][0] - seen[0][0] > 1.5
    await shim.terminate(task.id)


async def test_terminate_stops_within_the_grace_and_an_abort_overtakes_it(shim: Stage) -> None:
    """A job that ignores SIGTERM is given five minutes; then the user does not want to wait."""
    polite = await shim.start_job("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    stubborn = await shim.start_job("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    for task in (polite, stubborn):
        log = shim.directory(task.id) / "log"
        await until(partial(printed, log, b"ready"))
    ended = await shim.terminate(polite.id, grace_s=20.0)
    assert (ended.state, ended.reason) == ("terminated", JobReason.TERMINATED_BY_SERVER)
    assert ended.result is not None
    assert ended.result.exit_code == 7
    asked = await shim.terminate(stubborn.id, grace_s=300.0, wait_s=0.3)
    assert (asked.state, asked.ending) == ("running", True)
    assert (await shim.remove(stubborn.id)).error == (409, "not_terminated")
    begun = time.monotonic()
    killed = await shim.terminate(stubborn.id, fence=3, grace_s=0.0)
    assert killed.state == "terminated"
    assert time.monotonic() - begun < 3.0
    assert killed.result is not None
    assert killed.result.signal == signal.SIGKILL
    again = await shim.terminate(stubborn.id, fence=3)
    assert again.ended_ago_s >= killed.ended_ago_s
    assert again.model_copy(update={"ended_ago_s": killed.ended_ago_s}) == killed, "safe to repeat"


async def test_a_runner_that_is_killed_ends_its_task_and_all_that_it_left(shim: Stage) -> None:
    """Nobody wrote a result: the job ends as the executor's error, and nothing of it lives on."""
    task = await shim.start_job("setsid sleep 1000 & echo $! > pids; sleep 1000 & echo $! >> pids; wait")
    noted = shim.directory(task.id) / "work" / "pids"
    await until(lambda: noted.exists() and len(noted.read_text().split()) == 2)
    pids = [int(word) for word in noted.read_text().split()]
    cursor = (await shim.changes()).cursor
    poll = asyncio.create_task(shim.changes(cursor, 20.0))
    os.kill(await shim.born(task.id), signal.SIGKILL)
    killed = time.monotonic()
    await poll
    assert time.monotonic() - killed < 1.0
    ended = await shim.ended(task.id)
    assert (ended.reason, ended.result) == (JobReason.EXECUTOR_ERROR, None)
    assert not any(alive(pid) for pid in pids)
    told = await shim.ask("GET", f"/tasks/{task.id}/log")
    assert (told.status, told.complete) == (200, True)


async def test_the_log_is_served_from_disk_in_pieces(shim: Stage) -> None:
    """The runner is gone before the server has read: the shim has every byte."""
    task = await shim.start_job("seq 1 60000; head -c 100000 /dev/urandom | base64 -w 0 >&2; exit 3")
    running = await shim.ask("GET", f"/tasks/{task.id}/log")
    assert not running.complete or (await shim.task(task.id)).result
    await shim.reaches(task.id, lambda task: task.result)
    ended = await shim.terminate(task.id)
    assert ended.result is not None
    offset, frames = 0, b""
    while True:
        told = await shim.ask("GET", f"/tasks/{task.id}/log?offset={offset}&limit=100000")
        assert told.status == 200
        assert len(told.body) < 100_000 + 70_000
        frames, offset = frames + told.body, told.next
        if told.complete:
            break
        assert told.body
    assert offset == ended.result.log_end
    lines = b"".join(frame.data for frame in decode(frames) if frame.stream == 1)
    assert lines == b"".join(b"%d\n" % number for number in range(1, 60001))
    assert (await shim.ask("GET", f"/tasks/{task.id}/log?offset=1")).error == (422, "log_offset")
    own = await shim.ask("GET", f"/tasks/{task.id}/log?own=true")
    assert b"took job" in own.body
    assert (await shim.ask("GET", f"/tasks/{uuid4()}/log")).error == (404, "no_task")


async def test_a_gpu_is_never_held_twice_and_is_given_back(shared_directory: Path) -> None:
    async with stage(shared_directory) as shim:
        first = await shim.submit(gpu_indices=[0, 2])
        assert first.gpu_ids == ("GPU-0", "GPU-2")
        second = await shim.submit(gpu_indices=[1, 2])
        assert (second.state, second.reason) == ("terminated", JobReason.EXECUTOR_ERROR)
        assert str(first.id) in second.message
        third = await shim.submit(gpu_indices=[1])
        assert third.gpu_ids == ("GPU-1",), "the one that failed kept nothing"
        nowhere = await shim.submit(gpu_indices=[GPUS])
        assert nowhere.message == f"This host has no GPU {GPUS}."
        await shim.restart()
        refused = await shim.submit(gpu_indices=[0])
        assert refused.state == "terminated", "held over a restart"
        await shim.terminate(first.id)
        again = await shim.submit(gpu_indices=[0, 2])
        assert again.gpu_ids == ("GPU-0", "GPU-2")


async def test_nobody_who_knocks_while_it_is_busy_is_turned_away(shim: Stage) -> None:
    """A full queue would be taken for a connection, and the request would be lost."""
    assert shim.process is not None
    os.kill(shim.process.pid, signal.SIGSTOP)
    knocking = [asyncio.create_task(shim.ask("GET", "/healthz")) for _ in range(400)]
    try:
        finished, _ = await asyncio.wait(knocking, timeout=1.0)
    finally:
        os.kill(shim.process.pid, signal.SIGCONT)
    assert not finished
    assert {told.status for told in await asyncio.gather(*knocking)} == {200}


async def test_two_hundred_tasks_at_once(shared_directory: Path) -> None:
    """They start a few at a time, each once, and one answer lists them all."""
    async with stage(shared_directory) as shim:
        await shim.fork_server_ready()
        tasks = await asyncio.gather(*(shim.submit() for _ in range(200)))
        for task in tasks:
            await shim.reaches(task.id, lambda task: task.state == "running")
        listed = (await shim.ask("GET", "/tasks")).json["tasks"]
        assert {one["state"] for one in listed} == {"running"}
        assert len({await shim.born(task.id) for task in tasks}) == 200
        told = await shim.ask("POST", "/leave", json={})
        assert told.error == (409, "tasks_running")
        assert "200 tasks" in told.json["error"]["message"]
        left = await shim.ask("POST", "/leave", json={"force": True})
        assert (left.status, left.json) == (202, {"terminated": 200})
        assert shim.process is not None
        assert await asyncio.to_thread(shim.process.wait, 20.0) == 0
        assert {shim.runner(task.id) for task in tasks} == {None}
        assert shim.fork_server() is None


async def test_a_task_that_gets_no_job_can_be_ended(shim: Stage) -> None:
    task = await shim.submit()
    ended = await shim.terminate(task.id)
    assert (ended.state, ended.reason) == ("terminated", JobReason.TERMINATED_BY_SERVER)
    assert shim.runner(task.id) is None
    assert existing(task.socket) == []


async def test_what_a_job_may_not_do_is_told_apart(shim: Stage) -> None:
    """The result says more than the shim's own reason: the setup, the quota."""
    task = await shim.submit()
    await shim.run(task, "yes", log_quota_bytes=100_000)
    ended = await shim.reaches(task.id, lambda task: task.result)
    assert ended.result is not None
    assert ended.result.failure is Failure.LOG_QUOTA


def _memory_is_limited(shim: Stage, id: UUID) -> bool:
    return any(
        (Path(group) / name).exists() for group in shim.cgroups(id) for name in ("memory.max", "memory.limit_in_bytes")
    )


async def test_memory_and_cpu_are_limited_where_the_host_allows(shim: Stage) -> None:
    task = await shim.submit(memory_mb=64, cpu=0.5)
    if not _memory_is_limited(shim, task.id):
        (unavailable if os.geteuid() == 0 else pytest.skip)("no control groups may be made here")
    assert (await shim.ask("GET", "/host")).json["cgroups"] is True
    await shim.run(task, "exec python3 -c 'x = bytearray(300 << 20)' || exec tail /dev/zero")
    ended = await shim.reaches(task.id, lambda task: task.result)
    assert ended.result is not None
    assert ended.result.oom
    await shim.read_log(task)
    assert (await shim.ended(task.id)).reason is JobReason.OUT_OF_MEMORY


async def test_the_host_is_described(shim: Stage) -> None:
    host = (await shim.ask("GET", "/host")).json
    assert host["cpus"] == len(os.sched_getaffinity(0))
    assert host["memory_mb"] > 100
    assert host["disk_mb"] > 100
    assert [gpu["id"] for gpu in host["gpus"]] == [f"GPU-{number}" for number in range(GPUS)]
    assert host["root"] == (os.geteuid() == 0)
    assert host["project_id"] in ((None,) if host["root"] else (None, str(PROJECT))), "only where it serves one alone"
    health = (await shim.ask("GET", "/healthz")).json
    assert (health["service"], health["tasks"]) == ("shim", len((await shim.ask("GET", "/tasks")).json["tasks"]))
