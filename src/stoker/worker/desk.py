"""What is said to the server, and what is asked of it: reports that claim in the same breath, and claims that wait.

One report is on its way at a time. Whatever ends meanwhile goes with the next one, at once: alone it costs a request,
and under load a request carries many. When there is nothing to say for a moment and there is room, a claim waits at the
server; the next report's claim takes its place. Claims are numbered, and heartbeats tell which of them are settled.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from stoker.core.errors import StokerError, Unavailable, UserError
from stoker.core.limits import MOST_CLAIMED, MOST_HELD, MOST_REPORTED
from stoker.wire.worker import (
    Claim,
    Claimed,
    ClaimRequest,
    Free,
    Heartbeat,
    Reported,
    Sampled,
    Started,
    Work,
    WorkerReport,
)
from stoker.worker.attempt import Attempt, Key, Why
from stoker.worker.crew import Crew
from stoker.worker.limits import POLL_S, REPORT_BYTES, SETTLE_S
from stoker.worker.line import Line
from stoker.worker.pulse import Pulse, patiently
from stoker.worker.sample import Sample

log = structlog.get_logger()

_FIRST_DELAY_S: Final = 0.1
_EMPTY_S: Final = 0.05
"""After an answer without tasks that came at once, though nobody took its place."""
_LOOK_S: Final = 1.0
_LEAST_LEISURE_S: Final = 0.002


class Desk:
    def __init__(self, line: Line, crew: Crew) -> None:
        self._line, self._crew = line, crew
        self._ended: list[Attempt] = []
        self._started: list[Attempt] = []
        self._back: list[Attempt] = []
        self._sampled: list[Sample] = []
        self._number = 0
        self._open: set[int] = set()
        self._woken = asyncio.Event()
        self._quiet = asyncio.Event()
        self._hungry = asyncio.Event()
        self._polling: asyncio.Task[Claimed] | None = None
        self.closed = False
        """It claims nothing more."""
        self.ends_at: float | None = None
        """When the worker's time is over, by the monotonic clock."""

    def reset(self) -> None:
        """Under a new name: what was to be said of the old one's tasks is nobody's business any more."""
        for said in (self._ended, self._started, self._back):
            said.clear()
        self._sampled.clear()
        self._open.clear()

    def close(self) -> None:
        """Claims nothing more; who waits at the server for tasks goes home."""
        self.closed = True
        if self._polling is not None:
            self._polling.cancel()

    def tell_ended(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.stopping is Why.GONE:
                self._crew.forget(attempt)
            else:
                self._ended.append(attempt)
        self._woken.set()

    def tell_started(self, attempts: Iterable[Attempt]) -> None:
        self._started += attempts
        self._woken.set()

    def tell_sampled(self, samples: Iterable[Sample]) -> None:
        self._sampled += samples
        self._woken.set()

    def give_back(self, attempts: Iterable[Attempt]) -> None:
        self._back += attempts
        self._woken.set()

    def heartbeat(self) -> Heartbeat:
        """What is held now, and up to which claim that is all."""
        settled = min(self._open) - 1 if self._open else self._number
        held = tuple(attempt.held() for attempt in self._crew.held.values())
        return Heartbeat(held=held[:MOST_HELD], number=settled)

    async def report(self, pulse: Pulse) -> None:
        """For ever; raises Unknown."""
        delay_s = _FIRST_DELAY_S
        while True:
            if not (self._ended or self._started or self._back or self._sampled):
                self._quiet.set()
                self._hungry.set()
                await self._woken.wait()
            self._quiet.clear()
            leisure_s = self._crew.pace.leisure_s(len(self._crew.running), len(self._crew.queue))
            if leisure_s >= _LEAST_LEISURE_S and not self.closed:
                await asyncio.sleep(leisure_s)
            self._woken.clear()
            try:
                if not pulse.holds():
                    # We were frozen or cut off: first we hear what is still ours.
                    await pulse.renew()
                await self._say()
                delay_s = _FIRST_DELAY_S
            except UserError as error:
                log.error("a report is refused", why=error.sentence)
                await self._say_apart()
            except Unavailable as error:
                log.warning("the server is away", why=error.sentence)
                delay_s = await patiently(delay_s)
                # The answer to a claim may be lost, and what came with it goes back when we say what we hold.
                pulse.urge()

    async def claim(self) -> None:
        """Waits for tasks while there is room; for ever. Raises Unknown."""
        delay_s, empty = _FIRST_DELAY_S, 0
        while True:
            await self._quiet.wait()
            await asyncio.sleep(SETTLE_S)
            if not self._quiet.is_set():
                continue
            self._hungry.clear()
            claim = self._next_claim()
            if claim is None:
                await _either_way(self._hungry, _LOOK_S)
                continue
            began = time.monotonic()
            request = ClaimRequest(**dict(claim), wait_s=POLL_S)
            try:
                answer = await self._polled(request)
                self._take(answer.tasks, claim)
                delay_s = _FIRST_DELAY_S
            except (Unavailable, UserError) as error:
                log.warning("no claim", why=error.sentence)
                delay_s = await patiently(delay_s)
                continue
            finally:
                self._open.discard(claim.number)
            in_vain = not answer.tasks and claim.number == self._number and time.monotonic() - began < POLL_S / 2
            empty = empty + 1 if in_vain else 0
            if empty > 1:
                await asyncio.sleep(min(_LOOK_S, empty * _EMPTY_S))

    async def _polled(self, request: ClaimRequest) -> Claimed:
        self._polling = asyncio.get_running_loop().create_task(self._line.claim(request))
        try:
            await asyncio.wait([self._polling])
            return Claimed() if self._polling.cancelled() else self._polling.result()
        finally:
            self._polling.cancel()
            self._polling = None

    async def _say(self) -> None:
        now = time.monotonic()
        ended = self._cut()
        started = [one for one in self._started[:MOST_REPORTED] if one.pid in self._crew.running]
        back, sampled = self._back[:MOST_REPORTED], self._sampled[:MOST_REPORTED]
        counts = (len(ended), len(self._started[:MOST_REPORTED]), len(back), len(sampled))
        claim = self._next_claim()
        if not (ended or started or back or sampled or claim):
            del self._started[: counts[1]]
            return
        report = WorkerReport(
            ended=tuple([attempt.told(now) for attempt in ended]),
            started=tuple([_started(attempt, now) for attempt in started]),
            given_back=tuple([attempt.held() for attempt in back]),
            sampled=tuple([_sampled(sample, now) for sample in sampled]),
            claim=claim,
        )
        try:
            answer = await self._line.report(report)
            self._crew.pace.answered(time.monotonic() - now)
            for said, count in zip((self._ended, self._started, self._back, self._sampled), counts, strict=True):
                del said[:count]  # type: ignore[attr-defined]
            self._settle(answer, (*ended, *back))
            if claim is not None:
                self._take(answer.tasks, claim)
        finally:
            if claim is not None:
                self._open.discard(claim.number)

    def _settle(self, answer: Reported, done: Sequence[Attempt]) -> None:
        for attempt in done:
            self._crew.forget(attempt)
        for refused in answer.refused:
            key: Key = (refused.id, refused.attempt)
            log.info("not ours any more", task=str(refused.id), attempt=refused.attempt)
            if (ours := self._crew.held.get(key)) is not None:
                self._crew.stop(ours, Why.GONE)

    async def _say_apart(self) -> None:
        """Something in a report cannot be taken: each end alone, and without its text where that is refused too."""
        ended, self._ended = self._ended, []
        self._sampled.clear()
        self._started.clear()
        while ended:
            attempt = ended[0]
            try:
                answer = await self._line.report(WorkerReport(ended=(attempt.told(time.monotonic()),)))
            except UserError as error:
                if not (attempt.stdout or attempt.stderr or attempt.result or attempt.message):
                    log.error("an end is refused", task=attempt.text, why=error.sentence)
                    self._crew.forget(ended.pop(0))
                attempt.stdout = attempt.stderr = b""
                attempt.result, attempt.message = None, ""
                continue
            except StokerError:
                self._ended = [*ended, *self._ended]
                raise
            self._settle(answer, (ended.pop(0),))

    def _cut(self) -> list[Attempt]:
        """As many ends as go into one report."""
        if any(attempt.stopping is Why.GONE for attempt in self._ended):
            # It was taken away after it had ended.
            ended, self._ended = self._ended, []
            self.tell_ended(ended)
        weight = 0
        for count, attempt in enumerate(self._ended):
            weight += attempt.weight
            if count and (weight > REPORT_BYTES or count >= MOST_REPORTED):
                return self._ended[:count]
        return self._ended[:]

    def _next_claim(self) -> Claim | None:
        crew = self._crew
        if self.closed or crew.paused or not crew.may_start():
            return None
        room, ahead = crew.free(), crew.ahead()
        most = min(MOST_CLAIMED, crew.places(room) + ahead)
        if not most:
            return None
        self._number += 1
        self._open.add(self._number)
        return Claim(
            number=self._number,
            most=most,
            room=Free(amounts=dict(room.amounts), gpus=room.gpus),
            ahead=min(ahead, MOST_CLAIMED),
            time_left=None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic()),
        )

    def _take(self, works: Sequence[Work], claim: Claim) -> None:
        if works:
            self._crew.take(works, spare=claim.ahead > 0)
            if self.closed:
                self.give_back(self._crew.withdraw())


def _started(attempt: Attempt, now: float) -> Started:
    return Started(id=attempt.work.id, attempt=attempt.work.attempt, ago_s=max(0.0, now - attempt.began_at))


def _sampled(sample: Sample, now: float) -> Sampled:
    return Sampled(
        id=sample.attempt.work.id,
        attempt=sample.attempt.work.attempt,
        ago_s=max(0.0, now - sample.at),
        memory_bytes=sample.memory_bytes,
        cpus=sample.cpus,
        gpu=sample.gpu,
    )


async def _either_way(event: asyncio.Event, most_s: float) -> None:
    try:
        async with asyncio.timeout(most_s):
            await event.wait()
    except TimeoutError:
        return
