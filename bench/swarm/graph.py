"""A hundred thousand tasks in one request, while somebody asks the server whether it is well; then cancelled."""

import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any
from uuid import uuid4

from bench.result import Result
from bench.swarm import ground
from bench.swarm.wire import Wire, head

NUMBER = 100_000
ROUNDS = 3
POLL_S = 0.01


def graph(share: float) -> list[Result]:
    number = int(NUMBER * share)
    accepted, cancelled, health, flat_accepted, flat_cancelled = [], [], [], [], []
    with ground.swarm() as swarm:
        for _ in range(ROUNDS):
            group = f"graph-{uuid4().hex[:8]}"
            body, edges = ground.tree(number, group)
            taken, seen = _polled(swarm, partial(_accept, swarm, body, number, edges))
            accepted.append(taken)
            health.extend(seen)
            cancelled.append(_cancel(swarm, group, number))
        for _ in range(ROUNDS):
            group = f"flat-{uuid4().hex[:8]}"
            flat_accepted.append(_accept(swarm, ground.plain(number, group), number, 0))
            flat_cancelled.append(_cancel(swarm, group, number))
    health.sort()
    p99 = health[int(len(health) * 0.99)]
    return [
        _at_most(f"{number:,} tasks, {edges:,} edges, accepted in one graph", accepted, 5),
        Result("  /healthz meanwhile, p99", p99, "ms", "<= 50 ms", _spread(health), ok=p99 <= 50),
        _at_most("  as many without edges", flat_accepted, 5),
        _at_most(f"cancelling {number:,}, most of them inactive", cancelled, 2),
        _at_most("  as many, all available", flat_cancelled, 2),
    ]


def _accept(swarm: ground.Swarm, body: bytes, number: int, edges: int) -> float:
    begun = time.perf_counter()
    created = swarm.accept(body)
    taken = time.perf_counter() - begun
    assert created["count"] == number, created
    assert created["edges"] == edges, created
    return taken


def _cancel(swarm: ground.Swarm, group: str, number: int) -> float:
    begun = time.perf_counter()
    told = swarm.stand.client.post(swarm.stand.client.at("tasks", "cancel"), {"group": group})
    taken = time.perf_counter() - begun
    assert told == {"cancelled": number, "pending": 0}, told
    return taken


def _polled(swarm: ground.Swarm, act: Callable[[], float]) -> tuple[float, list[float]]:
    """What `act` measured, and how many milliseconds each answer of /healthz took meanwhile, in another process."""
    context = mp.get_context("fork")
    ready, over, answers = context.Event(), context.Event(), context.SimpleQueue()
    process = context.Process(target=_poll, args=(swarm.stand.client.url, ready, over, answers), daemon=True)
    process.start()
    try:
        assert ready.wait(30.0)
        measured = act()
        over.set()
        seen = answers.get()
        process.join(30.0)
    finally:
        if process.is_alive():
            process.kill()
    return measured, seen


def _poll(url: str, ready: Event, over: Event, answers: Any) -> None:
    wire, asked, seen = Wire(url), head("GET", "/healthz", ""), []
    wire.ask(asked)
    ready.set()
    due = time.perf_counter()
    while not over.is_set():
        due += POLL_S
        time.sleep(max(0.0, due - time.perf_counter()))
        wire.ask(asked)
        # From when it should have asked: a server that stands still for a second is slow to a hundred, not to one.
        seen.append((time.perf_counter() - due) * 1000)
    answers.put(seen)


def _at_most(name: str, taken: list[float], limit: float) -> Result:
    middle = statistics.median(taken)
    return Result(name, middle, "s", f"<= {limit:g} s", f"slowest {max(taken):.2f}", ok=middle <= limit)


def _spread(ordered: list[float]) -> str:
    return f"p50 {statistics.median(ordered):.1f}, most {ordered[-1]:.1f} of {len(ordered):,}"
