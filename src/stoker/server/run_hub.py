"""Wakes those who watch runs. Commits of this replica are heard at once; those of others by a hint, and anyway every
two seconds by one question about all runs that are watched, however many watch them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from stoker.core.job_facts import Job
from stoker.core.run_facts import Run
from stoker.engine.batch import Batch
from stoker.engine.loop import Counts
from stoker.server.log_hub import Bell, Hub
from stoker.store import run_list
from stoker.store.database import Database

PERIOD_S: Final = 2.0


class Births:
    """Runs of a request that is being committed, and their first jobs, as the commit made them."""

    def __init__(self) -> None:
        self.runs: dict[UUID, Run] = {}
        self.jobs: dict[UUID, list[Job]] = {}


class RunHub(Hub):
    """By run id."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._seen: dict[UUID, int] = {}
        self._expected: dict[UUID, Births] = {}
        self._everywhere: set[Bell] = set()

    def heard(self, batch: Batch) -> None:
        """Every committed batch of this replica."""
        if not (self._bells or self._expected or self._everywhere):
            return
        touched: set[UUID] = set()
        for moved in batch.moved:
            after = moved.after
            if moved.kind == "run":
                touched.add(after.id)
                if births := self._expected.get(after.id):
                    # As the batch left it: its own row was told before its jobs were counted.
                    births.runs[after.id] = batch.families[after.id].run
            elif moved.kind == "job":
                touched.add(after.run_id)
                if births := self._expected.get(after.run_id):
                    births.jobs.setdefault(after.run_id, []).append(after)
        for id in touched & self._bells.keys():
            self.notify(id)
        if batch.moved:
            for bell in self._everywhere:
                bell.ring()

    @contextmanager
    def expected(self, ids: list[UUID]) -> Iterator[Births]:
        """Keeps what the commit of these new runs makes of them: asking the database for it would cost a round trip."""
        births = Births()
        self._expected.update(dict.fromkeys(ids, births))
        try:
            yield births
        finally:
            for id in ids:
                del self._expected[id]

    @contextmanager
    def hung_everywhere(self, bell: Bell) -> Iterator[None]:
        """Rings when anything changes, instances too."""
        self._everywhere.add(bell)
        try:
            yield
        finally:
            self._everywhere.discard(bell)

    async def once(self) -> Counts:
        """Finds what other replicas changed."""
        for bell in self._everywhere:
            bell.ring()
        watched = self.ids()
        if not watched:
            self._seen.clear()
            return Counts()
        async with self._database.connection() as connection:
            versions = await run_list.versions(connection, watched)
        # One that is watched since a moment ago may have changed before we looked for the first time.
        seen = {id: versions.get(id, -1) for id in watched}
        changed = [id for id, version in seen.items() if self._seen.get(id) != version]
        self._seen = seen
        for id in changed:
            self.notify(id)
        return Counts(len(changed))

    def close(self) -> None:
        """Everybody looks again, and finds that the server stops."""
        self.notify_all()
        for bell in self._everywhere:
            bell.ring()
