"""Whole lives of tasks through the server, and the statistics of a million of them."""

import statistics
import time
from collections import Counter
from collections.abc import Callable

from bench.result import Result
from bench.stand import cpu_s
from bench.swarm import ground, peer_celery
from bench.swarm.load import BATCH, PROCESSES, WORKERS, Told, kinds, lead
from bench.swarm.peers import beside

LIVES = 60_000
ROUNDS = 3
MILLION = 1_000_000
ASKED = 20


def lives(share: float) -> list[Result]:
    number, results = int(LIVES * share), []
    with ground.swarm() as swarm:
        synced = swarm.syncs()
        _round(swarm, number // 10, "warm")
        for at in range(ROUNDS):
            results.append(_round(swarm, number, f"lives-{at}"))
    rates = sorted(one.rate for one in results)
    middle = next(one for one in results if one.rate == rates[ROUNDS // 2])
    who = f"{WORKERS * PROCESSES} workers, batches of {BATCH}"
    rate = middle.rate
    return [
        Result("whole lives of tasks over HTTP", rate, "lives/s", ">= 10,000", who, ok=rate >= 10_000 and synced),
        Result("  each commit synchronous", float(synced), "", "1", ok=synced),
        Result("  slowest and fastest round", rates[0], "lives/s", peer=f"fastest {rates[-1]:,.0f}"),
        Result("  CPU of the server a life", middle.server_us, "us"),
        Result("  CPU of PostgreSQL a life", middle.postgres_us, "us"),
        Result("  CPU of those who measure a life", middle.load_us, "us"),
        *beside("Celery + Redis, no-op", lambda: [_celery(share)]),
    ]


def million(share: float) -> list[Result]:
    """Fills the server through its API, then asks it."""
    number, rounds = int(MILLION * share), 10
    ends: Counter[int] = Counter()
    taken = []
    with ground.swarm() as swarm:
        for _ in range(rounds):
            one = _round(swarm, number // rounds, "million")
            ends.update(one.told.ends)
            taken.append(one.rate)
        client = swarm.stand.client
        path = client.at("tasks", "statistics")
        asked = [_ms(lambda: client.get(path)) for _ in range(ASKED)]
        of_group = [_ms(lambda: client.get(f"{path}?group=million")) for _ in range(ASKED)]
        told = client.get(f"{path}?group=million")
        server_mb = swarm.stand.server.memory_info().rss / 2**20
    total = ends.total()
    complete = told["total"] == told["succeeded"] == total == told["run_time"]["count"]
    off = max(_off(told, ends), key=lambda one: one[1])
    slow, slow_group = max(asked), max(of_group)
    return [
        Result(f"statistics of {total:,} tasks, slowest of {ASKED}", slow, "ms", "<= 200 ms", ok=slow <= 200),
        Result("  of a group of as many", slow_group, "ms", "<= 200 ms", ok=slow_group <= 200),
        Result("  counts are right", float(complete), "", "1", ok=complete),
        Result("  percentile that is off most", off[1] * 100, "%", "<= 5 %", off[0], ok=off[1] <= 0.05),
        Result("  lives a second meanwhile", statistics.median(taken), "lives/s", peer=f"last round {taken[-1]:,.0f}"),
        Result("  memory of the server afterwards", server_mb, "MB"),
    ]


class _Round:
    def __init__(self, told: Told, server_s: float, postgres_s: float) -> None:
        self.told, self.rate = told, told.lives / told.seconds
        self.server_us, self.postgres_us = server_s / told.lives * 1e6, postgres_s / told.lives * 1e6
        self.load_us = told.cpu_s / told.lives * 1e6


def _round(swarm: ground.Swarm, number: int, group: str) -> _Round:
    number -= number % 4
    created = swarm.accept(ground.diamonds(number, group))
    assert created["count"] == number, created
    server, postgres = cpu_s([swarm.stand.server]), cpu_s(swarm.stand.postgres())
    told = lead(swarm, number)
    server, postgres = cpu_s([swarm.stand.server]) - server, cpu_s(swarm.stand.postgres()) - postgres
    assert told.lives == number, f"{told.lives} ends of {number} tasks"
    return _Round(told, server, postgres)


def _off(told: ground.Json, ends: Counter[int]) -> list[tuple[str, float]]:
    """How far each percentile is from the exact one, as a share of that."""
    made, found = kinds(), []
    for name, of in _MEASURES.items():
        values = sorted((getattr(made[kind], of), count) for kind, count in ends.items())
        for part in (50, 90, 99):
            exact, said = _exact(values, part / 100), told[name][f"p{part}"]
            found.append((f"p{part} of {name}: {said:.6g}, exactly {exact:.6g}", abs(said - exact) / exact))
    return found


_MEASURES = {"run_time": "ran_s", "cpu": "cpu_s", "memory": "memory_bytes"}


def _exact(values: list[tuple[float, int]], part: float) -> float:
    wanted, seen = part * sum(count for _, count in values), 0
    for value, count in values:
        seen += count
        if seen >= wanted:
            return value
    return values[-1][0]


def _ms(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def _celery(share: float) -> Result:
    rate = peer_celery.figure("noop", int(5_000 * share))
    return Result("  Celery + Redis, no-op, nothing durable", rate, "tasks/s")
