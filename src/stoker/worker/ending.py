"""What is done when a process has ended: its result and its output are read, and what it left behind is killed."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from stoker.core.limits import MOST_RESULT_CHARS
from stoker.runner.cgroup import oom_kills_of_host
from stoker.worker.attempt import Attempt, Why
from stoker.worker.crew import Crew
from stoker.worker.desk import Desk
from stoker.worker.follow import Follower
from stoker.worker.limits import LEFTOVERS_S
from stoker.worker.orphan import sweep
from stoker.worker.place import Place

_LOOK_S: Final = 0.01
_KILLED: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""It was, or something that its shell had waited for."""
_MOST_RESULT_BYTES: Final = 4 * MOST_RESULT_CHARS + 1


class Ending:
    def __init__(self, crew: Crew, desk: Desk, place: Place, follower: Follower) -> None:
        self._crew, self._desk, self._place, self._follower = crew, desk, place, follower
        self._aside: set[asyncio.Task[None]] = set()
        self._oom_kills = oom_kills_of_host()

    def finish(self, attempts: Sequence[Attempt]) -> None:
        """Most of them are told at once; what takes time is done aside."""
        ready = [attempt for attempt in attempts if self._finished(attempt)]
        if ready:
            self._desk.tell_ended(ready)

    def sweep(self) -> int:
        """Kills orphans of tasks that have ended."""
        running = self._crew.running
        return sweep(running, {(one.text, one.work.attempt) for one in running.values()})

    async def settle(self) -> None:
        """Until nothing is done aside any more."""
        while self._aside:
            await asyncio.wait(self._aside)

    def cancel(self) -> None:
        for task in self._aside:
            task.cancel()

    def _finished(self, attempt: Attempt) -> bool:
        if not attempt.pid:
            return True
        self._read_result(attempt)
        if attempt.status in _KILLED and not attempt.killed:
            self._blame_memory(attempt)
        short = self._read_output(attempt)
        if short and attempt.stopping is None and not attempt.exclusive:
            return True
        task = asyncio.get_running_loop().create_task(self._finish_aside(attempt))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        return False

    async def _finish_aside(self, attempt: Attempt) -> None:
        if attempt.stopping is not None or attempt.exclusive:
            # Whoever begins it next must be alone with it.
            give_up_at = time.monotonic() + LEFTOVERS_S
            while self.sweep() and time.monotonic() < give_up_at:  # noqa: ASYNC110 - only looking finds them
                await asyncio.sleep(_LOOK_S)
        if attempt.pair is not None:
            if attempt.stopping is not Why.GONE:
                await self._follower.finish(attempt)
            pair, attempt.pair = attempt.pair, None
            self._place.give_back(pair, empty=False)
        self._desk.tell_ended([attempt])

    def _read_output(self, attempt: Attempt) -> bool:
        """Whether all of it travels with the report."""
        pair = attempt.pair
        if pair is None:
            return True
        if attempt.followed:
            return False
        if not attempt.keep_output(pair.begin()):
            return False
        attempt.pair = None
        self._place.give_back(pair, empty=not attempt.stdout and not attempt.stderr)
        return True

    def _read_result(self, attempt: Attempt) -> None:
        path = self._place.result(attempt.text, attempt.work.attempt)
        if not os.access(path, os.F_OK):
            # Nearly always; an exception would cost more than the question.
            return
        try:
            # A task may have put anything there; a pipe must not hold us up.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            with suppress(OSError):
                attempt.keep_result(os.read(file, _MOST_RESULT_BYTES))
        finally:
            os.close(file)
            with suppress(OSError):
                os.unlink(path)

    def _blame_memory(self, attempt: Attempt) -> None:
        kills = oom_kills_of_host()
        if kills > self._oom_kills:
            attempt.message = "It was killed because the host ran out of memory."
        self._oom_kills = kills
