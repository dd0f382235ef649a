"""One task's loop: does what the table of `core/shim_task.py` wishes for, and tells it what came of that.

**On disk.** A record is written before an order is acknowledged, before a runner is forked, and before anybody hears
that the task is terminated. What a restarted shim finds out by itself is not written each time: that a runner
started is in `runner.pid`, how it ended in `result.json`. The hooks before the fork change nothing outside the task's
own directory and groups, which are noted when it is accepted; so their steps are written together.

**What is shown** is `info`, which others may see at any time; it is renewed only when what it says is safe to say.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from stoker.core.errors import StokerError, Unavailable
from stoker.core.machine import Event
from stoker.core.reason import JobReason
from stoker.core.shim_task import (
    SHIM_TASK,
    Hook,
    HookFailed,
    Perform,
    RemovalAsked,
    Runtime,
    S,
    ShimTask,
    Submitted,
    TerminateAsked,
    Undo,
    UndoFailed,
    Undone,
    wish,
)
from stoker.runner.deadline import clock
from stoker.runner.proc import boot_id
from stoker.shim.change import Changes
from stoker.shim.containers import Containers
from stoker.shim.docker import Docker
from stoker.shim.limits import DISK_FULL_AGAIN_S, UNDO_AGAIN_S
from stoker.shim.port import PortTaken
from stoker.shim.process import Host, Process
from stoker.shim.shelf import Record
from stoker.wire.runner import JobOrder, Result
from stoker.wire.shim import PortInfo, TaskInfo

SHOWN_AFTER_S = 0.05
"""What takes longer than this is shown while it is under way."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Bench:
    """What all tasks of a shim share."""

    host: Host
    containers: Containers
    changes: Changes
    starts: asyncio.Semaphore
    now: Callable[[], float]


