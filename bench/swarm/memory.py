"""Two hundred thousand tasks through one server and one worker, which must not remember them."""

import time
from uuid import uuid4

import psutil

from bench.result import Result
from bench.swarm import ground
from bench.swarm.process import family, rss_mb

PORTION = 20_000
PORTIONS = 10
MOST_GROWTH_MB = 20.0
REST_S = 3.0


def memory(share: float) -> list[Result]:
    """Portion after portion, so that each finds the same; the first one fills what is filled once."""
    portion, server, worker = int(PORTION * share), [], []
    with ground.swarm() as swarm, ground.worker(swarm) as process:
        begun = time.perf_counter()
        for _ in range(PORTIONS):
            group = f"memory-{uuid4().hex[:8]}"
            swarm.accept(ground.plain(portion, group))
            swarm.all_ended(group, portion)
            time.sleep(REST_S)
            server.append(rss_mb(swarm.stand.server.pid))
            worker.append(_family_mb(process))
        rate = portion * PORTIONS / (time.perf_counter() - begun - REST_S * PORTIONS)
    return [
        _flat(f"server, growth from {portion:,} to {portion * PORTIONS:,} tasks", server),
        _flat("worker, growth", worker),
        Result("  tasks a second meanwhile", rate, "tasks/s"),
    ]


def _flat(name: str, seen: list[float]) -> Result:
    grown = seen[-1] - seen[0]
    peer = f"{seen[0]:.0f} to {seen[-1]:.0f} MB, most {max(seen):.0f}"
    return Result(name, grown, "MB", f"<= {MOST_GROWTH_MB:g} MB", peer, ok=grown <= MOST_GROWTH_MB)


def _family_mb(process: psutil.Process) -> float:
    """The worker and those of its processes that outlive the tasks."""
    total = 0.0
    for one in family(process):
        try:
            total += rss_mb(one.pid)
        except OSError:
            continue
    return total
