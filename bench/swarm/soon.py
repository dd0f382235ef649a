"""How soon one task follows another, and how soon a single one starts on a worker that waits."""

import statistics
import time
from uuid import uuid4

from bench.result import Result
from bench.swarm import ground, peer_celery, peer_hyperqueue, peer_slurm
from bench.swarm.peers import beside

LINKS = 1_000
ROUNDS = 3
TRIES = 100


def chain(share: float) -> list[Result]:
    links = int(LINKS * share)
    with ground.swarm() as swarm, ground.worker(swarm):
        _link_ms(swarm, links // 10)
        taken = sorted(_link_ms(swarm, links) for _ in range(ROUNDS))
    middle = statistics.median(taken)
    name = f"chain of {links:,} links, a link"
    return [
        Result(name, middle, "ms", "<= 5 ms", f"slowest {taken[-1]:.2f}", ok=middle <= 5),
        *beside("  HyperQueue", lambda: [Result("  HyperQueue", _hyperqueue("chain", int(300 * share)), "ms")]),
        *beside("  Celery + Redis", lambda: [Result("  Celery + Redis", peer_celery.figure("chain", links), "ms")]),
        *beside("  Slurm", lambda: [_slurm_chain(share)]),
    ]


def start(share: float) -> list[Result]:
    """The task itself says when it began; `date` takes about a millisecond of that."""
    tries = max(10, int(TRIES * share))
    with ground.swarm() as swarm, ground.worker(swarm):
        _start_ms(swarm)
        taken = sorted(_start_ms(swarm) for _ in range(tries))
    p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    return [
        Result("submit to started, idle worker, p50", p50, "ms", "<= 15 ms", f"p99 {p99:.1f}", ok=p50 <= 15),
        *beside("  HyperQueue", lambda: [Result("  HyperQueue", _hyperqueue("start", 30), "ms")]),
        *beside("  Celery + Redis", lambda: [Result("  Celery + Redis", peer_celery.figure("start", 30), "ms")]),
        *beside("  Slurm", lambda: [_slurm_start()]),
    ]


def _link_ms(swarm: ground.Swarm, links: int) -> float:
    group = f"chain-{uuid4().hex[:8]}"
    body = ground.chain(links, group)
    begun = time.perf_counter()
    swarm.accept(body)
    swarm.all_ended(group, links)
    return (time.perf_counter() - begun) * 1000 / links


def _start_ms(swarm: ground.Swarm) -> float:
    group, client = f"start-{uuid4().hex[:8]}", swarm.stand.client
    begun = time.time()
    (id,) = swarm.post({"command": ["/bin/date", "+%s.%N"], "group": group})["ids"]
    swarm.all_ended(group, 1)
    stamp = client.ask("GET", client.at("tasks", id, "logs") + "?stream=stdout").body
    # A worker that has just ended something may be about to ask for more: the next one finds it waiting.
    time.sleep(0.05)
    return (float(stamp) - begun) * 1000


def _hyperqueue(what: str, number: int) -> float:
    return peer_hyperqueue.figure("chain" if what == "chain" else "start", number).value


def _slurm_chain(share: float) -> Result:
    with peer_slurm.cluster() as cluster:
        return Result("  Slurm", cluster.link_ms(max(5, int(20 * share))), "ms")


def _slurm_start() -> Result:
    with peer_slurm.cluster() as cluster:
        return Result("  Slurm, sbatch", cluster.start_ms(10), "ms")
