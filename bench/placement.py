"""The placer over two hundred machines of the dummy backend: what a pass costs beside what is stored, how soon a block
that falls free is taken, how soon somebody is told why a run waits, and how many jobs a second it puts on machines.

The machines are simulated inside the server, so each placement is followed by a whole life of its job.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.api import store_ended
from bench.engine import own_commit_ms
from bench.result import Result
from stoker.core.job_facts import Freed, Placed
from stoker.core.limits import MOST_RUNS_AT_ONCE
from stoker.engine import garbage
from stoker.engine.batch import Batch
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings

INSTANCES, SLOTS = 200, 4
OFFER = {"name": "box", "cpu": SLOTS, "memory": "8GB"}
FLEET = {"type": "fleet", "name": "bench", "backends": ["dummy"], "nodes": INSTANCES, "blocks": SLOTS}
FULL = INSTANCES * SLOTS
WAITING = 5_000
PLACED = 3_000
"""So many are placed while the placer is measured, and at least `WAITING` wait all the time."""
FEW_ENDED, MANY_ENDED = 1_000, 100_000
PASSES, CHANGES, ASKED, CALLED = 40, 20, 40, 15
DEADLINE_S = 120.0
RUNNING = "SELECT count(*) FROM job WHERE state = 'RUNNING'"


class Ear:
    """Hears what is committed: how many jobs were placed, and when a block was last given back and taken."""

    def __init__(self) -> None:
        self.placed = 0
        self.freed_at = self.taken_at = 0.0

    def heard(self, batch: Batch) -> None:
        now = time.perf_counter()
        if any(isinstance(one.event, Freed) for one in batch.moved):
            self.freed_at = now
        if placed := sum(isinstance(one.event, Placed) for one in batch.moved):
            self.placed += placed
            self.taken_at = now


class Cost(NamedTuple):
    """With so many runs ended. In ms: a pass in which nothing fits, and from a block given back until it is taken."""

    ended: int
    pass_ms: float
    taken_ms: float


def placement(url: str) -> list[Result]:
    return asyncio.run(_measure(url, asyncio.run(own_commit_ms(url))))


async def _measure(url: str, own_ms: float) -> list[Result]:
    ear = Ear()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-placement-") as home:
        (Path(home) / "backends.yml").write_text(json.dumps({"dummy": {"offers": [OFFER]}}))
        settings = Settings(Path(home), port=0, database_url=url, name="bench")
        async with running(settings) as served:
            garbage.tune()
            served.context.engine.listeners.append(ear.heard)
            asking = _Asking(served.url, Keyring(settings.config_file).secret, home)
            await asyncio.to_thread(asking.machines)
            held = await _fill(served, asking)
            costs = []
            for ended, more in ((FEW_ENDED, FEW_ENDED), (MANY_ENDED, MANY_ENDED - FEW_ENDED)):
                await store_ended(served, more)
                costs.append(Cost(ended, await _pass_ms(served), await _taken_ms(ear, asking, held)))
            whys = await asyncio.to_thread(asking.why, ASKED)
            calls = await asyncio.to_thread(asking.call_why, CALLED)
            rate, cpu_ms = await _rate(served, ear, asking, held)
    return [*_rates(rate, cpu_ms, 1000 / own_ms), *_costs(*costs), *_whys(whys, calls)]


def _rates(rate: float, cpu_ms: float, own: float) -> list[Result]:
    return [
        Result("database's own commits, one row, one by one", own, "commits/s"),
        Result(
            f"placements, {INSTANCES} dummy instances, {WAITING:,} waiting", rate, "placements/s", ">= 500",
            "own commits", rate / own, rate >= 500,
        ),
        Result("  the same, CPU of the server for each, with the job's whole life", cpu_ms, "ms"),
    ]  # fmt: skip


def _costs(few: Cost, many: Cost) -> list[Result]:
    found = []
    for name, before, after in (
        (f"pass over a full house, {WAITING:,} waiting", few.pass_ms, many.pass_ms),
        ("a block that falls free is taken, all others full", few.taken_ms, many.taken_ms),
    ):
        ratio = after / before
        found += [
            Result(f"{name}, {few.ended:,} ended", before, "ms"),
            Result(
                f"  the same, {many.ended:,} ended", after, "ms", "<= 1.5 x", f"{few.ended:,} ended", ratio,
                ratio <= 1.5,
            ),
        ]  # fmt: skip
    return found


def _whys(whys: list[float], calls: list[float]) -> list[Result]:
    p95, called = sorted(whys)[int(len(whys) * 0.95)], statistics.median(calls)
    return [
        Result(f"why, {WAITING:,} waiting, {INSTANCES} instances, p50", statistics.median(whys), "ms"),
        Result("  the same, p95", p95, "ms", "<= 150 ms", ok=p95 <= 150),
        Result("  the command `stoker why`, p50", called, "ms", "<= 150 ms", ok=called <= 150),
    ]


async def _fill(served: Served, asking: "_Asking") -> list[str]:
    """Every block is taken by a job that goes on. Behind them wait as many as one of these will be ended, then the
    others. Those in front, in the order in which they begin."""
    ahead = await asyncio.to_thread(asking.submit, FULL + 2 * CHANGES, "sleep infinity", 90)
    await _counted(served, RUNNING, FULL)
    await asyncio.to_thread(asking.submit, WAITING, "true", 50)
    return ahead


async def _pass_ms(served: Served) -> float:
    """In a house in which nothing has changed."""
    taken = []
    for _ in range(PASSES):
        begun = time.perf_counter()
        await served.context.engine.placement.once()
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


async def _taken_ms(ear: Ear, asking: "_Asking", held: list[str]) -> float:
    """The oldest is ended, and the most urgent of those that wait takes its place."""
    taken = []
    for _ in range(CHANGES):
        placed = ear.placed
        await asyncio.to_thread(asking.abort, held.pop(0))
        await _until(lambda placed=placed: ear.placed > placed)  # type: ignore[misc]
        assert ear.taken_at > ear.freed_at
        taken.append((ear.taken_at - ear.freed_at) * 1000)
    return statistics.median(taken)


async def _rate(served: Served, ear: Ear, asking: "_Asking", held: list[str]) -> tuple[float, float]:
    """Those that hold the house leave, and short jobs fill it and leave it. Also the server's CPU for each, in ms."""
    await asyncio.to_thread(asking.submit, PLACED + FULL, "true", 50)
    await asyncio.to_thread(asking.abort, *held)
    await _counted(served, f"{RUNNING} AND priority = 90", 0)
    before, begun, cpu = ear.placed, time.perf_counter(), time.process_time()
    await _until(lambda: ear.placed >= before + PLACED)
    taken_s, cpu_s, placed = time.perf_counter() - begun, time.process_time() - cpu, ear.placed - before
    return placed / taken_s, cpu_s * 1000 / placed


