"""A worker: registers, runs what it claims, and ends when it is told to, in time, or when nothing is to do."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

import structlog
from pydantic import ValidationError

from stoker.core.errors import StokerError, Unavailable, UserError
from stoker.core.limits import MOST_DURATION_S
from stoker.wire.worker import Beat, Free, NewWorker
from stoker.worker.attempt import Attempt, Why
from stoker.worker.crew import Crew
from stoker.worker.desk import Desk
from stoker.worker.ending import Ending
from stoker.worker.follow import Follower
from stoker.worker.guard import Guard, boot_time
from stoker.worker.keeper import KEEPER_GONE, kill_children
from stoker.worker.limits import ANNOUNCE_S, HURRY_S, LEAVE_S, STUCK_S, SWEEP_S, TICK_S
from stoker.worker.line import Line, Unknown
from stoker.worker.memory import MemoryWatch
from stoker.worker.pin import Pins
from stoker.worker.place import Place
from stoker.worker.pulse import Pulse
from stoker.worker.sample import Sampler
from stoker.worker.settings import Settings
from stoker.worker.spawn import Spawner

log = structlog.get_logger()

_PART_S: Final = 1.0
_LOOK_S: Final = 0.01
_MARGIN_S: Final = 1.0
"""Before the end of a lease: what must not outlive it is dead by then."""
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0


class Worker:
    def __init__(self, settings: Settings, place: Place, guard: Guard, version: str) -> None:
        self._settings, self._place, self._guard, self._version = settings, place, guard, version
        self._line = Line(settings)
        self._spawner = Spawner(place, settings.project, settings.gpus, os.environb)
        self._crew = Crew(self._spawner, settings.total, Pins(settings.cpus))
        self._desk = Desk(self._line, self._crew)
        self._follower = Follower(self._line)
        self._ending = Ending(self._crew, self._desk, place, self._follower)
        self._pulse = Pulse(self._line, self._desk.heartbeat, self._on_beat)
        self._sampler = Sampler(settings.gpus)
        self._memory = MemoryWatch()
        self._crew.may_start = self._pulse.holds
        self._crew.on_ended = self._ending.finish
        self._crew.on_exhausted = self._on_exhausted
        self._done = asyncio.Event()
        self._signals = 0
        self._idle_since = self._began = time.monotonic()
        self._give_up_at: float | None = None
        self._swept_at, self._swept_count = 0.0, 0
        if settings.time_limit_s is not None:
            self._desk.ends_at = self._began + settings.time_limit_s

    async def run(self) -> None:
        """Until it is done. Raises what the server says against it at its first registration."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.on_signal)
        loop.add_signal_handler(KEEPER_GONE, self._on_keeper_gone)
        # Somebody who opens an output file while we ask whether it is open would end us.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        self._crew.listen()
        ticking = loop.create_task(self._tick_on())
        try:
            while not self._done.is_set():
                await self._serve()
        finally:
            ticking.cancel()
            self._ending.cancel()
            self._place.close()
            await self._line.close()

    async def _serve(self) -> None:
        """One registration, as long as the server knows it."""
        if not await self._registered():
            return
        duties = [self._pulse.run(), self._desk.report(self._pulse), self._desk.claim()]
        tasks = [asyncio.get_running_loop().create_task(duty) for duty in duties]
        over = asyncio.get_running_loop().create_task(self._done.wait())
        await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
        if self._done.is_set():
            await self._part()
        for task in (*tasks, over):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        if self._done.is_set():
            await self._leave()
            return
        for result in results:
            if isinstance(result, Unknown):
                log.warning("the server does not know this worker any more: it registers anew", why=result.sentence)
            elif isinstance(result, Exception):
                raise result
        self._disown()

    async def _registered(self) -> bool:
        settings, first, delay_s = self._settings, True, _FIRST_DELAY_S
        id = uuid4()
        try:
            self._described(id)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise UserError(f"{where}: {wrong['msg']}: {str(wrong['input'])[:60]!r}.") from None
        while not self._done.is_set():
            sent_at = boot_time()
            try:
                registered = await self._line.register(self._described(id))
            except Unavailable as error:
                if first:
                    log.warning("the server is away", url=settings.url, why=error.sentence)
                first = False
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), delay_s * random.uniform(0.5, 1.0))
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
                continue
            self._pulse.begin(registered, sent_at)
            self._spawner.named(str(id))
            offered = {**settings.total.amounts, "gpus": len(settings.gpus)}
            log.info("registered", worker=str(id), project=settings.project, **offered)
            return True
        return False

    def _described(self, id: UUID) -> NewWorker:
        settings, ends_at = self._settings, self._desk.ends_at
        left = None if ends_at is None else min(max(0.0, ends_at - time.monotonic()), MOST_DURATION_S)
        total = Free(amounts=dict(settings.total.amounts), gpus=settings.total.gpus)
        return NewWorker(
            id=id,
            name=settings.name,
            total=total,
            group=settings.group,
            labels=dict(settings.labels),
            time_limit=left,
            version=self._version,
        )

    def _disown(self) -> None:
        """Nothing that we hold is ours."""
        for attempt in self._crew.withdraw():
            self._crew.forget(attempt)
        self._desk.reset()
        self._crew.stop_all(Why.GONE)
        for attempt in list(self._crew.held.values()):
            attempt.stopping = Why.GONE
            if attempt.pid not in self._crew.running:
                self._crew.forget(attempt)

    async def _part(self) -> None:
        """Nothing runs when we go. How it ended is told, if the server listens just now."""
        self._crew.stop_all(Why.LEAVING)
        for attempt in list(self._crew.running.values()):
            self._crew.kill(attempt)
        give_up_at = time.monotonic() + _PART_S
        while self._crew.held and time.monotonic() < give_up_at:  # noqa: ASYNC110 - a moment before the end
            await asyncio.sleep(_LOOK_S)

    async def _leave(self) -> None:
        if any(attempt.began_at for attempt in self._crew.held.values()):
            # To leave in good order would say that it never began. So it counts as lost when our lease is over.
            log.warning("left without a word", tasks=len(self._crew.held))
            return
        try:
            await asyncio.wait_for(self._line.leave(), LEAVE_S)
            log.info("left")
        except (StokerError, TimeoutError) as error:
            log.warning("left without a word", why=str(error))

    def _on_beat(self, beat: Beat) -> None:
        for told, why in ((beat.cancelled, Why.CANCELLED), (beat.gone, Why.GONE)):
            for held in told:
                attempt = self._crew.held.get((held.id, held.attempt))
                if attempt is not None:
                    self._crew.stop(attempt, why)
        if beat.renewed:
            self._arm()
            self._crew.start()

    def _on_exhausted(self) -> None:
        """Others may be able to."""
        self._desk.give_back(self._crew.withdraw())

    def on_signal(self) -> None:
        """First it drains, then it stops its tasks, then it goes."""
        self._signals += 1
        if self._signals == 1:
            self._drain("told to end: it waits for what runs")
            if self._settings.drain_timeout_s is not None:
                asyncio.get_running_loop().call_later(self._settings.drain_timeout_s, self._hurry, Why.LEAVING)
        elif self._signals == 2:
            self._hurry(Why.LEAVING)
        else:
            self._done.set()

    def _drain(self, why: str) -> None:
        if not self._desk.closed:
            log.info(why, running=len(self._crew.running), given_back=len(self._crew.queue))
            self._desk.close()
            self._desk.give_back(self._crew.withdraw())
        self._look_done()

    def _hurry(self, why: Why) -> None:
        """What runs is stopped, with its grace."""
        log.info("it stops what runs", running=len(self._crew.running))
        self._drain("it claims nothing more")
        grace_s = max((attempt.grace_s for attempt in self._crew.running.values()), default=0.0)
        self._crew.stop_all(why)
        give_up_at = time.monotonic() + grace_s + HURRY_S
        self._give_up_at = min(give_up_at, self._give_up_at or give_up_at)

    def _on_keeper_gone(self) -> None:
        """Nobody would clean up after us: so we do, and go. What was running is lost, and the server will find out."""
        kill_children()
        self._place.close()
        os._exit(1)

    def _look_done(self) -> None:
        if self._desk.closed and not self._crew.held:
            self._done.set()

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        """All that needs no hurry."""
        crew, desk = self._crew, self._desk
        # A process whose end was told while we could not hear it.
        crew.reap()
        crew.start()
        running = list(crew.running.values())
        if fresh := [one for one in running if not one.announced and now - one.began_at >= ANNOUNCE_S]:
            for attempt in fresh:
                attempt.announced = True
            desk.tell_started(fresh)
        self._follower.look(running, now)
        if samples := self._sampler.look(running, now):
            desk.tell_sampled(samples)
        for attempt, memory_bytes in self._memory.look(running, now):
            crew.stop_over_memory(attempt, memory_bytes)
        if crew.queue and now - crew.started_at >= STUCK_S and (stuck := crew.withdraw(spare_only=True)):
            desk.give_back(stuck)
        if crew.ended_count != self._swept_count and now - self._swept_at >= SWEEP_S:
            self._swept_at, self._swept_count = now, crew.ended_count
            if self._ending.sweep():
                self._swept_count = -1
        self._watch_lease(running)
        self._watch_time(now, running)

    def _watch_lease(self, running: Sequence[Attempt]) -> None:
        """Exclusive tasks are dead before somebody else may begin them."""
        exclusive = [attempt for attempt in running if attempt.exclusive]
        if not exclusive:
            self._arm()
            return
        now, pulse = boot_time(), self._pulse
        latest = pulse.lease_end - min(_MARGIN_S, pulse.lease_s * 0.1)
        # However long its grace: a heartbeat or two may be late.
        earliest = pulse.renewed_at + min(3 * pulse.heartbeat_s, pulse.lease_s * 0.75)
        for attempt in exclusive:
            if now >= latest:
                self._crew.stop(attempt, Why.LEASE_OVER)
                self._crew.kill(attempt)
            elif now >= max(earliest, latest - attempt.grace_s):
                self._crew.stop(attempt, Why.LEASE_OVER)
        self._arm()

    def _arm(self) -> None:
        """The keeper does it when we cannot."""
        groups = [attempt.pid for attempt in self._crew.running.values() if attempt.exclusive]
        if groups or self._guard.armed:
            self._guard.set(groups, self._pulse.lease_end)

    def _watch_time(self, now: float, running: Sequence[Attempt]) -> None:
        if self._crew.held:
            self._idle_since = now
        elif self._settings.idle_timeout_s is not None and now - self._idle_since >= self._settings.idle_timeout_s:
            self._drain("nothing to do")
        ends_at = self._desk.ends_at
        if ends_at is not None and self._settings.time_limit_s is not None:
            longest_s = max(1.0, self._settings.time_limit_s / 4)
            grace_s = max((min(attempt.grace_s, longest_s) for attempt in running), default=0.0)
            if now >= ends_at - LEAVE_S - grace_s:
                self._drain("its time is over")
                for attempt in running:
                    if now >= ends_at - LEAVE_S - min(attempt.grace_s, longest_s):
                        self._crew.stop(attempt, Why.TIME_OVER)
            if now >= ends_at - LEAVE_S:
                for attempt in running:
                    self._crew.kill(attempt)
            self._give_up_at = ends_at - _PART_S
        if self._give_up_at is not None and now >= self._give_up_at:
            self._done.set()
        self._look_done()
