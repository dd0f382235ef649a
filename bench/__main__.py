"""`make bench`: measures on a PostgreSQL that syncs every commit, and says whether budgets hold.

`make bench PART=engine` measures one part: engine, api, many, placement, preemption, runner, shim, bundle,
ssh, first-run, docker, crowd.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable

import structlog

from bench import bundle, docker, runner, shim
from bench.api import api
from bench.crowd import crowd
from bench.engine import engine
from bench.first_run import first_run
from bench.home import compiled, temporary_home
from bench.many import many
from bench.placement import placement
from bench.preemption import preemption
from bench.result import Result, write
from bench.ssh import ssh
from stoker.store.database import Database
from stoker.store.migration import migrate
from stoker.store.postgres import Embedded


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="all of them unless you say")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    chosen = parser.parse_args().part or list(PARTS)
    compiled()
    results: list[Result] = []
    for part in chosen:
        for result in PARTS[part]():
            print(result, flush=True)
            results.append(result)
    write(results)
    missed = [result.name for result in results if result.ok is False]
    print(f"{len(missed)} budgets missed: {'; '.join(missed)}" if missed else "all budgets hold")
    return 1 if missed else 0


def with_database(measure: Callable[[str], list[Result]]) -> Callable[[], list[Result]]:
    def measured() -> list[Result]:
        with temporary_home() as home:
            server = asyncio.run(Embedded.start(home / "pg"))
            try:
                asyncio.run(_migrate(server.url))
                return measure(server.url)
            finally:
                asyncio.run(server.stop())

    return measured


async def _migrate(url: str) -> None:
    async with await Database.connect(url, pool_size=1) as database:
        await migrate(database)


PARTS: dict[str, Callable[[], list[Result]]] = {
    "engine": with_database(engine),
    "placement": with_database(placement),
    "api": with_database(api),
    "many": with_database(many),
    "preemption": preemption,
    "runner": runner.measure,
    "shim": shim.measure,
    "bundle": bundle.measure,
    "ssh": with_database(ssh),
    "first-run": first_run,
    "docker": docker.measure,
    "crowd": crowd,
}

if __name__ == "__main__":
    sys.exit(main())
