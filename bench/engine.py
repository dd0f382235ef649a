"""The engine: coalesced commits against one-by-one ones, one and three engines, latency."""

import asyncio
import multiprocessing as mp
import statistics
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier

import asyncpg

from bench.load import Load, Tally
from bench.result import Result
from stoker.engine import garbage
from stoker.engine.commit import LANES
from stoker.store.database import Database

SECONDS = 3.0
ROUNDS = 5
"""One engine and three take turns, and their medians are compared: this machine may change its speed in between."""
CALLERS = 64
CROWD = 16
"""Many more connections than the engine has: PostgreSQL then gathers commits by itself, and each costs it memory."""


def engine(url: str) -> list[Result]:
    own_ms = asyncio.run(own_commit_ms(url))
    asyncio.run(_load(url, CALLERS, 2.0))
    baseline = one_by_one(url, LANES, remember=False)
    alone, crowd = (one_by_one(url, connections) for connections in (LANES, CROWD))
    turns = [(asyncio.run(_load(url, CALLERS, SECONDS)), three_engines(url, (22, 21, 21))) for _ in range(ROUNDS)]
    rate = statistics.median(tally.transitions / seconds for (tally, seconds), _ in turns)
    three = statistics.median(seen for _, seen in turns)
    full = three_engines(url, (CALLERS,) * 3)
    together, together_s = turns[-1][0]
    results = [
        Result("database's own commit, one row, p50", own_ms, "ms"),
        Result(f"one by one: each change loads, steps and commits, {LANES} connections", baseline, "transitions/s"),
        Result("  the same, with what is remembered", alone, "transitions/s", peer="coalesced", ratio=alone / rate),
        Result(f"  the same, {CROWD} connections", crowd, "transitions/s", peer="coalesced", ratio=crowd / rate),
        Result(
            f"coalesced, one engine, {CALLERS} callers", rate, "transitions/s", ">= 12,000", "one by one",
            rate / baseline, rate >= 12_000 and rate >= 5 * baseline,
        ),
        Result("  the same, commits", together.commits / together_s, "commits/s"),
        Result("  the same, commits in a batch", together.commits / together.batches, ""),
        Result(
            f"coalesced, three engines, {CALLERS} callers in all", three, "transitions/s", ">= one engine",
            "one engine", three / rate, three >= rate,
        ),
        Result(f"  the same, {CALLERS} callers each", full, "transitions/s", peer="one engine", ratio=full / rate),
    ]  # fmt: skip
    return results + latencies(url, own_ms)


async def own_commit_ms(url: str) -> float:
    """What a synchronous commit of one row costs without us."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE IF NOT EXISTS own (id int PRIMARY KEY, n int)")
    await connection.execute("INSERT INTO own VALUES (1, 0) ON CONFLICT DO NOTHING")
    taken = []
    for _ in range(400):
        begun = time.perf_counter()
        await connection.execute("UPDATE own SET n = n + 1 WHERE id = 1")
        taken.append(time.perf_counter() - begun)
    await connection.close()
    return statistics.median(taken) * 1000


async def _load(
    url: str, callers: int, seconds: float, lanes: int = LANES, *, coalesce: bool = True, remember: bool = True
) -> tuple[Tally, float]:
    async with await Database.connect(url, pool_size=lanes + 2) as database:
        load = Load(database, lanes, coalesce=coalesce, remember=remember)
        await load.ready()
        garbage.tune()
        return await load.run(callers, seconds)


def one_by_one(url: str, connections: int, *, remember: bool = True) -> float:
    """The same engine, but each change is a batch of its own; transitions a second."""
    tally, seconds = asyncio.run(_load(url, CALLERS, SECONDS, connections, coalesce=False, remember=remember))
    return tally.transitions / seconds


def three_engines(url: str, shares: Sequence[int]) -> float:
    """Three processes on one database, each with its share of callers."""
    context = mp.get_context("spawn")
    results: mp.Queue[tuple[int, float]] = context.Queue()
    start = context.Barrier(3)
    processes = [context.Process(target=_engine_process, args=(url, share, start, results)) for share in shares]
    for process in processes:
        process.start()
    done = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return sum(transitions / seconds for transitions, seconds in done)


def _engine_process(url: str, callers: int, start: Barrier, results: "mp.Queue[tuple[int, float]]") -> None:
    start.wait(timeout=60)
    tally, seconds = asyncio.run(_load(url, callers, SECONDS))
    results.put((tally.transitions, seconds))


def latencies(url: str, own_ms: float) -> list[Result]:
    results = []
    for callers in (1, 16, 64, 256):
        tally, _ = asyncio.run(_load(url, callers, 3.0))
        p50, p99 = percentiles(tally.latencies_s)
        if callers == 1:
            results.append(
                Result("commit of a lone caller, p50", p50, "ms", "<= own + 5 ms", "own commit", p50 / own_ms,
                       p50 <= own_ms + 5)
            )  # fmt: skip
        results.append(Result(f"commit, {callers} callers, p50", p50, "ms"))
        results.append(Result(f"commit, {callers} callers, p99", p99, "ms"))
    return results


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000
