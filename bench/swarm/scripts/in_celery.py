"""Runs inside the environment of Celery: the tasks of its worker, and, called by itself, its figures as JSON."""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from celery import Celery, chain  # type: ignore[import-not-found]

URL = os.environ["STOKER_BENCH_REDIS"]
PATIENCE_S = 300.0

app = Celery("in_celery", broker=URL, backend=URL)
app.conf.update(worker_prefetch_multiplier=16, result_expires=600, broker_connection_retry_on_startup=True)


@app.task(name="true")  # type: ignore[untyped-decorator]
def true() -> int:
    """As a worker would run somebody's command: an own session and two output files."""
    name = os.path.join(os.environ["STOKER_BENCH_OUT"], str(time.monotonic_ns()))
    with open(f"{name}.out", "wb") as out, open(f"{name}.err", "wb") as err:
        return subprocess.run(["/bin/true"], stdout=out, stderr=err, start_new_session=True).returncode


@app.task(name="nothing")  # type: ignore[untyped-decorator]
def nothing() -> int:
    return 0


@app.task(name="stamp")  # type: ignore[untyped-decorator]
def stamp() -> float:
    return float(subprocess.run(["/bin/date", "+%s.%N"], stdout=subprocess.PIPE, start_new_session=True).stdout)


def rate(number: int) -> float:
    return _rate(true, number)


def nothing_rate(number: int) -> float:
    return _rate(nothing, number)


def _rate(task: Any, number: int) -> float:
    begun = time.perf_counter()
    results = [task.delay() for _ in range(number)]
    for one in results:
        assert one.get(timeout=PATIENCE_S) == 0
    return number / (time.perf_counter() - begun)


def link_ms(number: int) -> float:
    begun = time.perf_counter()
    chain(*(true.si() for _ in range(number))).apply_async().get(timeout=PATIENCE_S)
    return (time.perf_counter() - begun) * 1000 / number


def start_ms(tries: int) -> float:
    taken: list[float] = []
    for _ in range(tries):
        begun = time.time()
        taken.append((stamp.delay().get(timeout=PATIENCE_S) - begun) * 1000)
    return statistics.median(taken)


def main() -> None:
    """`in_celery.py WHAT NUMBER`; WHAT is files, noop, chain or start."""
    # A chain of a thousand is a message of a thousand, one inside the other.
    sys.setrecursionlimit(100_000)
    true.delay().get(timeout=PATIENCE_S)
    measure = {"files": rate, "noop": nothing_rate, "chain": link_ms, "start": start_ms}[sys.argv[1]]
    print(json.dumps({"value": measure(int(sys.argv[2]))}), flush=True)


if __name__ == "__main__":
    main()
