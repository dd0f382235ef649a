"""A simulated machine: a shim with runners in this process, which only tell what real ones would.

Theory of operation. A job is what `script` makes of its commands, so its log and its end follow from the moment it
began. That moment, and whatever ends it early, is a line in the machine's file, so that it survives this process; the
lines are not synced, since a kill loses none of them. The file is emptied when the last task is removed.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final
from uuid import UUID, uuid4

from stoker.backends.dummy.script import FOREVER_S, Script, read
from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.core.shim_task import S
from stoker.wire.frame import FRAME_BYTES, Frame, Piece, Stream, encode
from stoker.wire.runner import JobOrder, Result, Stop
from stoker.wire.shim import Changes, TaskInfo, TaskOrder, Terminate

ENGINE: Final = "simulated"
"""Containers are simulated as anything else."""

LONGEST_TIMER_S: Final = 86_400.0
REMEMBERED: Final = 1_000
"""Fences of tasks that were removed."""
FORGOTTEN_BYTES: Final = 64 * 1024
"""What a machine without tasks may have written about those it had."""


@dataclass(slots=True)
class Task:
    id: UUID
    fence: int
    setup: Script = field(default_factory=Script)
    script: Script = field(default_factory=Script)
    began_at: float | None = None
    ended_at: float | None = None
    """When somebody ended it before its time."""
    terminated: bool = False
    changed: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def ends_at(self) -> float:
        """When its commands end by themselves; never while they have not begun."""
        if self.began_at is None:
            return FOREVER_S
        commands_s = 0.0 if self.setup.exit_code else self.script.lasts_s
        return self.began_at + self.setup.lasts_s + commands_s

    def over_at(self) -> float:
        return self.ends_at if self.ended_at is None else min(self.ends_at, self.ended_at)

    def output(self) -> list[tuple[float, bytes]]:
        """Everything that it will have written, with the moments."""
        if self.began_at is None:
            return []
        began_at = self.began_at + self.setup.lasts_s
        lines = [(self.began_at + at_s, line) for at_s, line in self.setup.output]
        if not self.setup.exit_code:
            lines += [(began_at + at_s, line) for at_s, line in self.script.output]
        return lines

    def log(self, now: float) -> bytes:
        until = min(now, self.over_at())
        frames = (
            Frame(Stream.STDOUT, int(at * 1e6), line[first : first + FRAME_BYTES])
            for at, line in self.output()
            if at <= until
            for first in range(0, len(line), FRAME_BYTES)
        )
        return b"".join(map(encode, frames))

    def result(self, now: float) -> Result | None:
        over_at = self.over_at()
        if self.began_at is None or over_at > now:
            return None
        stopped = over_at < self.ends_at
        code = 128 + SIGTERM if stopped else self.setup.exit_code or self.script.exit_code
        return Result(
            exit_code=code,
            signal=int(SIGTERM) if stopped else None,
            setup=not stopped and bool(self.setup.exit_code),
            ended_at=over_at,
            log_end=len(self.log(now)),
        )


class Simulated:
    """One machine. Its shim and its runners are `SimulatedShim` and `SimulatedRunner`, which come here each time."""

    def __init__(self, id: UUID, path: Path, clock: Callable[[], float]) -> None:
        self.id, self._path, self._clock = id, path, clock
        self.boot = uuid4().hex
        self.tasks: dict[UUID, Task] = {}
        self._removed: dict[UUID, int] = {}
        self._written = 0
        self._number = 0
        self._news = asyncio.Event()
        self.silent = ""
        """Why it does not answer."""
        self.health = ""
        self._recover()

    # What its shim is asked.

    def submit(self, order: TaskOrder) -> TaskInfo:
        task, taken = self.tasks.get(order.id), False
        if task is None:
            _fenced(order.fence, self._removed.get(order.id, -1) + 1)
            task = self.tasks[order.id] = Task(order.id, order.fence)
            self._write(task=str(order.id), fence=order.fence)
            self._stir(task)
            if order.job is not None:
                self.run(order.job)
                taken = True
        self._heed(task, order.fence)
        return self.info(task).model_copy(update={"job_taken": taken})

    def task(self, id: UUID) -> Task:
        if (task := self.tasks.get(id)) is None:
            raise NotFound(f"There is no task {id}.")
        return task

    def terminate(self, id: UUID, order: Terminate) -> TaskInfo:
        task = self.task(id)
        self._heed(task, order.fence)
        if not task.terminated:
            task.terminated = True
            self._end(task)
        return self.info(task)

    def remove(self, id: UUID, fence: int) -> None:
        if (task := self.tasks.get(id)) is None:
            return
        self._heed(task, fence)
        if not self._terminated(task):
            raise Conflict(f"Task {id} is not terminated.", code="not_terminated")
        self._forget(task)
        self._removed[id] = fence
        while len(self._removed) > REMEMBERED:
            del self._removed[next(iter(self._removed))]
        self._write(removed=str(id))
        if not self.tasks and self._written > FORGOTTEN_BYTES:
            os.truncate(self._path, 0)
            self._written = 0

    async def changes(self, cursor: str, wait_s: float) -> Changes:
        boot, _, number = cursor.partition(":")
        complete = boot != self.boot or not number.isdecimal()
        seen = -1 if complete else int(number)
        deadline = asyncio.get_running_loop().time() + wait_s
        while not complete and self._number <= seen and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self.news(left_s)
        tasks = tuple(self.info(task) for task in self.tasks.values() if task.changed > seen)
        return Changes(
            cursor=f"{self.boot}:{self._number}", complete=complete, tasks=tasks, health=self.health, docker=ENGINE
        )

    # What a runner is asked.

    def run(self, order: JobOrder) -> None:
        task = self.task(order.job_id)
        self._heed(task, order.fence)
        if task.ended_at is not None:
            raise Conflict("It was stopped before it ran.", code="stopped")
        if task.began_at is None:
            task.began_at = self._clock()
            task.setup, task.script = read(order.setup), read(order.commands)
            told = {"setup": list(order.setup), "commands": list(order.commands)}
            self._write(began=str(task.id), at=task.began_at, **told)
            self._stir(task)
            self._set_timer(task)

    def stop(self, id: UUID, order: Stop) -> None:
        task = self.task(id)
        self._heed(task, order.fence)
        self._end(task)

    async def pull(self, id: UUID, offset: int, wait_s: float) -> Piece:
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            task, now = self.task(id), self._clock()
            piece = self.log(id, offset)
            left_s = deadline - asyncio.get_running_loop().time()
            if piece.frames or piece.complete or left_s <= 0:
                return piece
            following = min((at for at, _ in task.output() if at > now), default=now + left_s)
            await self.news(min(left_s, following - now + 0.001))

    # And both.

    def log(self, id: UUID, offset: int) -> Piece:
        now = self._clock()
        task = self.task(id)
        frames = task.log(now)
        return Piece(frames[offset:], len(frames), self._terminated(task))

    def info(self, task: Task) -> TaskInfo:
        now = self._clock()
        result = task.result(now)
        return TaskInfo(
            id=task.id,
            fence=task.fence,
            state=S.TERMINATED if task.terminated or result is not None else S.RUNNING,
            socket=f"dummy:{self.id}",
            result=result,
            ended_ago_s=0.0 if result is None else max(0.0, now - result.ended_at),
            log_end=len(task.log(now)),
        )

    async def news(self, wait_s: float) -> None:
        """Returns when something has changed, or after `wait_s`. Raises when the machine fell silent meanwhile."""
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self.check()

    def check(self) -> None:
        if self.silent:
            raise Unavailable(f"The agent of this machine does not answer: {self.silent}.", code="agent_silent")

    def fall_silent(self, why: str) -> None:
        """Who waits for it hears at once that it does not answer; nothing else changes on it."""
        self.silent = why
        self._ring()

    def examined(self, health: str) -> None:
        """Its shim says from now on that this is wrong with it; nothing: it is well."""
        self.health = health
        self._number += 1
        self._ring()

    def power_off(self) -> None:
        for task in list(self.tasks.values()):
            self._forget(task)
        self.fall_silent("it is gone")

    def close(self) -> None:
        for task in self.tasks.values():
            _cancel(task)

    def _terminated(self, task: Task) -> bool:
        return task.terminated or task.over_at() <= self._clock()

    def _end(self, task: Task) -> None:
        if task.ended_at is None and not task.over_at() <= self._clock():
            task.ended_at = self._clock()
        self._write(ended=str(task.id), at=task.ended_at, terminated=task.terminated)
        _cancel(task)
        self._stir(task)

    def _heed(self, task: Task, fence: int) -> None:
        _fenced(fence, task.fence)
        task.fence = fence

    def _stir(self, task: Task) -> None:
        self._number += 1
        task.changed = self._number
        self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _set_timer(self, task: Task) -> None:
        left_s = task.over_at() - self._clock()
        if task.terminated or left_s == FOREVER_S or left_s <= 0:
            return
        loop = asyncio.get_running_loop()
        task.timer = loop.call_later(min(left_s + 0.001, LONGEST_TIMER_S), self._time_passed, task)

    def _time_passed(self, task: Task) -> None:
        if task.over_at() <= self._clock():
            self._stir(task)
        else:
            self._set_timer(task)

    def _forget(self, task: Task) -> None:
        _cancel(task)
        self.tasks.pop(task.id, None)

    def _write(self, **line: Any) -> None:
        said = json.dumps(line).encode() + b"\n"
        # Without the layers of Python's files, which cost ten times as much as the writing.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, said)
        finally:
            os.close(file)
        self._written += len(said)

    def _recover(self) -> None:
        """A line that a kill cut short was never acknowledged."""
        try:
            said = self._path.read_text()
        except FileNotFoundError:
            return
        if said and not said.endswith("\n"):
            self._path.write_text(f"{said}\n")
        self._written = len(said)
        for text in said.splitlines():
            try:
                self._replay(json.loads(text))
            except ValueError:
                continue
        for task in self.tasks.values():
            self._stir(task)
            self._set_timer(task)

    def _replay(self, line: dict[str, Any]) -> None:
        if "task" in line:
            id = UUID(line["task"])
            self.tasks[id] = Task(id, line["fence"])
        elif "removed" in line:
            self.tasks.pop(UUID(line["removed"]), None)
        elif "began" in line and (task := self.tasks.get(UUID(line["began"]))) is not None:
            task.began_at, task.setup, task.script = line["at"], read(line["setup"]), read(line["commands"])
        elif "ended" in line and (task := self.tasks.get(UUID(line["ended"]))) is not None:
            task.ended_at, task.terminated = line["at"], line["terminated"]


def _fenced(fence: int, least: int) -> None:
    if fence < least:
        raise Conflict(f"A later order than {fence} was seen: {least}.", code="fenced")


def _cancel(task: Task) -> None:
    if task.timer is not None:
        task.timer.cancel()
        task.timer = None
