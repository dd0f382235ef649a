"""Engines on a real PostgreSQL, some of which die or fall asleep."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from stoker.core.machine import Effect
from stoker.engine.engine import Engine, Settings
from stoker.engine.errand import Performer
from stoker.engine.placement import Merchant
from stoker.store.database import Database

NEVER_S = 600.0
"""A period that no test waits for."""


@asynccontextmanager
async def engine_with(
    db: Database, performers: Mapping[type[Effect], Performer], name: str = "a", *, without: Iterable[str] = (),
    merchant: Merchant | None = None, **settings: Any,
) -> AsyncIterator[Engine]:  # fmt: skip
    """Nothing in it happens by the clock unless the settings say so; `without` names loops that it does not run."""
    quiet = {"heartbeat_s": NEVER_S, "dead_after_s": NEVER_S, "period_s": NEVER_S, **settings}
    engine = Engine(db, Settings(name=name, **quiet), performers, merchant=merchant)
    for loop in without:
        del engine.loops[loop]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def die(engine: Engine) -> None:
    """As by SIGKILL: its loops and errands end where they are, and nothing is handed back."""
    for task in engine._tasks:
        task.cancel()
    await engine.errands.settle(0)
    await asyncio.gather(*engine._tasks, return_exceptions=True)
    await engine.errands.settle(5)


async def ask(db: Database, statement: str, *arguments: object) -> Any:
    async with db.connection() as connection:
        return await connection.fetchval(statement, *arguments)


async def eventually(happened: Callable[[], Awaitable[object]], what: str, deadline_s: float = 20.0) -> None:
    """Returns when the condition holds, and fails the test when it does not come true in time."""
    deadline = asyncio.get_running_loop().time() + deadline_s
    while not await happened():
        assert asyncio.get_running_loop().time() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.005)


async def eventually_passes(seconds: float) -> None:
    """Time goes on by so much, in which nothing may happen."""
    begun = asyncio.get_running_loop().time()

    async def passed() -> bool:
        return asyncio.get_running_loop().time() - begun > seconds

    await eventually(passed, "time goes on")
