"""Two thousand running runs on one server: what it costs to hold them.

The server is a real process; its host's agents are played by this one behind the real protocol, since two thousand real
jobs would measure the machine. They run until they are stopped and have nothing to say.
"""

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from aiohttp import web
from pydantic import BaseModel

from bench.home import temporary_home
from bench.result import Result
from bench.stand import Stand, cpu_s, down, up
from stoker.core.shim_task import S
from stoker.wire.runner import Health as RunnerHealth
from stoker.wire.runner import JobOrder, RunnerState
from stoker.wire.shim import Changes, Health, HostInfo, TaskInfo, TaskOrder

RUNS = 2_000
AT_ONCE = 100
MEASURE_S = 20.0
PATIENCE_S = 300.0


def crowd() -> list[Result]:
    with temporary_home() as home, _played(home / "shim"):
        stand = up(home)
        try:
            return _measured(stand)
        finally:
            down(stand)


def _measured(stand: Stand) -> list[Result]:
    begun = time.perf_counter()
    for _ in range(RUNS // AT_ONCE):
        runs = [{"type": "task", "commands": ["sleep infinity"]}] * AT_ONCE
        stand.client.post(stand.client.at("runs"), {"configurations": runs}, key=secrets.token_hex(8))
    deadline = time.monotonic() + PATIENCE_S
    while sum(1 for _ in stand.client.items(stand.client.at("runs"), {"status": "RUNNING"})) < RUNS:
        assert time.monotonic() < deadline, f"not all of {RUNS} runs have started"
        time.sleep(0.5)
    started = RUNS / (time.perf_counter() - begun)
    time.sleep(5.0)
    server, postgres, begun = cpu_s([stand.server]), cpu_s(stand.postgres()), time.perf_counter()
    time.sleep(MEASURE_S)
    seconds = time.perf_counter() - begun
    share = (cpu_s([stand.server]) - server) / seconds * 100
    beside = (cpu_s(stand.postgres()) - postgres) / seconds * 100
    memory = stand.server.memory_info().rss / 2**20
    return [
        Result(f"{RUNS:,} runs submitted and running, agents played", started, "runs/s"),
        Result("  memory of the server that holds them", memory, "MB", "<= 400 MB", ok=memory <= 400),
        Result("  its share of a core", share, "%", "<= 20 %", ok=share <= 20),
        Result("  share of PostgreSQL", beside, "%"),
    ]


class _Host:
    """A shim and the runner of every task, with no process behind them."""

    def __init__(self, home: Path) -> None:
        self._home, self._boot = home, secrets.token_hex(4)
        self._tasks: dict[UUID, tuple[int, TaskInfo]] = {}
        self._changed = asyncio.Event()
        self._number = 0

    def shim(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/host", self.host)
        app.router.add_get("/changes", self.changes)
        app.router.add_post("/tasks", self.submit)
        app.router.add_get("/tasks/{id}", self.task)
        return app

    def runner(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/job", self.job)
        return app

    async def health(self, request: web.Request) -> web.Response:
        return _say(Health(version="played", boot=self._boot, tasks=len(self._tasks)))

    async def host(self, request: web.Request) -> web.Response:
        info = HostInfo(hostname="played", cpus=RUNS // 16 + 1, memory_mb=2**20, disk_mb=2**20, root=True, cgroups=True)
        return _say(info)

    async def submit(self, request: web.Request) -> web.Response:
        order = TaskOrder.model_validate_json(await request.read())
        socket = str(self._home / "runner.sock")
        task = TaskInfo(id=order.id, fence=order.fence, state=S.RUNNING, socket=socket)
        self._number += 1
        self._tasks[order.id] = self._number, task
        self._changed.set()
        return _say(task, 201)

    async def task(self, request: web.Request) -> web.Response:
        return _say(self._tasks[UUID(request.match_info["id"])][1])

    async def changes(self, request: web.Request) -> web.Response:
        boot, _, seen = request.query.get("cursor", "").partition(":")
        known = int(seen) if boot == self._boot else -1
        if known == self._number:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), float(request.query.get("wait_s", "0")))
        fresh = tuple(task for number, task in self._tasks.values() if number > known)
        return _say(Changes(cursor=f"{self._boot}:{self._number}", complete=known < 0, tasks=fresh))

    async def job(self, request: web.Request) -> web.Response:
        order = JobOrder.model_validate_json(await request.read())
        return _say(RunnerHealth(version="played", state=RunnerState.RUN, job_id=order.job_id))


def _say(answer: BaseModel, status: int = 200) -> web.Response:
    return web.Response(text=answer.model_dump_json(), status=status, content_type="application/json")


@contextmanager
def _played(home: Path) -> Iterator[None]:
    """Where the server looks for the shim of its own host, somebody answers already."""
    home.mkdir(parents=True)
    (home / "address").write_text(str(home / "shim.sock"))
    (home / "token").write_text(secrets.token_hex(16))
    began: queue.Queue[Callable[[], object]] = queue.Queue()
    thread = threading.Thread(target=lambda: asyncio.run(_play(home, began)))
    thread.start()
    end = began.get(timeout=10.0)
    try:
        yield
    finally:
        end()
        thread.join()


async def _play(home: Path, began: "queue.Queue[Callable[[], object]]") -> None:
    host, loop, over = _Host(home), asyncio.get_running_loop(), asyncio.Event()
    playing = []
    for app, name in ((host.shim(), "shim.sock"), (host.runner(), "runner.sock")):
        one = web.AppRunner(app, shutdown_timeout=0.1)
        await one.setup()
        await web.UnixSite(one, str(home / name)).start()
        playing.append(one)
    began.put(lambda: loop.call_soon_threadsafe(over.set))
    await over.wait()
    for one in playing:
        await one.cleanup()
