"""Tells records that their deadline has passed; the tables decide which limit it was."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from stoker.core import instance as core_instance
from stoker.core import job as core_job
from stoker.core import managed_job as core_managed_job
from stoker.core import run as core_run
from stoker.core import volume as core_volume
from stoker.core.commitment import Moved
from stoker.core.ids import RunId
from stoker.core.limits import LISTEN_S, PAGE, PROVIDER_SILENCE_S
from stoker.core.machine import TimeUp
from stoker.engine.aside import Aside
from stoker.engine.change import Change, of_instance, of_job, of_managed, of_run, of_volume
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.engine.presence import Presence
from stoker.store import deadline as deadlines
from stoker.store import instance, job, managed_job, run, volume
from stoker.store.database import Connection, Database

LOCK = 0x74696D65


class Timer:
    def __init__(self, database: Database, clock: Clock, committer: Committer, presence: Presence) -> None:
        self._database, self._clock, self._committer, self._presence = database, clock, committer, presence
        self._aside = Aside(clock)
        self._forgiven = frozenset[UUID]()
        """Silent or running for too long, but nobody was here to hear of them."""
        self._next_at = 0.0
        """The earliest deadline it waits for; later ones need no hint."""

    def saw(self, moved: Iterable[Moved], wake: Callable[[str], None]) -> None:
        """A commit of this replica set a deadline before the one it waits for."""
        for one in moved:
            deadline = _DEADLINES.get(one.kind)
            at = None if deadline is None else deadline(one.after)
            if at is not None and at < self._next_at:
                self._next_at = at
                wake("timer")

    async def once(self) -> Counts:
        results = await self._committer.commit_planned(LOCK, self._due)
        if results is None:
            return Counts(0, again_after_s=0.5)
        failures = self._aside.learn(results)
        if results:
            # More may be due, and what another commit held has to be told again.
            return Counts(len(results), 0.0 if len(results) >= PAGE else 0.01, failures.bugs, failures.error)
        # Whatever is committed while we ask may be missing in the answer: then any deadline wakes us once more.
        self._next_at = float("inf")
        async with self._database.connection() as connection:
            at = await deadlines.next_at(connection, self._aside.ids() | self._forgiven)
        self._next_at = at if at is not None else float("inf")
        wait_s = max(0.001, min(self._next_at, self._judges_at()) - self._clock.now())
        return Counts(0, min(wait_s, self._aside.again_after_s() or wait_s))

    def _judges_at(self) -> float:
        """When somebody who is forgiven now may be so no longer."""
        if not self._forgiven:
            return float("inf")
        listened_at = self._presence.since + LISTEN_S
        return listened_at if listened_at > self._clock.now() else self._presence.since + PROVIDER_SILENCE_S

    async def _due(self, tx: Connection, now: float) -> Sequence[Change]:
        most = PAGE + len(self._aside.ids() | self._forgiven)
        facts = [of_run(RunId(row["id"]), TimeUp()) for row in await tx.fetch(run.DUE, now, most)]
        for row in await tx.fetch(job.DUE, now, most):
            facts.append(of_job(row["id"], row["run_id"], TimeUp(attempt=row["attempt"])))
        facts += [of_instance(row["id"], TimeUp()) for row in await tx.fetch(instance.DUE, now, most)]
        facts += [of_volume(row["id"], TimeUp()) for row in await tx.fetch(volume.DUE, now, most)]
        facts += [of_managed(id, id, TimeUp()) for id in await managed_job.due(tx, now, most)]
        # Asked last, so that it knows of everything that was found due.
        self._forgiven = await self._forgive(tx, now)
        left = self._aside.ids() | self._forgiven
        return [Change(facts=(fact,)) for fact in facts if fact.id not in left]

    async def _forgive(self, tx: Connection, now: float) -> frozenset[UUID]:
        """A server that comes back gives everybody a full new period to be heard.

        It also listens before it says that a job ran too long: while it was away the job may have ended in time.
        """
        lasted_s = self._presence.lasted_s(now)
        if lasted_s >= PROVIDER_SILENCE_S:
            return frozenset()
        silent = await deadlines.silent(tx, now, PROVIDER_SILENCE_S)
        return silent if lasted_s >= LISTEN_S else silent | await deadlines.ran_before(tx, now, self._presence.since)


_DEADLINES: dict[str, Callable[[Any], float | None]] = {
    "run": core_run.deadline,
    "job": core_job.deadline,
    "instance": core_instance.deadline,
    "managed_job": core_managed_job.deadline,
    "volume": core_volume.deadline,
}
