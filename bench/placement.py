"""The placer: how many jobs a second it puts on machines while thousands wait, what a pass costs beside what is stored,
and how soon somebody is told why a run waits."""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.api import store_ended
from bench.engine import own_commit_ms
from bench.result import Result
from stoker.core.block import Blocks
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.instance_facts import Destroy, Destroyed, Instance, Launch, Launched, ShimAnswered
from stoker.core.job_facts import (
    AskStop,
    CleanedUp,
    Cleanup,
    Exited,
    Placed,
    RemoveTask,
    RunnerAccepted,
    StartTask,
    SubmitJob,
    TaskAccepted,
)
from stoker.core.limits import MOST_RUNS_AT_ONCE
from stoker.core.machine import Event
from stoker.core.resources import Capacity
from stoker.engine.batch import Batch
from stoker.engine.change import Change, of_instance, of_job
from stoker.server.agents import Agents
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.store.outbox import Errand

INSTANCES = 200
SLOTS = 4
WAITING = 5_000
PLACED = 3_000
"""So many are placed while the placer is measured, and at least `WAITING` wait all the time."""
FEW_ENDED, MANY_ENDED = 1_000, 100_000
PASSES, ASKED = 40, 40
DEADLINE_S = 120.0
HELD = "SELECT count(*) FROM job WHERE state = 'RUNNING'"
QUEUE = "SELECT count(*) FROM job WHERE state = 'SUBMITTED' AND latest AND instance_id IS NULL"


class Hosts:
    """Machines that take every job at once. While `busy` their jobs go on, else they have ended already."""

    def __init__(self) -> None:
        self.busy = False
        self.placed = 0

    def performers(self) -> dict[Any, Any]:
        return {
            StartTask: self._starts,
            SubmitJob: self._runs,
            AskStop: self._stops,
            RemoveTask: self._removes,
            Launch: self._launches,
            Destroy: self._destroys,
        }

    def heard(self, batch: Batch) -> None:
        self.placed += sum(isinstance(one.event, Placed) for one in batch.moved)

    async def _starts(self, errand: Errand, effect: object) -> Change:
        return _of(errand, TaskAccepted(attempt=errand.attempt))

    async def _runs(self, errand: Errand, effect: object) -> Change:
        ended = () if self.busy else (Exited(0, attempt=errand.attempt),)
        return _of(errand, RunnerAccepted(attempt=errand.attempt), *ended)

    async def _stops(self, errand: Errand, effect: object) -> Change:
        return _of(errand, Exited(143, signal=15, attempt=errand.attempt))

    async def _removes(self, errand: Errand, effect: object) -> Change:
        return _of(errand, CleanedUp(Cleanup.REMOVE, attempt=errand.attempt))

    async def _launches(self, errand: Errand, effect: object) -> Change:
        id = InstanceId(errand.target)
        return Change(facts=(of_instance(id, Launched("here")), of_instance(id, ShimAnswered())))

    async def _destroys(self, errand: Errand, effect: object) -> Change:
        return Change(facts=(of_instance(InstanceId(errand.target), Destroyed()),))


def _of(errand: Errand, *events: Event) -> Change:
    return Change(facts=tuple(of_job(JobId(errand.target), RunId(errand.family), event) for event in events))


def placement(url: str) -> list[Result]:
    return asyncio.run(_measure(url, asyncio.run(own_commit_ms(url))))


