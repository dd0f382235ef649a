"""The tasks in this worker's hands: queued, running, ended. Starts, reaps and stops their processes.

Theory of operation. Everything happens in one thread, the event loop's: a child that ends interrupts it, all that ended
are reaped at once, what waits takes their places at once, and only then is looked at how they ended. A task is *held*
from its claim until the server has taken what became of it.
"""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from stoker.core import phrase
from stoker.core.fit import CPUS, GPUS, MEMORY, Amounts, Room
from stoker.wire.worker import Work
from stoker.worker.attempt import Attempt, Key, Why
from stoker.worker.host import MB
from stoker.worker.libc import signal_file
from stoker.worker.limits import LONG_S, MOST_RUNNING, PAUSE_S
from stoker.worker.pace import Pace
from stoker.worker.pin import Pins
from stoker.worker.queue import Queue
from stoker.worker.spawn import FilesGone, HostExhausted, NotStarted, Spawner

log = structlog.get_logger()

GONE_GRACE_S: Final = 2.0
"""Somebody else may have begun it already."""


class Crew:
    def __init__(self, spawner: Spawner, total: Room, pins: Pins) -> None:
        self._spawner, self._pins = spawner, pins
        self.total = self.room = total
        self.held: dict[Key, Attempt] = {}
        self.queue = Queue()
        self.running: dict[int, Attempt] = {}
        self.started_at = 0.0
        self.ended_count = 0
        self._paused_until = 0.0
        self.pace = Pace()
        self._least_cpus = 1.0
        self.may_start: Callable[[], bool] = lambda: True
        self.on_ended: Callable[[Sequence[Attempt]], None] = lambda attempts: None
        self.on_exhausted: Callable[[], None] = lambda: None

    def listen(self) -> None:
        """Hears of every child that ends; a file costs less than a handler."""
        ends = signal_file([signal.SIGCHLD])

        def heard() -> None:
            os.read(ends, 4096)
            self.reap()

        asyncio.get_running_loop().add_reader(ends, heard)

    def take(self, works: Iterable[Work], *, spare: bool) -> None:
        """Claimed, in this order."""
        now = time.monotonic()
        for work in works:
            attempt = Attempt.of(work, now, spare=spare)
            if attempt.key not in self.held:
                self.held[attempt.key] = attempt
                self.queue.add(attempt)
        self.start()

    def start(self) -> None:
        """Begins what there is room for."""
        now = time.monotonic()
        if not self.queue or now < self._paused_until or not self.may_start():
            return
        failed: list[Attempt] = []
        while len(self.running) < MOST_RUNNING and (found := self.queue.next(self.room, now)) is not None:
            attempt, wanted = found
            try:
                if not self._begun(attempt, wanted):
                    failed.append(attempt)
            except HostExhausted as error:
                log.error("nothing can be started here", why=error.sentence)
                self.queue.put_back(attempt)
                self._paused_until = time.monotonic() + PAUSE_S
                self.on_exhausted()
                break
        if failed:
            self.on_ended(failed)

    def _begun(self, attempt: Attempt, wanted: Amounts) -> bool:
        """False: it ended before it began."""
        attempt.wanted = wanted
        if GPUS in wanted:
            attempt.gpus = self.room.gpus_for(wanted[GPUS])
        attempt.cpus = self._pins.take(wanted)
        self.room = self.room.taken(wanted, attempt.gpus)
        attempt.began_at = self.started_at = time.monotonic()
        self._least_cpus = wanted.get(CPUS, 0)
        try:
            try:
                attempt.pid = self._spawner.start(attempt)
            except FilesGone:
                self._drop_files(attempt)
                attempt.pid = self._spawner.start(attempt)
        except NotStarted as refusal:
            attempt.status, attempt.message = refusal.status, refusal.sentence
            attempt.ended_at = attempt.began_at
            self._free(attempt)
            self._drop_files(attempt)
            return False
        except (HostExhausted, FilesGone) as error:
            self._free(attempt)
            self._drop_files(attempt)
            raise HostExhausted(error.sentence) from None
        self.running[attempt.pid] = attempt
        return True

    def reap(self) -> None:
        """Takes leave of every process that has ended. Those that we did not start were orphans."""
        ended: list[Attempt] = []
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                attempt = self.running.pop(pid, None)
                if attempt is not None:
                    self._close(attempt, status, usage)
                    ended.append(attempt)
        if ended:
            self.ended_count += len(ended)
            self.start()
            self.on_ended(ended)

    def _close(self, attempt: Attempt, status: int, usage: resource.struct_rusage) -> None:
        # What it left behind in its group goes with it. Nobody can have got its number yet.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(attempt.pid, signal.SIGKILL)
        attempt.ended_at = time.monotonic()
        attempt.status = os.waitstatus_to_exitcode(status)
        attempt.cpu_s = usage.ru_utime + usage.ru_stime
        # It began in our memory, and the kernel counts that as its own: what is no more than we ever had says nothing.
        if usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
            attempt.memory_bytes = max(usage.ru_maxrss * 1024.0, attempt.memory_bytes or 0.0)
        self.pace.ended(attempt.ended_at - attempt.began_at)
        self._free(attempt)

    def _free(self, attempt: Attempt) -> None:
        self.room = self.room.given_back(attempt.wanted, attempt.gpus)
        if attempt.cpus:
            self._pins.give_back(attempt.cpus)
            attempt.cpus = ()

    def _drop_files(self, attempt: Attempt) -> None:
        if attempt.pair is not None:
            attempt.pair.remove()
            attempt.pair = None

    def stop(self, attempt: Attempt, why: Why) -> None:
        """Asks the process to end, and kills it when its grace is over. What is queued is only taken out."""
        self.reap()
        if not attempt.pid:
            if attempt in self.queue:
                self.queue.remove(attempt)
                attempt.stopping, attempt.ended_at = why, time.monotonic()
                self.on_ended([attempt])
            elif why is Why.GONE:
                attempt.stopping = why
            return
        if attempt.pid not in self.running:
            # It had ended by itself.
            if why is Why.GONE:
                attempt.stopping = why
            return
        first = attempt.stopping is None
        if first or why in (Why.GONE, Why.CANCELLED):
            attempt.stopping = why
        grace_s = min(attempt.grace_s, GONE_GRACE_S) if why is Why.GONE else attempt.grace_s
        if first:
            self._signal(attempt, signal.SIGTERM)
            self._signal(attempt, signal.SIGCONT)
        if first or why is Why.GONE:
            asyncio.get_running_loop().call_later(grace_s, self.kill, attempt)

    def kill(self, attempt: Attempt) -> None:
        if self.running.get(attempt.pid) is attempt:
            attempt.killed = True
            self._signal(attempt, signal.SIGKILL)

    def stop_over_memory(self, attempt: Attempt, memory_bytes: float) -> None:
        """At once: to ask it would give it the time to take the rest."""
        self.reap()
        if self.running.get(attempt.pid) is not attempt:
            return
        attempt.memory_bytes = max(memory_bytes, attempt.memory_bytes or 0.0)
        if attempt.stopping is None:
            had, asked = (phrase.bare(MEMORY, mb) for mb in (memory_bytes / MB, attempt.wanted[MEMORY]))
            attempt.stopping, attempt.message = Why.MEMORY_OVER, f"{had} instead of {asked}."
        self.kill(attempt)

    def _signal(self, attempt: Attempt, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(attempt.pid, number)

    def stop_all(self, why: Why) -> None:
        for attempt in list(self.running.values()):
            self.stop(attempt, why)

    def withdraw(self, *, spare_only: bool = False) -> list[Attempt]:
        """Takes what is not begun out of the queue; it is held until it was given back."""
        taken = [attempt for attempt in self.queue if attempt.spare or not spare_only]
        for attempt in taken:
            self.queue.remove(attempt)
        return taken

    def forget(self, attempt: Attempt) -> None:
        self.held.pop(attempt.key, None)

    @property
    def paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def free(self) -> Room:
        """What may be claimed for."""
        return self.queue.left_of(self.room)

    def ahead(self) -> int:
        """How many more tasks should wait here, so that no place is ever empty."""
        if time.monotonic() - self.started_at >= LONG_S:
            # Those before were short; these are not.
            return 0
        return max(0, self.pace.ahead(len(self.running)) - len(self.queue))

    def places(self, room: Room) -> int:
        """How many tasks like the latest one fit into a room, about; none: nothing that tasks compete for is free."""
        if not any(amount > 0 for name, amount in room.amounts.items() if name != MEMORY) and not any(room.gpus):
            return 0
        return int(room.amounts.get(CPUS, 0) / self._least_cpus) + 1 if self._least_cpus else 64
