"""Asks the providers what became of our machines: those that are gone, or soon will be, and those nobody knows of.

Safe in several replicas at once: the same news twice changes nothing, and an orphan is destroyed as often as one likes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from stoker.backends.base import Backend, Handle
from stoker.core.errors import Conflict, NotFound, StokerError, Unavailable
from stoker.core.ids import InstanceId
from stoker.core.instance_facts import S
from stoker.core.sight import Sight, news_of
from stoker.engine.change import Change, Fact, of_instance
from stoker.engine.loop import Counts
from stoker.engine.perform import Tell
from stoker.engine.provider import Ways
from stoker.store import instance as instance_store
from stoker.store import journal
from stoker.store.bundle import Bundle
from stoker.store.database import Database
from stoker.store.instance import Provided

LOOKOUT = "lookout"
PERIOD_S = 5.0
"""For backends that cannot tell by themselves, and for news that was lost."""
ORPHAN_S = 5.0
"""How long a machine without a row is left alone: its launch may still be under way, and would make it again."""
AGAIN_S = 0.5

log = structlog.get_logger()


class Lookout:
    def __init__(
        self,
        database: Database,
        tell: Tell,
        now: Callable[[], float],
        backends: Mapping[str, Backend],
        reached: Callable[[], None],
        ways: Ways | None = None,
        *,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        """`tell` commits; `reached` is called when the way to a machine has become known."""
        self._database, self._commit, self._now = database, tell, now
        self._backends, self._reached, self._ways = backends, reached, ways or Ways()
        self._orphan_s = orphan_s
        self._strangers: dict[str, dict[InstanceId, float]] = {}
        """Machines of ours at each backend that have no unfinished row, and since when that is known."""

    async def once(self) -> Counts:
        did, errors = 0, list[str]()
        for name, backend in self._backends.items():
            try:
                did += await self._look(backend)
            except Unavailable as error:
                # What one provider does not say must not keep the others from being heard.
                log.warning("a provider does not answer", backend=name, error=str(error))
                errors.append(f"{name}: {error}")
        seen = [since for strangers in self._strangers.values() for since in strangers.values()]
        again_after_s = max(AGAIN_S, min(seen) + self._orphan_s - self._now()) if seen else None
        return Counts(did, again_after_s, error="; ".join(errors))

    async def _look(self, backend: Backend) -> int:
        # Before the rows are read: every machine that is found has had its row before.
        found = await backend.find()
        async with self._database.connection() as connection:
            rows = await instance_store.provided(connection, backend.name)
        asked = [Handle(row.instance.id, row.instance.handle) for row in rows if row.instance.state is not S.PENDING]
        sights = await backend.look(asked) if asked else {}
        await self._note_ways(rows, sights)
        facts = await self._tell(rows, sights)
        return facts + await self._destroy_orphans(backend, found, {row.instance.id for row in rows})

    async def _note_ways(self, rows: Iterable[Provided], sights: Mapping[InstanceId, Sight]) -> None:
        fresh = [
            (row.instance.id, sight.way)
            for row in rows
            if not row.reached and (sight := sights.get(row.instance.id)) is not None and sight.way is not None
        ]
        for id, way in fresh:
            async with self._database.transaction() as tx:
                await self._ways.note(tx, id, way)
        if fresh:
            self._reached()

    async def _tell(self, rows: Iterable[Provided], sights: Mapping[InstanceId, Sight]) -> int:
        facts: list[Fact] = []
        for row in rows:
            sight = sights.get(row.instance.id)
            if sight is not None and (event := news_of(row.instance, sight)) is not None:
                facts.append(of_instance(row.instance.id, event))
        for fact in facts:
            try:
                await self._commit(Change(facts=(fact,)))
            except (Conflict, NotFound) as error:
                # True news that a table has no answer to: the table has a hole, and nobody else is held up by it.
                log.error("news was refused", fact=repr(fact), error=str(error))
        return len(facts)

    async def _destroy_orphans(self, backend: Backend, found: Sequence[Handle], known: set[InstanceId]) -> int:
        now, did = self._now(), 0
        before = self._strangers.get(backend.name, {})
        strangers = {handle: before.get(handle.id, now) for handle in found if handle.id not in known}
        self._strangers[backend.name] = {handle.id: since for handle, since in strangers.items()}
        for handle, since in strangers.items():
            if now - since < self._orphan_s:
                continue
            try:
                await backend.destroy(handle)
            except StokerError as error:
                log.warning("an orphan is not destroyed yet", machine=handle.name, error=str(error))
                continue
            del self._strangers[backend.name][handle.id]
            did += 1
            await self._show(backend, handle, now)
        return did

    async def _show(self, backend: Backend, handle: Handle, now: float) -> None:
        note = f"{handle.name or handle.id} at {backend.name} had our tag and was wanted by nobody"
        log.warning("an orphan was destroyed", backend=backend.name, machine=handle.name, instance=str(handle.id))
        bundle = Bundle()
        entry = journal.Entry(
            "instance", handle.id, handle.id, "OrphanDestroyed", None, S.TERMINATED, note, "lookout", journal.EVERYBODY
        )
        journal.append(bundle, [entry], now)
        async with self._database.transaction() as tx:
            await bundle.write(tx)
