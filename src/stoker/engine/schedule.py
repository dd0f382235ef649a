"""Gives launch slots to managed jobs: one scheduler in the cluster, never over the limits."""

from collections.abc import Sequence

from stoker.core.limits import PAGE
from stoker.core.managed_job import schedule
from stoker.core.managed_task import Scheduled
from stoker.engine.aside import Aside
from stoker.engine.change import Change, of_managed
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.store import managed_job as store
from stoker.store.database import Connection


class Scheduler:
    def __init__(self, committer: Committer, clock: Clock, max_launching: int, max_alive: int) -> None:
        self._committer, self._max_launching, self._max_alive = committer, max_launching, max_alive
        self._aside = Aside(clock)

    async def once(self) -> Counts:
        results = await self._committer.commit_planned(store.SLOT_LOCK, self._plan)
        if results is None:
            return Counts(0, again_after_s=0.2)
        failures = self._aside.learn(results)
        # What another commit held, and what is left when those that failed are left out, is for the next pass.
        soon = failures.failed or any(answer is None for _, answer in results)
        again_after_s = 0.02 if soon else self._aside.again_after_s()
        return Counts(len(results), again_after_s, failures.bugs, failures.error)

    async def _plan(self, tx: Connection, now: float) -> Sequence[Change]:
        aside = self._aside.ids()
        waiting = [job for job in await store.waiting(tx, PAGE + len(aside)) if job.id not in aside]
        if not waiting:
            return []
        counts = await store.counts(tx)
        chosen = schedule(waiting, counts.launching, counts.alive, self._max_launching, self._max_alive)
        return [Change(facts=(of_managed(id, id, Scheduled()),)) for id in chosen]
