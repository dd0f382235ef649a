"""What may end a job before its commands do: time, idleness, and a server that is not heard.

Counted here, by the host's own clock, so that it holds while the server is away. Whoever has no such limit costs
nothing: each watch sleeps until there is something to watch.
"""

import asyncio
from collections.abc import Callable

from stoker.core.warning import Deadline as Reason
from stoker.runner.deadline import Deadlines, clock
from stoker.runner.job import Job
from stoker.runner.metrics import measure
from stoker.runner.place import Place
from stoker.runner.spool import Say
from stoker.runner.utilization import Meter, period_s
from stoker.wire.runner import Assignment, Deadline, Failure, JobOrder

Exceeded = Callable[[Failure, str], None]
"""A limit, and the sentence that says so."""


class Limits:
    """Of one runner. `begin` when the order is here, `started` when its commands are."""

    def __init__(self, place: Place, assignment: Assignment, exceeded: Exceeded, say: Say) -> None:
        self._place, self._assignment, self._exceeded, self._say = place, assignment, exceeded, say
        self._order: JobOrder | None = None
        self._job: Job | None = None
        self._deadlines: Deadlines | None = None
        self._told: dict[Reason, float | None] = {}
        self._began_at = clock()
        self._ends_at: float | None = None
        self._ordered = asyncio.Event()
        self._heard_at = clock()

    # What it is told.

    def begin(self, order: JobOrder) -> None:
        self._order = order
        self._began_at = clock()
        self._ends_at = None if order.max_duration_s is None else clock() + order.max_duration_s
        self._ordered.set()

    def started(self, job: Job) -> None:
        self._job = job

    def set(self, deadline: Deadline) -> None:
        """Said again it is the same moment, as good as the network is fast."""
        at = None if deadline.in_s is None else clock() + deadline.in_s
        self._told[deadline.reason] = at
        if deadline.reason is Reason.MAX_DURATION:
            self._ends_at = at
        if self._deadlines is not None:
            self._deadlines.set(deadline.reason, at)

    def heard(self, ago_s: float = 0.0) -> None:
        """The server was there so long ago."""
        self._heard_at = max(self._heard_at, clock() - ago_s)

    @property
    def left_s(self) -> float | None:
        """Until `max_duration` is over, where there is one."""
        return None if self._ends_at is None else self._ends_at - clock()

    # Watches.

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_time())
            group.create_task(self._watch_use())
            group.create_task(self._watch_silence())

    async def _watch_time(self) -> None:
        await self._ordered.wait()
        assert self._order is not None
        self._deadlines = Deadlines(self._place, self._order.warning, self._warn, self._passed, self._say)
        for reason, at in (*self._told.items(), (Reason.MAX_DURATION, self._ends_at)):
            self._deadlines.set(reason, at)
        await self._deadlines.watch()

    def _warn(self, number: int) -> int:
        return 0 if self._job is None else self._job.warn(number)

    def _passed(self, reason: Reason) -> None:
        """The others are kept by the server, which knows whether they still stand."""
        if reason is Reason.MAX_DURATION and self._ends_at is not None:
            # Not as it was ordered: it may have been changed meanwhile.
            ran_s = round(self._ends_at - self._began_at, 3)
            self._exceeded(Failure.MAX_DURATION, f"It ran for its max_duration of {ran_s:g} s.")

    async def _watch_use(self) -> None:
        await self._ordered.wait()
        assert self._order is not None
        if (order := self._order.utilization) is None:
            return
        meter = Meter(order)
        while True:
            if self._job is None or not self._job.busy:
                meter.forget()
            else:
                seen = await asyncio.to_thread(measure, self._assignment.cgroups, self._assignment.gpu_ids)
                if (sentence := meter.sample(clock(), seen.latest)) is not None:
                    self._exceeded(Failure.UTILIZATION, sentence)
                    return
            await asyncio.sleep(period_s(order))

    async def _watch_silence(self) -> None:
        """Stops the job when the server was not heard for as long as the configuration allows."""
        limit_s = self._assignment.stop_after_s
        if limit_s is None:
            return
        await self._ordered.wait()
        while True:
            left_s = self._heard_at + limit_s - clock()
            if left_s <= 0:
                break
            # Not all of it at once: a machine that was suspended has been silent meanwhile.
            await asyncio.sleep(min(left_s, 1.0 + limit_s / 20))
        self._exceeded(Failure.SILENCE, f"Stopped because the server was not heard for {limit_s:g} s.")
