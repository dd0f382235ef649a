"""The time of the cluster: the database's clock, so that replicas agree and no host's clock matters.

The database's clock is set too: by a person, or by a time server after a boot with a wrong one. An hour that passes in
a moment would end every run whose limit is within it, and one that comes twice would make everybody wait. So a replica
that is alone, and has nobody to agree with, follows such a jump slowly. While there are others it is followed at once,
like every change: two replicas with different times would bury each other.
"""

import math
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from stoker.store import replica
from stoker.store.database import Database

JUMP_S: Final = 2.0
"""Clocks that nobody has set are nearer to each other than this, between two looks."""
SLEW: Final = 0.1
"""How much slower or faster than it should a moment passes until a jump is caught up with."""

log = structlog.get_logger()


class Clock(Protocol):
    def now(self) -> float: ...


class DatabaseClock:
    """Counts on a clock of the host that no person sets, from the moment the database told its time."""

    def __init__(self, database: Database, alone: Callable[[], bool] = lambda: False) -> None:
        self._database, self._alone = database, alone
        self._offset = 0.0
        self._followed_at: float | None = None
        self._jumping = False

    def now(self) -> float:
        return steady() + self._offset

    async def follow(self) -> None:
        """Ask again; half of the round trip is the error."""
        async with self._database.connection() as connection:
            before = steady()
            moment = await replica.clock(connection)
            self._told(moment, (before + steady()) / 2)

    def _told(self, moment: float, at: float) -> None:
        since, self._followed_at = self._followed_at, at
        away_s = moment - at - self._offset
        jumped = since is not None and self._alone() and abs(away_s) >= JUMP_S
        if jumped and not self._jumping:
            log.warning("the clock of the database was set, and is followed slowly", by_s=round(away_s, 1))
        self._jumping = jumped
        if jumped and since is not None:
            away_s = math.copysign(min(abs(away_s), SLEW * (at - since)), away_s)
        self._offset += away_s


def steady() -> float:
    """Goes on while the host sleeps, as everybody else does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
