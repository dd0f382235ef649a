"""Gives launch slots to managed jobs: one scheduler in the cluster, never over the limits."""

from collections.abc import Sequence

from stoker.core.limits import PAGE
from stoker.core.managed_job import schedule
from stoker.core.managed_task import Scheduled
from stoker.engine.change import Change, of_managed
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.store import managed_job as store
from stoker.store.database import Connection


class Scheduler:
    def __init__(self, committer: Committer, max_launching: int, max_alive: int) -> None:
        self._committer, self._max_launching, self._max_alive = committer, max_launching, max_alive

    async def once(self) -> Counts:
        results = await self._committer.commit_planned(store.SLOT_LOCK, self._plan)
        if results is None:
            return Counts(0, again_after_s=0.2)
        unsettled = any(answer is None for _, answer in results)
        return Counts(len(results), again_after_s=0.02 if unsettled else None)

    async def _plan(self, tx: Connection, now: float) -> Sequence[Change]:
        waiting = await store.waiting(tx, PAGE)
        if not waiting:
            return []
        counts = await store.counts(tx)
        chosen = schedule(waiting, counts.launching, counts.alive, self._max_launching, self._max_alive)
        return [Change(facts=(of_managed(id, id, Scheduled()),)) for id in chosen]
