"""Removes what people deleted: logs first, then rows, so that a crash in between leaves work and no leftovers."""

from typing import Final

from stoker.core.run_facts import StopAsked
from stoker.engine.change import Change, of_run
from stoker.engine.engine import Engine
from stoker.engine.loop import Counts
from stoker.store import project as project_store
from stoker.store import run_list
from stoker.store.database import Database
from stoker.store.log import LogStore, runner_log

NAME: Final = "sweep"
PERIOD_S: Final = 60.0
AT_ONCE: Final = 50


class Sweeper:
    def __init__(self, database: Database, engine: Engine, logs: LogStore) -> None:
        self._database, self._engine, self._logs = database, engine, logs

    async def once(self) -> Counts:
        async with self._database.transaction() as tx:
            await run_list.hide_orphans(tx, self._engine.clock.now())
            running = await run_list.orphans(tx, AT_ONCE)
            hidden = await run_list.hidden(tx, AT_ONCE)
        for id in running:
            # Submitted in the moment in which its project was deleted.
            await self._engine.commit(Change(facts=(of_run(id, StopAsked()),)))
        for _, jobs in hidden:
            for job in jobs:
                await self._logs.delete(job)
                await self._logs.delete(runner_log(job))
        async with self._database.transaction() as tx:
            if hidden:
                await run_list.remove(tx, [id for id, _ in hidden])
            await project_store.remove_empty(tx)
        return Counts(len(hidden), again_after_s=0.0 if len(hidden) == AT_ONCE else None)
