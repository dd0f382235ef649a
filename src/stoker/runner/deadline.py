"""When a job will be ended, as far as that is known before: its program is told by a file, and warned by a signal.

Several may be known at once; the earliest counts. Counted on a clock that no person sets. The file is one line, the
Unix time and the reason, so that a shell reads it with `read -r end reason`.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stoker.core.warning import Deadline as Reason
from stoker.runner.place import Place, write_file
from stoker.runner.spool import Say
from stoker.wire.runner import Warning

LISTENS_LOOK_S: Final = 1.0
"""Between two tries to warn a program that does not listen yet."""
SAME_S: Final = 2.0
LONGEST_SLEEP_S: Final = 30.0
"""A machine that was suspended finds out what time it is."""


def clock() -> float:
    """Goes on while the machine sleeps: the server's patience does too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deadlines:
    """`warn` sends a signal and says how many heard it; `passed` is told of each that has come, once."""

    def __init__(
        self,
        place: Place,
        warning: Warning | None,
        warn: Callable[[int], int],
        passed: Callable[[Reason], None],
        say: Say,
    ) -> None:
        self._place, self._warning, self._warn, self._passed, self._say = place, warning, warn, passed, say
        self._ends: dict[Reason, float] = {}
        self._over: set[tuple[Reason, float]] = set()
        self._written: tuple[Reason, float] | None = None
        self._warned: set[tuple[Reason, float]] = set()
        self._changed = asyncio.Event()

    def set(self, reason: Reason, at: float | None) -> None:
        """By our clock; None: that one is off. What was told twice is one moment, however long the way was."""
        known = self._ends.pop(reason, None)
        if at is not None:
            self._ends[reason] = known if known is not None and abs(known - at) < SAME_S else at
        self._changed.set()

    async def watch(self) -> None:
        """Sleeps while no deadline is known."""
        while True:
            self._changed.clear()
            wait_s = self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _look(self) -> float | None:
        """Does what is due; how long until there may be more to do."""
        now = clock()
        for end in self._ends.items():
            if end[1] <= now and end not in self._over:
                self._over.add(end)
                self._passed(end[0])
        coming = min(self._ends.items() - self._over, key=lambda one: one[1], default=None)
        if coming is not None or not self._ends:
            # Otherwise the last word stands: it is being ended.
            self._write(coming)
        return None if coming is None else self._until_next(coming, coming[1] - now)

    def _until_next(self, end: tuple[Reason, float], left_s: float) -> float:
        if self._warning is None or end in self._warned:
            return min(left_s, LONGEST_SLEEP_S)
        early_s = left_s - self._warning.ahead_s
        if early_s > 0:
            return min(early_s, LONGEST_SLEEP_S)
        return min(left_s, self._give_warning(self._warning, end, left_s))

    def _give_warning(self, warning: Warning, end: tuple[Reason, float], left_s: float) -> float:
        heard = self._warn(signal.Signals[f"SIG{warning.signal}"])
        if not heard:
            return LISTENS_LOOK_S
        self._warned.add(end)
        # Once more: somebody may have set the clock since it was written.
        self._written = None
        self._write(end)
        self._say(f"{warning.signal} to {heard} processes: {left_s:.1f} s until the end ({end[0]})")
        return LONGEST_SLEEP_S

    def _write(self, end: tuple[Reason, float] | None) -> None:
        if end == self._written:
            return
        self._written = end
        try:
            if end is None:
                self._place.deadline.unlink(missing_ok=True)
            else:
                line = f"{time.time() + end[1] - clock():.0f} {end[0]}\n"
                write_file(self._place.deadline, line.encode(), durable=False, mode=0o644)
        except OSError as error:
            # The disk is full. It is still warned and stopped in time.
            self._say(f"the deadline could not be written: {error}")
