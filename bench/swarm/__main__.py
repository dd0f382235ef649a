"""`make bench-swarm`: measures the swarm beside its peers on this machine, and says whether budgets hold.

`make bench-swarm PART=chain` measures one part: commands, lives, chain, start, graph, million, memory.
`--share 0.1` is a tenth of everything, to see that it runs: its figures mean nothing.
"""

import argparse
import json
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import structlog

from bench.home import compiled
from bench.result import Result
from bench.swarm.commands import commands
from bench.swarm.graph import graph
from bench.swarm.lives import lives, million
from bench.swarm.memory import memory
from bench.swarm.soon import chain, start

PATH = Path(__file__).parent / "results.json"

PARTS: dict[str, Callable[[float], list[Result]]] = {
    "commands": commands,
    "lives": lives,
    "chain": chain,
    "start": start,
    "graph": graph,
    "million": million,
    "memory": memory,
}


def _others(part: str) -> Result:
    """Whoever else works here slows down both sides, and not by the same."""
    return Result(f"{part}: the machine is busy before, by others", psutil.cpu_percent(2.0), "%")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-swarm", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="all of them unless you say")
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    # Whoever is told to end takes what it has started along.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compiled()
    results: list[Result] = []
    for part in asked.part or list(PARTS):
        for result in (_others(part), *PARTS[part](asked.share)):
            print(result, flush=True)
            results.append(result)
    PATH.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    missed = [result.name.strip() for result in results if result.ok is False]
    if unknown := [result.name.strip() for result in results if result.limit and result.ok is None]:
        print(f"{len(unknown)} budgets not measured: {'; '.join(unknown)}")
    print(f"{len(missed)} budgets missed: {'; '.join(missed)}" if missed else "all budgets hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
