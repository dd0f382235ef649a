"""`make bench`: measures the engine on a PostgreSQL that syncs every commit, and says whether budgets hold."""

import asyncio
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import structlog

from bench.api import api
from bench.engine import engine
from bench.result import Result, write
from stoker.store.database import Database
from stoker.store.migration import migrate
from stoker.store.postgres import Embedded


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    home = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir="/var/tmp"))
    home.chmod(0o711)
    server = asyncio.run(Embedded.start(home / "pg"))
    try:
        asyncio.run(_migrate(server.url))
        results = engine(server.url) + api(server.url)
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(home, ignore_errors=True)
    return report(results)


async def _migrate(url: str) -> None:
    async with await Database.connect(url, pool_size=1) as database:
        await migrate(database)


def report(results: list[Result]) -> int:
    write(results)
    for result in results:
        print(result)
    missed = [result.name for result in results if result.ok is False]
    print(f"{len(missed)} budgets missed" if missed else "all budgets hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
