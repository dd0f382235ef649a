"""How fast a task is there, how soon its end is known, and what that costs the shim."""

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import psutil

from bench.home import temporary_home
from bench.result import Result
from stoker.runner.place import write_file
from stoker.runner.segment import sync_directory
from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import Stage, Told, prepared

LIVES = 60
AT_ONCE = 200
IDLE_S = 10.0


class Server(Stage):
    """What a server does, with connections that are kept, and one long poll that hears everything."""

    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, **more: Any) -> Told:
        async with self.session.request(method, f"http://shim{path}", **more) as response:
            return Told(response.status, await response.read(), dict(response.headers))

    async def hears_results(self, ids: set[UUID]) -> dict[UUID, float]:
        """When each was heard."""
        heard: dict[UUID, float] = {}
        changes = await self.changes()
        while True:
            now = time.time()
            heard |= {one.id: now for one in changes.tasks if one.result and one.id not in heard}
            if ids <= heard.keys():
                return heard
            changes = await self.changes(changes.cursor, 10.0)

    def cpu_ms(self) -> float:
        """Exact, over all threads."""
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Server]:
    made = prepared(directory)
    server = Server(made.home)
    try:
        await server.start()
        await server.fork_server_ready()
        connector = aiohttp.UnixConnector(path=str(server.home / "shim.sock"), limit=0)
        headers = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as server.session:
            await server.terminate((await server.submit()).id)
            yield server
    finally:
        server.clear()


def writes_alone(directory: Path) -> float:
    """What a start must write and sync in any case, without a shim around it; in milliseconds."""
    began = time.perf_counter()
    for name in ("", "work", "log", "own"):
        (directory / name).mkdir()
    write_file(directory / "task.json", b"x" * 900)
    sync_directory(directory.parent)
    write_file(directory / "task.json", b"x" * 900)
    taken = (time.perf_counter() - began) * 1e3
    shutil.rmtree(directory)
    return taken


async def _lives(server: Server, home: Path) -> list[Result]:
    """One after the other: submitted, `true`, its end heard, its log read, removed."""
    posts, alone, news, removals = [], [], [], []
    used = 0.0
    for number in range(LIVES):
        alone.append(writes_alone(home / f"alone-{number}"))
        before = server.cpu_ms()
        began = time.perf_counter()
        task = await server.submit()
        posts.append((time.perf_counter() - began) * 1e3)
        assert task.state == "running"
        hearing = asyncio.create_task(server.hears_results({task.id}))
        await server.run(task, "true")
        heard = (await hearing)[task.id]
        written = os.stat(server.directory(task.id) / "result.json").st_mtime
        news.append((heard - written) * 1e3)
        await server.read_log(task)
        assert (await server.terminate(task.id)).state == "terminated"
        began = time.perf_counter()
        assert (await server.remove(task.id)).status == 204
        removals.append((time.perf_counter() - began) * 1e3)
        used += server.cpu_ms() - before
    post, writes = statistics.median(posts), statistics.median(alone)
    return [
        Result("shim: POST /tasks, p50", post, "ms", peer=f"the writes alone take {writes:.1f} ms"),
        Result("shim: POST /tasks beyond its writes, p50", post - writes, "ms", "<= 10 ms", ok=post - writes <= 10),
        Result("shim: result on disk → heard by long poll, p50", statistics.median(news), "ms"),
        Result("shim: DELETE /tasks/{id}, p50", statistics.median(removals), "ms"),
        Result("shim: CPU of a task's life", used / LIVES, "ms"),
    ]


async def _crowd(server: Server) -> list[Result]:
    before, began = server.cpu_ms(), time.perf_counter()
    tasks: list[TaskInfo] = await asyncio.gather(*(server.submit() for _ in range(AT_ONCE)))
    for task in tasks:
        await server.reaches(task.id, lambda one: one.state == "running")
    taken, used = time.perf_counter() - began, server.cpu_ms() - before
    began = time.perf_counter()
    assert len((await server.ask("GET", "/tasks")).json["tasks"]) == AT_ONCE
    listed = (time.perf_counter() - began) * 1e3
    before = server.cpu_ms()
    await asyncio.sleep(IDLE_S)
    idle = (server.cpu_ms() - before) / (IDLE_S * 10)
    assert server.process is not None
    size = psutil.Process(server.process.pid).memory_info().rss / 1e6
    began = time.perf_counter()
    assert (await server.ask("POST", "/leave", json={"force": True})).status == 202
    return [
        Result(f"shim: {AT_ONCE} tasks at once, until all run", taken, "s"),
        Result(f"shim: {AT_ONCE} tasks at once, CPU of a start", used / AT_ONCE, "ms"),
        Result(f"shim: list of {AT_ONCE} tasks", listed, "ms"),
        Result(f"shim: idle with {AT_ONCE} live tasks", idle, "% of a core"),
        Result(f"shim: memory with {AT_ONCE} live tasks", size, "MB"),
        Result(f"shim: {AT_ONCE} tasks terminated by /leave", time.perf_counter() - began, "s"),
    ]


async def _measure(home: Path) -> list[Result]:
    async with served(home) as server:
        lives = await _lives(server, home)
        await server.ask("DELETE", f"/tasks/{(await server.ask('GET', '/tasks')).json['tasks'][0]['id']}?fence=9")
        return [*lives, *await _crowd(server)]


def measure() -> list[Result]:
    with temporary_home() as home:
        return asyncio.run(_measure(home))
