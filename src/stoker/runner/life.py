"""The life of a runner, from top to bottom: wait for the order, for the code, run, serve the log, leave.

`live` is that life; everything else here is what others tell it meanwhile. A runner runs one job once. What it has
promised is on disk before it says so: the order, and later the result. One that finds either of them when it starts
never runs the commands again: it cannot know how far somebody else came.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from stoker.core.errors import Conflict, StokerError, Unavailable
from stoker.runner.command import check_order
from stoker.runner.deadline import clock
from stoker.runner.job import STOPPED, Ending, Job, user_of
from stoker.runner.limit import Limits
from stoker.runner.limits import (
    JOB_WAIT_S,
    LAST_READERS_WAIT_S,
    LAST_WORDS_S,
    MESSAGE_CHARS,
    MOST_LIVE_READERS,
    ORDER_PATIENCE_S,
    PLACE_LOOK_S,
    READERS_WAIT_S,
    RESERVE_BYTES,
    START_WAIT_S,
)
from stoker.runner.place import Place, free_space, hold_space, write_file
from stoker.runner.proc import boot_id
from stoker.runner.reaper import Reaper, kill_leftovers
from stoker.runner.spool import OwnLog, Spool, persist
from stoker.runner.version import VERSION
from stoker.wire.runner import Assignment, Deadline, Failure, Health, JobOrder, Result, RunnerState, Stop

M = TypeVar("M", bound=BaseModel)


class Life:
    """Of one runner. Its methods are called by the HTTP edge and by signals, and only tell `live` what is new."""

    def __init__(self, place: Place, assignment: Assignment, spool: Spool, own: OwnLog, reaper: Reaper) -> None:
        self._place, self._assignment = place, assignment
        self.spool, self.own, self._reaper = spool, own, reaper
        self.state = RunnerState.WAIT_SUBMIT
        self.result = _found(place.result, Result)
        self._left_behind = _found(place.order, JobOrder) if self.result is None else None
        self._order = _found(place.order, JobOrder)
        self._fence = self._order.fence if self._order else None
        self._job: Job | None = None
        self._code_here = self._start_wanted = self._stop_wanted = self._leaving = False
        self._stop_sentence = ""
        self._log_pulled = self._own_pulled = False
        self._readers: dict[object, int] = {}
        self._turn = asyncio.Lock()
        self._moved = asyncio.Event()
        self._limit: Failure | None = None
        """The one that we stopped it for ourselves."""
        self.limits = Limits(place, assignment, self._exceeded, own.say)

    # From the beginning to the end.

    async def live(self) -> None:
        if self.result is None:
            ending = await self._until_ended()
            if ending is None:
                return
            await self._conclude(ending)
        self.spool.finish()
        self._go(RunnerState.SERVE_LOGS)
        self.own.spool.finish()
        await self._until_read()

    async def _until_ended(self) -> Ending | None:
        """None when there never was a job."""
        if self._left_behind is not None:
            killed = await asyncio.to_thread(kill_leftovers, self._left_behind.job_id, self._assignment.cgroups)
            self.own.say(f"found an order and no result: its runner died; killed {killed} processes of the job")
            message = "The runner died while it had this job; the commands are not run a second time."
            return Ending(1, failure=Failure.EXECUTOR, message=message)
        if not await self._until(lambda: self._order is not None or self._stopped, JOB_WAIT_S):
            self.own.say(f"no job came within {JOB_WAIT_S:.0f} s")
            return None
        if self._order is None and self._leaving:
            return None
        if not await self._until(lambda: self._may_start or self._stopped, START_WAIT_S):
            message = f"Nobody said that it should start within {START_WAIT_S:.0f} s."
            return replace(STOPPED, failure=Failure.EXECUTOR, message=message)
        if self._order is None or self._stop_wanted:
            return replace(STOPPED, message=self._stop_sentence or STOPPED.message, failure=self._limit)
        self._go(RunnerState.PREPARE)
        self._job = Job(self._order, self._assignment, self._place, self.spool, self._reaper, self.own.say)
        if (left_s := self.limits.left_s) is not None:
            self._job.deadline_at = time.time() + left_s
        self.limits.started(self._job)
        self._go(RunnerState.RUN)
        ending = await self._job.run()
        return replace(ending, message=ending.message or self._stop_sentence, failure=ending.failure or self._limit)

    async def _conclude(self, ending: Ending) -> None:
        """The log first, then the result, then the word: whoever hears of the result finds both after any crash."""
        free_space(self._place.reserve)
        await self.spool.seal()
        result = Result(
            exit_code=ending.exit_code,
            signal=ending.signal,
            oom=ending.oom,
            setup=ending.setup and ending.exit_code != 0,
            failure=ending.failure,
            message=ending.message[:MESSAGE_CHARS],
            ended_at=time.time(),
            ended_up_s=clock(),
            boot=boot_id(),
            log_end=self.spool.end,
        )
        data = result.model_dump_json().encode()
        await persist("the result", lambda: write_file(self._place.result, data), self.own.say)
        by = f" by signal {result.signal}" if result.signal else ""
        self.own.say(f"the job ended with exit code {result.exit_code}{by}, {result.log_end} bytes of log")
        if result.failure is not None or result.exit_code:
            await self.speak()
        self.result = result

    async def speak(self) -> None:
        """What we said ourselves is on disk: for whoever asks, and after a job that did not end well.

        It holds up nobody else: the disk may be full, or somebody took its place away.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self.own.spool.flush(), LAST_WORDS_S)

    async def _until_read(self) -> None:
        read = await self._until(lambda: self._log_pulled or self._leaving, READERS_WAIT_S)
        if not read or self._leaving:
            return
        self._go(RunnerState.WAIT_LOGS_FINISHED)
        await self._until(lambda: self._leaving or (self._own_pulled and not self._readers), LAST_READERS_WAIT_S)

    # What the server says.

    async def submit(self, order: JobOrder) -> None:
        """Returns when the order is on disk. Said again, nothing happens."""
        async with self._turn:
            self._check_fence(order.fence)
            if order.job_id != self._assignment.id:
                raise Conflict(
                    f"This is the runner of job {self._assignment.id}, not of {order.job_id}.", code="other_job"
                )
            if self._order is not None:
                if order != self._order.model_copy(update={"fence": order.fence}):
                    raise Conflict(
                        "This runner has another order for the same job; what it was told first stands.",
                        hint="A change needs a new submission.",
                        code="other_order",
                    )
                return
            if self._stopped or self.result is not None:
                raise Conflict("This job was stopped before its order came.", code="stopped")
            check_order(order)
            await self._keep_order(order)
            self._order = order
            self.limits.begin(order)
            self.own.say(f"took job {order.job_id}, submission {order.submission} of run {order.run_name}")
            self._go(RunnerState.WAIT_CODE)

    async def take(self, order: JobOrder) -> None:
        """The job that came with our assignment. What is wrong with it is said to whoever sends it once more."""
        try:
            await self.submit(order)
        except StokerError as error:
            self.own.say(f"did not take the job that came along: {error.sentence}")
        else:
            if order.start:
                self.run()

    async def _keep_order(self, order: JobOrder) -> None:
        data = order.model_dump_json().encode()

        def write() -> None:
            hold_space(self._place.reserve, RESERVE_BYTES)
            write_file(self._place.order, data)

        try:
            async with asyncio.timeout(ORDER_PATIENCE_S):
                await persist("the order", write, self.own.say)
        except TimeoutError:
            raise Unavailable("The runner cannot write to its disk.", hint="Make room.", code="disk_full") from None

    def check_code(self) -> bool:
        """Whether an archive is wanted; refused where none will ever be."""
        order = self._ordered()
        if not order.code:
            raise Conflict("The order of this job says that no code comes.", code="no_code")
        return not self._code_here and self.result is None

    async def unpack(self) -> None:
        """The archive lies in its place."""
        from stoker.runner.code import unpack

        async with self._turn:
            if self.check_code():
                await asyncio.to_thread(unpack, self._place.code, self._place.work, user_of(self._assignment))
                self._code_here = True
                self.own.say("unpacked the code")
                self._move()

    def run(self) -> None:
        self._ordered()
        self._start_wanted = True
        self._move()

    def stop(self, stop: Stop) -> None:
        self._check_fence(stop.fence)
        self._stop(stop.grace_s, "the server said stop")

    def _stop(self, grace_s: float | None, reason: str) -> None:
        if self.result is not None:
            return
        if grace_s is None:
            grace_s = self._order.stop_duration_s if self._order else 0.0
        self.own.say(f"{reason}: SIGTERM now, SIGKILL after {grace_s:g} s" if self._job else reason)
        self._stop_wanted = True
        if self._job is not None:
            self._job.stop(grace_s)
        self._move()

    def set_deadline(self, deadline: Deadline) -> None:
        """The job will be ended by somebody else; what is passed on is when, so that its program is warned."""
        self._check_fence(deadline.fence)
        self._ordered()
        self.limits.set(deadline)

    def _exceeded(self, limit: Failure, sentence: str) -> None:
        """The first reason to end it counts. Silence cuts short the grace that it has: it will be run elsewhere."""
        if self._job is not None and self._job.over:
            return
        if not self._stopped and self.result is None:
            self._limit, self._stop_sentence = limit, sentence
        elif limit is not Failure.SILENCE:
            return
        self._stop(self._ordered().silence_grace_s if limit is Failure.SILENCE else None, sentence)

    def terminate(self) -> None:
        """A signal, as the shim sends it: the job is stopped, and the log stays on disk for the shim to serve.

        In a container it may come from an engine that is going down, which is no end of the job's own."""
        if self._assignment.box is not None and self._job is not None:
            self._exceeded(Failure.EXECUTOR, "Its container was stopped from outside.")
        self._leaving = True
        self._stop(None, "told to leave")
        self._move()

    async def under_way(self, wait_s: float) -> None:
        """Returns when its commands have been started, or after `wait_s`."""
        waiting = (RunnerState.WAIT_SUBMIT, RunnerState.WAIT_CODE, RunnerState.PREPARE)
        await self._until(lambda: self.state not in waiting, wait_s)

    # The log and its readers.

    async def acknowledge(self, offset: int) -> None:
        """The server has everything before `offset`; it is forgotten, except what a live reader still needs."""
        if offset > self.spool.end:
            raise Conflict(f"The log ends at {self.spool.end}, before {offset}.", code="log_offset")
        await self.spool.forget(min(offset, *self._readers.values()) if self._readers else offset)

    def log_pulled(self, offset: int) -> None:
        if self.spool.complete and offset == self.spool.end:
            self._log_pulled = True
            self._move()

    def own_pulled(self, next_offset: int) -> None:
        if self.own.spool.complete and next_offset == self.own.spool.end:
            self._own_pulled = True
            self._move()

    @contextmanager
    def reader(self, offset: int) -> Iterator[Callable[[int], None]]:
        """A live reader, who says how far he is: the runner stays until he has caught up."""
        if len(self._readers) >= MOST_LIVE_READERS:
            raise Unavailable(f"{MOST_LIVE_READERS} others read this log already.", code="too_many_readers")
        key = object()
        self._readers[key] = offset
        try:
            yield lambda reached: self._readers.__setitem__(key, reached)
        finally:
            del self._readers[key]
            self._move()

    # Nobody left.

    async def abandoned(self) -> None:
        """Returns when the task's directory is gone and no job runs: what is left to say, nobody can ever read."""
        while self._place.directory.exists() or (self._job is not None and not self._job.ended):  # noqa: ASYNC110
            await asyncio.sleep(PLACE_LOOK_S)

    # Below.

    @property
    def health(self) -> Health:
        return Health(version=VERSION, state=self.state, job_id=self._job_id, result=self.result)

    @property
    def _job_id(self) -> UUID | None:
        return self._order.job_id if self._order else None

    @property
    def _stopped(self) -> bool:
        return self._stop_wanted or self._leaving

    @property
    def _may_start(self) -> bool:
        return self._order is not None and self._start_wanted and (self._code_here or not self._order.code)

    def _ordered(self) -> JobOrder:
        if self._order is None:
            raise Conflict("This runner has no job yet.", hint="Send the order first.", code="no_job")
        return self._order

    def _check_fence(self, fence: int) -> None:
        if self._fence is not None and fence < self._fence:
            raise Conflict(f"Fence {fence} is older than {self._fence}, which was seen here.", code="fenced")
        self._fence = fence

    def _go(self, state: RunnerState) -> None:
        self.state = state
        self._notify()
        self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, holds: Callable[[], bool], wait_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not holds():
                    await self._moved.wait()
        return holds()

    def _notify(self) -> None:
        """A hint to the shim; it looks by itself when this is lost."""
        if not self._assignment.notify:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.setblocking(False)
            speaker.sendto(str(self._assignment.id).encode(), self._assignment.notify)


def _found(path: Path, model: type[M]) -> M | None:
    return model.model_validate_json(path.read_bytes()) if path.exists() else None
