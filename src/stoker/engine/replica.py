"""This process among the others: one heartbeat, and the work of those whose heart has stopped."""

from collections.abc import Callable

import structlog

from stoker.core.errors import Unavailable
from stoker.core.limits import ADOPTED_AT_ONCE
from stoker.engine.clock import Clock
from stoker.engine.loop import Counts
from stoker.engine.presence import Presence
from stoker.store import outbox
from stoker.store import replica as replica_store
from stoker.store.database import Database

PERIOD_S = 2.0
DEAD_AFTER_S = 8.0

log = structlog.get_logger()


class Replica:
    """An epoch is one life. When the others have buried it (we were frozen), the next beat begins a new one."""

    def __init__(
        self, database: Database, clock: Clock, name: str, began: Callable[[int], None], adopted: Callable[[], None],
        *, period_s: float = PERIOD_S, dead_after_s: float = DEAD_AFTER_S,
    ) -> None:  # fmt: skip
        self._database, self._clock, self._name = database, clock, name
        self._began, self._adopted, self._dead_after_s = began, adopted, dead_after_s
        # Two periods are one missed beat, which says nothing: the others' beats are far from too old then.
        self.presence = Presence(2 * period_s)
        self.epoch = 0
        self.others = 0
        """How many other replicas there were at the last beat."""

    async def register(self) -> None:
        """An earlier life under the same name is over: whoever runs us lets only one process have it."""
        async with self._database.transaction() as tx:
            epoch = await replica_store.register(tx, self._name, self._clock.now())
        # Only now: an epoch whose commit was in doubt is not ours, and the next register ends it.
        self.epoch = epoch
        self._began(epoch)

    async def once(self) -> Counts:
        now = self._clock.now()
        # Whoever could not beat itself knows nothing of the others' hearts: the database may have been away from all.
        judges = self.presence.lasted_s(now) >= self._dead_after_s
        async with self._database.transaction() as tx:
            others = await replica_store.renew(tx, self.epoch, now)
            alive = others is not None
            buried = await replica_store.bury(tx, now - self._dead_after_s, self.epoch) if alive and judges else []
            adopted = await outbox.adopt(tx, self.epoch, ADOPTED_AT_ONCE) if alive else 0
        self.presence.seen(now)
        if not alive:
            log.warning("this replica was given up by the others and begins anew", epoch=self.epoch)
            await self.register()
            return Counts(1, again_after_s=0.0)
        self.others = others or 0
        if buried or adopted:
            log.info("took over", from_epochs=buried, errands=adopted)
            self._adopted()
        return Counts(len(buried) + adopted, again_after_s=0.0 if adopted == ADOPTED_AT_ONCE else None)

    async def leave(self) -> None:
        """Where the database is away, the others, or our next life, find out by our silence."""
        try:
            async with self._database.transaction() as tx:
                await replica_store.leave(tx, self.epoch)
        except Unavailable as error:
            log.warning("this replica leaves without a word", error=str(error))