class Task:
    """`record` is on disk when this is made."""

    def __init__(self, record: Record, bench: Bench, job: JobOrder | None = None) -> None:
        self.record = self._saved = record
        self._bench, self._news = bench, asyncio.Event()
        self._writing = asyncio.Lock()
        self._process = self._made(job)
        self._loop: asyncio.Task[None] | None = None
        self._waits = ""
        """For what its start has to wait, if it does."""
        self.started = asyncio.Event()
        """Its start is over, one way or the other."""
        self.has_job = asyncio.Event()
        """Its runner has taken one, or will take none."""
        self.terminated = asyncio.Event()
        self.changed = 0
        """The number of its last change."""
        self._info = self._told()

    def _made(self, job: JobOrder | None) -> Process | Docker:
        record, host = self.record, self._bench.host
        if record.task.runtime is Runtime.PROCESS:
            return Process(record, host, self._news.set, job)
        return Docker(
            record, host, self._bench.containers,
            news=self._news.set, looked=lambda: self.look(at_log=False), say=self._say, job=job,
        )  # fmt: skip

    def _say(self, event: Event) -> None:
        self._tell(event)
        self._show()

    @property
    def info(self) -> TaskInfo:
        """As it was last shown. How long ago it ended is computed here, because the server's clock is another."""
        if self._info.result is None:
            return self._info
        return self._info.model_copy(update={"ended_ago_s": _ago_s(self._info.result, self._bench.now())})

    @property
    def task(self) -> ShimTask:
        return self.record.task

    @property
    def directory(self) -> Path:
        """Where its runner writes."""
        home, id = self._bench.host.home, self.record.id
        return home.directory(id) if self.task.runtime is Runtime.PROCESS else home.box(id)

    @property
    def live(self) -> bool:
        return not self.terminated.is_set()

    @property
    def job_taken(self) -> bool:
        return self._process.has_job

    @property
    def runner_gone(self) -> bool:
        return self._process.gone and self.task.state in (S.RUNNING, S.TERMINATED)

    @property
    def result(self) -> Result | None:
        return self._process.result

    # Orders and news.

    async def recover(self) -> None:
        """After a restart, before anybody may give an order: what happened while nobody looked."""
        if Hook.CONTAINER in self.task.begun:
            started = await self._process.find()
            if started is not None and self.task.state is S.CREATING:
                self._tell(started)
        self._process.look()
        self._process.look_at_log()
        if self.task.state is S.RUNNING and not self.task.ending and self._process.gone:
            self._tell(await self._process.ended())
        if self.task.gpu_ids:
            self._bench.host.devices.adopt(self.record.id, self.record.order.gpu_indices)
        self._bench.containers.ports.adopt(self.record.id, self.task.ports)
        self._show()

    def run(self) -> None:
        """Starts the loop, unless there is nothing left to do."""
        if self.task.state is S.TERMINATED and self._saved is self.record:
            self._settle()
        else:
            self._loop = asyncio.get_running_loop().create_task(self._drive(), name=f"task {self.record.id}")
            self._loop.add_done_callback(self._over)

    def _over(self, loop: "asyncio.Task[None]") -> None:
        if not loop.cancelled() and (error := loop.exception()) is not None:
            log.error("a task is not looked after any more", task=str(self.record.id), exc_info=error)

    async def stop(self) -> None:
        """We leave; the task stays as it is."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait((self._loop,))
        self._process.detach()

    async def submit_again(self, fence: int) -> None:
        self._tell(Submitted())
        await self._fenced(fence)
        self._show()

    async def terminate(self, order: TerminateAsked, fence: int) -> None:
        """Begun even when a full disk keeps it from being noted: it may be this very job that fills it."""
        try:
            self._tell(order)
            await self._fenced(fence)
            self._show()
        finally:
            self._news.set()

    def check_removable(self) -> None:
        """Raises `Refused` before it is terminated."""
        SHIM_TASK.step(self.task, RemovalAsked(), self._bench.now())

    def look(self, *, at_log: bool) -> None:
        """Something may have happened."""
        if self.live:
            self._process.look()
            if not self.has_job.is_set() and self._process.has_job:
                self.has_job.set()
            if at_log:
                self._process.look_at_log()
            self._show()

    # The loop.

    async def _drive(self) -> None:
        while self.task.state is not S.TERMINATED:
            self._news.clear()
            match wish(self.task):
                case (Perform(hook=hook),):
                    await self._perform(hook)
                case (Undo() as effect,):
                    await self._undo(effect)
                case _:
                    self._settle()
                    if self._process.gone:
                        self._tell(await self._process.ended())
                    else:
                        await self._news.wait()
        await self._save_at_last()
        self._settle()
        # Not its message, which may quote the job's own output.
        log.info("task terminated", task=str(self.record.id), reason=self.task.reason, exit_code=self.task.exit_code)

    async def _perform(self, hook: Hook) -> None:
        try:
            event = await self._performed(hook)
            if event is None:
                return
        except Unavailable as error:
            # The disk is full, or the engine is away; the task was accepted, so it waits.
            log.warning("hook has to wait", task=str(self.record.id), hook=hook, error=str(error))
            self._waits = _sentence(error)
            self._show()
            await self._news_or(within_s=DISK_FULL_AGAIN_S)
            return
        except Exception as error:
            reason = JobReason.PORTS_BINDING_FAILED if isinstance(error, PortTaken) else None
            event = HookFailed(hook, _sentence(error), reason)
            log.warning("hook failed", task=str(self.record.id), hook=hook, exc_info=error)
        self._waits = ""
        self._tell(event)

    async def _performed(self, hook: Hook) -> Event | None:
        """None: somebody wants it to end before that was done."""
        performing = asyncio.get_running_loop().create_task(self._process.perform(hook, self.task.gpu_ids, self._noted))
        try:
            if hook is Hook.IMAGE:
                while not performing.done() and not self.task.ending:
                    await self._news_or(performing)
                if not performing.done():
                    return None
            return await performing
        finally:
            performing.cancel()
            await asyncio.wait((performing,))

    async def _undo(self, effect: Undo) -> None:
        """Gives up when somebody is in more of a hurry than before."""
        self._waits = ""
        shown = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show)
        try:
            if effect.hook is not Hook.CONTAINER or self._process.left:
                await self._undo_once(effect)
                return
            undoing = asyncio.get_running_loop().create_task(self._undo_once(effect))
            try:
                while not undoing.done() and wish(self.task) == (effect,):
                    await self._news_or(undoing)
            finally:
                undoing.cancel()
                await asyncio.wait((undoing,))
        finally:
            shown.cancel()

    async def _undo_once(self, effect: Undo) -> None:
        if effect.failures:
            await asyncio.sleep(UNDO_AGAIN_S[min(effect.failures, len(UNDO_AGAIN_S)) - 1])
        try:
            await self._process.undo(effect.hook, effect.grace_s, self.record.fence)
        except Exception as error:
            log.warning("undo failed", task=str(self.record.id), hook=effect.hook, exc_info=error)
            self._tell(UndoFailed(effect.hook, _sentence(error)))
            self._show()
            return
        if effect.hook is Hook.CONTAINER and self._process.result is not None:
            self._tell(await self._process.exited(self._process.result))
        self._tell(Undone(effect.hook))

    # What is kept and what is shown.

    def _tell(self, event: Event) -> None:
        step = SHIM_TASK.step(self.task, event, self._bench.now())
        if step.row is not None:
            self.record = self.record.model_copy(update={"task": step.record})

    async def _fenced(self, fence: int) -> None:
        if fence > self.record.fence:
            self.record = self.record.model_copy(update={"fence": fence})
        await self._save()

    async def _save(self) -> None:
        if self.record is not self._saved:
            await self._write_then(lambda: 0)

    async def _noted(self, work: Callable[[], int]) -> int:
        async with self._bench.starts:
            return await self._write_then(work)

    async def _write_then(self, work: Callable[[], int]) -> int:
        """Writes the record, then does the work: one thread for both, since changing it costs as much as either."""
        async with self._writing:
            record = self.record
            answer: int = await self._bench.host.in_thread(self._write_and, record, record is not self._saved, work)
            self._saved = record
            return answer

    def _write_and(self, record: Record, changed: bool, work: Callable[[], int]) -> int:
        if changed:
            self._bench.host.shelf.write(record)
        return work()

    async def _save_at_last(self) -> None:
        while self.record is not self._saved:
            try:
                await self._save()
            except (OSError, StokerError) as error:
                log.warning("record not written", task=str(self.record.id), error=_sentence(error))
                await asyncio.sleep(DISK_FULL_AGAIN_S)

    async def _news_or(self, *others: asyncio.Task[Any], within_s: float | None = None) -> None:
        news = asyncio.get_running_loop().create_task(self._news.wait())
        await asyncio.wait((news, *others), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        self._news.clear()

    def _settle(self) -> None:
        """It waits for news, or for nothing any more."""
        self._show()
        self.started.set()
        if self._process.gone or self.task.state is S.TERMINATED:
            self.has_job.set()
        if self.task.state is S.TERMINATED:
            self.terminated.set()

    def _show(self) -> None:
        if self.task.state is S.TERMINATED and self._saved is not self.record:
            return
        told = self._told()
        if told != self._info or not self.changed:
            self._info = told
            self.changed = self._bench.changes.bump()

    def _told(self) -> TaskInfo:
        task = self.task
        return TaskInfo(
            id=task.id,
            fence=self.record.fence,
            state=task.state,
            ending=task.ending,
            reason=task.reason,
            message=task.message or ("" if task.ending else self._waits),
            socket=self.record.socket if task.state is S.RUNNING else "",
            gpu_ids=task.gpu_ids,
            result=self._process.result,
            log_end=self._process.log_end,
            ports=tuple(PortInfo(inside=port.inside, on_host=port.on_host) for port in task.ports),
            container_id=(task.container_id or "") if task.runtime is Runtime.DOCKER else "",
            pulled_bytes=task.pulled_bytes,
            pull_total_bytes=task.pull_total_bytes,
            job_taken=task.runtime is Runtime.DOCKER and task.state is S.RUNNING and self._process.has_job,
            cleanup_error=task.cleanup_error,
        )


def _ago_s(result: Result, now: float) -> float:
    """By a clock that nobody sets, unless the host was booted since."""
    if result.ended_up_s is not None and result.boot == boot_id():
        return max(0.0, clock() - result.ended_up_s)
    return max(0.0, now - result.ended_at)


def _sentence(error: Exception) -> str:
    return error.sentence if isinstance(error, StokerError) else str(error) or type(error).__name__