async def _measure(url: str, own_ms: float) -> list[Result]:
    hosts = Hosts()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-placement-") as home:
        settings = Settings(Path(home), port=0, database_url=url, name="bench")
        async with running(settings, lambda context: Agents(performers=hosts.performers())) as served:
            asking = _Asking(served.url, Keyring(settings.config_file).secret)
            served.context.engine.listeners.append(hosts.heard)
            rate, cpu_ms = await _rate(served, hosts, asking)
            passes = [await _pass_ms(served, hosts, asking)]
            await store_ended(served, MANY_ENDED - FEW_ENDED)
            passes.append(await _pass_ms(served, hosts, asking))
            whys = await asyncio.to_thread(asking.why, ASKED)
    own = 1000 / own_ms
    few, many = passes
    p95 = sorted(whys)[int(len(whys) * 0.95)]
    return [
        Result("database's own commits, one row, one by one", own, "commits/s"),
        Result(
            f"placements, {INSTANCES} instances, {WAITING:,} waiting", rate, "placements/s", ">= 500", "own commits",
            rate / own, rate >= 500,
        ),
        Result("  the same, CPU of the server for each, with the job's whole life", cpu_ms, "ms"),
        Result(f"pass over a full house, {WAITING:,} waiting, {FEW_ENDED:,} ended", few, "ms"),
        Result(
            f"  the same, {MANY_ENDED:,} ended", many, "ms", "<= 1.5 x", f"{FEW_ENDED:,} ended", many / few,
            many <= 1.5 * few,
        ),
        Result(f"why, {WAITING:,} waiting, {INSTANCES} instances, p50", statistics.median(whys), "ms"),
        Result("  the same, p95", p95, "ms", "<= 150 ms", ok=p95 <= 150),
    ]  # fmt: skip


async def _rate(served: Served, hosts: Hosts, asking: "_Asking") -> tuple[float, float]:
    """Everybody waits; then the machines come, and jobs fill them and leave them. Also the server's CPU for each, in
    ms, with all of the job's life."""
    await asyncio.to_thread(asking.submit, WAITING + PLACED)
    await _machines(served)
    begun, cpu = time.perf_counter(), time.process_time()
    await _until(lambda: hosts.placed >= PLACED)
    taken_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    return hosts.placed / taken_s, cpu_s * 1000 / hosts.placed


async def _machines(served: Served) -> None:
    engine = served.context.engine
    capacity = Capacity(cpu=SLOTS, memory_mb=8192, disk_mb=10_000)
    now = engine.clock.now()
    some = [Instance(InstanceId(engine.new_id()), None, "bench", Blocks(capacity, SLOTS), entered_at=now)
            for _ in range(INSTANCES)]  # fmt: skip
    await engine.commit(Change(instances=tuple(some)))


async def _pass_ms(served: Served, hosts: Hosts, asking: "_Asking") -> float:
    """In a full house in which nothing has changed; the queue is as long as before."""
    hosts.busy = True
    waiting = await _ask(served, QUEUE)
    await asyncio.to_thread(asking.submit, WAITING - waiting + INSTANCES * SLOTS)
    deadline = time.monotonic() + DEADLINE_S
    while await _ask(served, HELD) < INSTANCES * SLOTS:
        assert time.monotonic() < deadline, "the house was not filled"
        await asyncio.sleep(0.1)
    taken = []
    for _ in range(PASSES):
        begun = time.perf_counter()
        await served.context.engine.placement.once()
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


async def _ask(served: Served, statement: str) -> int:
    async with served.context.database.connection() as connection:
        return int(await connection.fetchval(statement))


async def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, "it took too long"
        await asyncio.sleep(0.01)


class _Asking:
    """A person; each request has a connection of its own, as that of the command line."""

    def __init__(self, url: str, secret: str) -> None:
        self._parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self._last = ""

    def submit(self, number: int) -> None:
        while number > 0:
            some = min(number, MOST_RUNS_AT_ONCE)
            task = {"type": "task", "commands": ["true"], "resources": {"cpu": 1}}
            self._last = self._asked("POST", "", {"configurations": [task] * some})["items"][-1]["id"]
            number -= some

    def why(self, times: int) -> list[float]:
        """Of the last in the queue; in ms."""
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            told = self._asked("GET", f"/{self._last}/why")
            taken.append((time.perf_counter() - begun) * 1000)
            assert told["place"] and told["place"] >= WAITING - 100, told
        return taken

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        with closing(HTTPConnection(self._parts.hostname or "", self._parts.port)) as connection:
            sent = json.dumps(body) if body else None
            connection.request(method, f"/api/projects/main/runs{path}", sent, self._headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        assert answer.status < 300, told
        return told
