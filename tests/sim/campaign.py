"""Many seeds on two cores, and what they add up to: rows visited, faults met, stories of those that failed."""

import asyncio
import logging
import multiprocessing as mp
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import structlog

from stoker.core.instance import INSTANCE
from stoker.core.job import JOB
from stoker.core.machine import Machine
from stoker.core.managed_job import MANAGED_JOB
from stoker.core.managed_task import MANAGED_TASK
from stoker.core.run import RUN
from stoker.core.shim_task import SHIM_TASK
from stoker.core.task import TASK
from stoker.core.volume import VOLUME
from stoker.engine import garbage
from stoker.store.database import Database
from stoker.store.migration import migrate
from stoker.store.postgres import Embedded
from tests.sim.faults import FAULTS
from tests.sim.history import History, live

LEAST_EVENTS = 300
SELDOM = 250
"""A row that fewer than one seed in so many visits is named."""
STORIES = Path(__file__).parent / "stories"
MACHINES: dict[str, Machine[Any]] = {
    "run": RUN, "job": JOB, "instance": INSTANCE, "volume": VOLUME, "managed job": MANAGED_JOB,
    "managed task": MANAGED_TASK, "shim task": SHIM_TASK, "task": TASK,
}  # fmt: skip
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}


def all_rows() -> set[str]:
    return {f"{name}: {row.name}" for name, machine in MACHINES.items() for row in machine.rows}


@dataclass(slots=True)
class Report:
    seeds: int = 0
    events: int = 0
    fewest: int = 10**9
    rows: Counter[str] = field(default_factory=Counter)
    """In how many seeds each was visited."""
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[History] = field(default_factory=list)
    thin: list[int] = field(default_factory=list)

    def add(self, history: History) -> None:
        self.seeds += 1
        self.events += history.events
        self.fewest = min(self.fewest, history.events)
        self.rows.update(history.rows.keys())
        self.faults.update(history.faults)
        if history.violation:
            self.failed.append(history)
        elif history.events < LEAST_EVENTS:
            self.thin.append(history.seed)

    def unvisited_rows(self) -> list[str]:
        return sorted(all_rows() - self.rows.keys())

    def seldom_rows(self) -> list[tuple[str, int]]:
        """Half as many seeds might have missed them."""
        seldom = [(name, count) for name, count in self.rows.items() if count * SELDOM < self.seeds]
        return sorted(seldom, key=lambda one: (one[1], one[0]))

    def unvisited_faults(self) -> list[str]:
        return sorted(FAULTS - self.faults.keys())

    def lines(self) -> Iterator[str]:
        rows, faults = all_rows(), FAULTS
        yield f"{self.seeds} seeds, {self.events} events, at least {self.fewest} in each"
        yield f"rows visited: {len(rows) - len(self.unvisited_rows())} of {len(rows)}"
        yield from (f"  never: {name}" for name in self.unvisited_rows())
        yield from (f"  in {count} seeds only: {name}" for name, count in self.seldom_rows())
        yield f"faults met: {len(faults) - len(self.unvisited_faults())} of {len(faults)}"
        yield from (f"  never: {name}" for name in self.unvisited_faults())
        yield from (f"  {count:8} {name}" for name, count in sorted(self.faults.items()))
        yield from (f"seed {seed}: fewer than {LEAST_EVENTS} events" for seed in self.thin)
        for history in self.failed:
            yield f"seed {history.seed} FAILED: {history.violation}"
        yield "clean" if not self.failed and not self.thin else f"{len(self.failed)} failed, {len(self.thin)} thin"


@contextmanager
def databases(count: int) -> Iterator[list[str]]:
    """An own PostgreSQL, quick because it may forget, with an empty database for each worker."""
    home = Path(tempfile.mkdtemp(prefix="stoker-sim-", dir="/tmp"))
    home.chmod(0o711)
    server = asyncio.run(Embedded.start(home / "pg", settings=FORGETFUL))
    try:
        names = [f"sim_{number}" for number in range(count)]
        asyncio.run(_make(server.url, names))
        yield [_at(server.url, name) for name in names]
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(home, ignore_errors=True)


async def _make(url: str, names: Sequence[str]) -> None:
    connection = await asyncpg.connect(url)
    for name in names:
        await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    for name in names:
        async with await Database.connect(_at(url, name), pool_size=1) as database:
            await migrate(database)


def _at(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def campaign(seeds: Sequence[int], workers: int, *, progress: bool = False) -> Report:
    report, begun = Report(), time.monotonic()
    context = mp.get_context("spawn")
    with databases(workers) as urls:
        todo, done = context.Queue(), context.Queue()
        for seed in seeds:
            todo.put(seed)
        processes = [context.Process(target=_worker, args=(url, todo, done), daemon=True) for url in urls]
        for process in processes:
            todo.put(None)
            process.start()
        try:
            for count in range(1, len(seeds) + 1):
                history: History = done.get(timeout=300)
                report.add(history)
                if history.violation:
                    print(f"seed {history.seed} FAILED: {history.violation}\n  story: {save(history)}", flush=True)
                if progress and count % 50 == 0:
                    rate = count / (time.monotonic() - begun)
                    left_s = (len(seeds) - count) / rate
                    print(f"{count} of {len(seeds)} seeds, {rate:.2f}/s, {left_s:.0f} s left", flush=True)
        finally:
            for process in processes:
                process.terminate()
                process.join()
    return report


def _worker(url: str, todo: "mp.Queue[int | None]", done: "mp.Queue[History]") -> None:
    quiet()
    garbage.tune()
    while (seed := todo.get()) is not None:
        history = live(seed, url)
        if not history.violation:
            history.story = []
        done.put(history)


def quiet() -> None:
    """What the engine logs about simulated faults is no news."""

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def save(history: History) -> Path:
    STORIES.mkdir(exist_ok=True)
    path = STORIES / f"seed-{history.seed}.txt"
    path.write_text("\n".join((*history.story, history.violation, "")))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
