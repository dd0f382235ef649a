"""`/bin/true`, ten thousand times, with one worker: beside the same work bare, HyperQueue, Celery and Slurm."""

import os
import time
from dataclasses import dataclass, field
from statistics import median
from uuid import uuid4

import psutil

from bench.result import Result
from bench.stand import cpu_s
from bench.swarm import bare, ground, peer_celery, peer_hyperqueue, peer_slurm
from bench.swarm.peers import BROKEN, beside, why
from bench.swarm.process import family

NUMBER = 10_000
ROUNDS = 3
"""Ours, the bare loop and HyperQueue take turns, and medians are compared: a machine may change its speed meanwhile."""
OUTPUTS = ("server", "files", "none")
LEAST_OF_BARE = 0.65
LEAST_OF_HYPERQUEUE = 3.0


@dataclass
class Seen:
    """Tasks a second, of each round."""

    ours: dict[str, list[float]] = field(default_factory=lambda: {output: [] for output in OUTPUTS})
    bare: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """By whether files are fresh."""
    hyperqueue: dict[str, list[float]] = field(default_factory=lambda: {"files": [], "no-files": []})
    missing: str = ""
    cost_ms: list[float] = field(default_factory=list)


def commands(share: float) -> list[Result]:
    number, seen = int(NUMBER * share), Seen()
    with ground.swarm() as swarm:
        with ground.worker(swarm):
            _rate(swarm, number // 10, "server")
        for _ in range(ROUNDS):
            _round(swarm, number, seen)
    return [
        *_against_bare(seen, number),
        *_against_hyperqueue(seen),
        *beside("  in C, bare", lambda: [_c(number, fresh=False), _c(number, fresh=True)]),
        *beside("  Celery + Redis", lambda: [_celery(share)]),
        *beside("  Slurm", lambda: [_slurm(share)]),
    ]


def _round(swarm: ground.Swarm, number: int, seen: Seen) -> None:
    for fresh in (False, True):
        seen.bare[fresh].append(bare.python_rate(number, ground.SLOTS, fresh=fresh))
        _settle()
    with ground.worker(swarm) as worker:
        for output in OUTPUTS:
            before = _cpu_s(swarm, worker)
            seen.ours[output].append(_rate(swarm, number, output))
            if output == "server":
                spent = zip(before, _cpu_s(swarm, worker), strict=True)
                seen.cost_ms = [(late - early) / number * 1000 for early, late in spent]
            _settle()
    try:
        seen.hyperqueue["files"].append(peer_hyperqueue.figure("files", number).value)
        _settle()
        seen.hyperqueue["no-files"].append(peer_hyperqueue.figure("no-files", number).value)
    except BROKEN as error:
        seen.missing = why(error)


def _settle() -> None:
    """What one has written must not cost the next one."""
    os.sync()


def _against_bare(seen: Seen, number: int) -> list[Result]:
    """The budget is of two output files for each task, on both sides. What goes to the server passes through files that
    are used again: that has no budget, and is shown beside both loops."""
    files, fresh, again = median(seen.ours["files"]), median(seen.bare[True]), median(seen.bare[False])
    rate, ratio = median(seen.ours["server"]), files / fresh
    worker, server, postgres = seen.cost_ms
    return [
        Result(
            f"`/bin/true` x {number:,}, one worker of 2 cpus, two files each", files, "tasks/s",
            f">= {LEAST_OF_BARE:g} x bare", f"bare, two files each ({fresh:,.0f})", ratio, ratio >= LEAST_OF_BARE,
        ),
        Result("  with output to the server", rate, "tasks/s", peer="bare, two files each", ratio=rate / fresh),
        Result("  the same", rate, "tasks/s", peer=f"bare, files used again ({again:,.0f})", ratio=rate / again),
        Result("  with output=none", median(seen.ours["none"]), "tasks/s"),
        Result("  CPU of worker and task", worker, "ms", peer=f"server {server:.2f}, PostgreSQL {postgres:.2f} ms"),
    ]  # fmt: skip


def _against_hyperqueue(seen: Seen) -> list[Result]:
    rate, limit = median(seen.ours["server"]), f">= {LEAST_OF_HYPERQUEUE:g} x HyperQueue"
    if seen.missing:
        return [Result("  beside HyperQueue", rate, "tasks/s", limit, seen.missing)]
    peer, silent = median(seen.hyperqueue["files"]), median(seen.hyperqueue["no-files"])
    ratio, files = rate / peer, median(seen.ours["files"])
    return [
        Result(
            "  beside HyperQueue", rate, "tasks/s", limit, f"HyperQueue, files ({peer:,.0f})", ratio,
            ratio >= LEAST_OF_HYPERQUEUE,
        ),
        Result("  beside HyperQueue, files on both sides", files, "tasks/s", "", "HyperQueue, files", files / peer),
        Result("  HyperQueue without output files", silent, "tasks/s", "", "", None),
    ]  # fmt: skip


def _rate(swarm: ground.Swarm, number: int, output: str) -> float:
    """From the request to the word that all have ended."""
    group = f"true-{uuid4().hex[:8]}"
    body = ground.plain(number, group, output=output)
    begun = time.perf_counter()
    swarm.accept(body)
    swarm.all_ended(group, number)
    return number / (time.perf_counter() - begun)


def _cpu_s(swarm: ground.Swarm, worker: psutil.Process) -> tuple[float, float, float]:
    """Of the worker and its tasks, of the server, and of its database."""
    return cpu_s(family(worker)), cpu_s([swarm.stand.server]), cpu_s(swarm.stand.postgres())


def _c(number: int, *, fresh: bool) -> Result:
    name = f"  bare in C, {'fresh files' if fresh else 'files used again'}"
    return Result(name, bare.c_rate(number, ground.SLOTS, fresh=fresh), "tasks/s")


def _celery(share: float) -> Result:
    return Result("  Celery + Redis, nothing durable", peer_celery.figure("files", int(4_000 * share)), "tasks/s")


def _slurm(share: float) -> Result:
    with peer_slurm.cluster() as cluster:
        return Result(f"  Slurm, an array, {peer_slurm.SLOTS} slots", cluster.rate(int(500 * share)), "tasks/s")
