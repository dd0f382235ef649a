"""Forgets what is too old: the journal and the keys of requests are kept for a time, not for ever."""

from stoker.core.limits import FORGOTTEN_AT_ONCE, JOURNAL_KEPT_S, KEYS_KEPT_S
from stoker.engine.clock import Clock
from stoker.engine.loop import Counts
from stoker.store import idempotency, journal
from stoker.store.database import Database

PERIOD_S = 3600.0


class Retention:
    """A page at a time, so that it never holds up anybody."""

    def __init__(self, database: Database, clock: Clock, kept_s: float = JOURNAL_KEPT_S) -> None:
        self._database, self._clock, self._kept_s = database, clock, kept_s

    async def once(self) -> Counts:
        async with self._database.transaction() as tx:
            entries = await journal.forget(tx, self._clock.now() - self._kept_s, FORGOTTEN_AT_ONCE)
            keys = await idempotency.forget(tx, self._clock.now() - KEYS_KEPT_S, FORGOTTEN_AT_ONCE)
        return Counts(entries + keys, again_after_s=0.1 if FORGOTTEN_AT_ONCE in (entries, keys) else None)