async def _counted(served: Served, statement: str, wanted: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    async with served.context.database.connection() as connection:
        while (found := await connection.fetchval(statement)) != wanted:
            assert time.monotonic() < deadline, f"there are {found}, and not {wanted}"
            await asyncio.sleep(0.05)


async def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, "it took too long"
        await asyncio.sleep(0.005)


class _Asking:
    """A person; each request has a connection of its own, as that of the command line."""

    def __init__(self, url: str, secret: str, home: str) -> None:
        self._parts, self._home = urlsplit(url), home
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self._last = ""

    def machines(self) -> None:
        self._asked("POST", "/fleets", {"configuration": FLEET})
        deadline = time.monotonic() + DEADLINE_S
        while self._asked("GET", "/fleets/bench")["idle"] < INSTANCES:
            assert time.monotonic() < deadline, "the machines do not come"
            time.sleep(0.05)

    def submit(self, number: int, command: str, priority: int) -> list[str]:
        task = {"type": "task", "commands": [command], "resources": {"cpu": 1}, "priority": priority}
        made: list[str] = []
        while len(made) < number:
            some = min(number - len(made), MOST_RUNS_AT_ONCE)
            told = self._asked("POST", "/runs", {"configurations": [task] * some})["items"]
            made += [one["id"] for one in told]
        self._last = made[-1]
        return made

    def abort(self, *runs: str) -> None:
        for at in range(0, len(runs), 100):
            self._asked("POST", "/runs/stop", {"runs": runs[at : at + 100], "abort": True})

    def why(self, times: int) -> list[float]:
        """Of the last in the queue; in ms."""
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            told = self._asked("GET", f"/runs/{self._last}/why")
            taken.append((time.perf_counter() - begun) * 1000)
            assert told["place"] and told["place"] >= WAITING - 100, told
        return taken

    def call_why(self, times: int) -> list[float]:
        """As a person calls it, with the start of the program."""
        command = [str(Path(sys.executable).with_name("stoker")), "--home", self._home, "why", self._last]
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE_S)
            taken.append((time.perf_counter() - begun) * 1000)
            assert b" waits: " in done.stdout, done.stdout
        return taken

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        with closing(HTTPConnection(self._parts.hostname or "", self._parts.port)) as connection:
            sent = json.dumps(body) if body else None
            connection.request(method, f"/api/projects/main{path}", sent, self._headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        assert answer.status < 300, told
        return told
