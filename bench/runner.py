"""How fast a runner is there, what it costs, and how fast a log goes through it."""

import asyncio
import resource
import statistics
import time
from pathlib import Path

import psutil

from bench.home import temporary_home
from bench.result import Result
from stoker.store.log import LogStore
from tests.agents.running import Running, fork_server, runner

STARTS = 50
LOG_BYTES = 1_000_000_000
MB = 1_000_000


def measure() -> list[Result]:
    """All of it, on a fork server of its own."""
    with temporary_home() as home, fork_server(home) as path:
        return asyncio.run(_measure(path, home))


async def _measure(path: Path, home: Path) -> list[Result]:
    return [*await _starts(path, home), *await _lives(path, home), *await _log(path, home)]


async def _starts(path: Path, home: Path) -> list[Result]:
    waits, sizes = [], []
    for number in range(STARTS):
        began = time.perf_counter()
        async with runner(path, home / f"start-{number}") as one:
            await one.health()
            waits.append((time.perf_counter() - began) * 1e3)
            sizes.append(psutil.Process(one.pid).memory_full_info().uss / MB)
    p50, size = statistics.median(waits), statistics.median(sizes)
    return [
        Result("runner: asked for → answers, p50", p50, "ms", "<= 15 ms", ok=p50 <= 15),
        Result("runner: private memory, idle", size, "MB", "<= 15 MB", ok=size <= 15),
    ]


async def _lives(path: Path, home: Path) -> list[Result]:
    """`true`, from the request to the fork server to the word that it ended."""
    waits = []
    for number in range(STARTS):
        began = time.perf_counter()
        async with runner(path, home / f"life-{number}") as one:
            await one.start("true")
            told = await one.ask("GET", "/pull?wait_s=10")
            assert told.complete
            waits.append((time.perf_counter() - began) * 1e3)
    return [Result("runner: asked for → `true` has ended, p50", statistics.median(waits), "ms")]


async def _log(path: Path, home: Path) -> list[Result]:
    """Lines of 80 bytes to a server that keeps and acknowledges them; each append is synced."""
    store = LogStore(home / "store")
    async with runner(path, home / "log") as one:
        before = psutil.Process(one.pid).memory_info().rss
        began = time.perf_counter()
        await one.start(f"yes {'x' * 79} | head -c {LOG_BYTES}")
        kept = asyncio.create_task(_keep(one, store))
        peak = before
        while not kept.done():
            await asyncio.wait({kept}, timeout=0.05)
            if one.alive():
                peak = max(peak, psutil.Process(one.pid).memory_info().rss)
        rate = LOG_BYTES / MB / (time.perf_counter() - began)
        assert await kept > LOG_BYTES
    grown = (peak - before) / MB
    return [
        Result("log of 1 GB through a runner to a log store", rate, "MB/s", ">= 40 MB/s", ok=rate >= 40),
        Result("log of 1 GB: growth of the runner", grown, "MB", "<= 50 MB", ok=grown <= 50),
        Result("whole bench: peak of the reader", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"),
    ]


async def _keep(running: Running, store: LogStore) -> int:
    offset = 0
    while True:
        told = await running.ask("GET", f"/pull?offset={offset}&wait_s=20")
        assert told.status == 200, told.body
        if told.body:
            offset = await store.append(running.job_id, offset, told.body)
        elif told.complete:
            return offset
