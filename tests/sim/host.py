"""Simulated machines: a shim that lives by the real table, and runners."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from stoker.core import job_facts as job
from stoker.core import shim_task as shim
from stoker.core.errors import Unavailable
from stoker.core.machine import Effect, Event
from stoker.core.reason import JobReason
from stoker.engine.news import End
from stoker.wire.frame import Piece
from stoker.wire.runner import Failure, Result

if TYPE_CHECKING:
    from tests.sim.world import World

FRAME = 40
"""Bytes, for the sake of counting: nobody looks into them."""

LIMITS = {
    Failure.SILENCE: JobReason.INSTANCE_UNREACHABLE,
    Failure.UTILIZATION: JobReason.TERMINATED_DUE_TO_UTILIZATION_POLICY,
}

Key = tuple[UUID, int, int]
"""Run, replica, node: what must never run twice at once."""


@dataclass(slots=True)
class Order:
    """What a task is given: whose it is, and how its program behaves."""

    job_id: UUID
    run_id: UUID
    attempt: int
    key: Key
    fence: int
    docker: bool
    stop_after_s: float | None


@dataclass(slots=True)
class Task:
    order: Order
    record: shim.ShimTask
    started: bool = False
    running: bool = False
    process: "asyncio.Task[None] | None" = None
    ended: End | None = None
    result: Result | None = None
    log: bytes = b""
    seq: int = 0
    """Of the host's changes, the last that was one of this task."""
    asked: bool = False
    polite: bool = True
    hurried: bool = False
    along: bool = False
    """Its runner was given the job as it was started."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def piece(self, offset: int) -> Piece:
        """At most two frames at a time, so that a log takes several calls."""
        end = min(len(self.log), offset + 2 * FRAME)
        complete = self.result is not None or self.record.state is shim.S.TERMINATED
        return Piece(self.log[offset:end], end, complete and end == len(self.log))


@dataclass(slots=True, eq=False)
class Host:
    """One machine. `cut`: nobody reaches it. `frozen`: nothing on it moves either."""

    world: "World"
    id: UUID
    owned: bool
    alive: bool = True
    cut: bool = False
    stillborn: bool = False
    has_shim: bool = True
    frozen: bool = False
    health: str = ""
    tasks: dict[UUID, Task] = field(default_factory=dict)
    fences: dict[UUID, int] = field(default_factory=dict)
    removed: set[UUID] = field(default_factory=set)
    heard_at: float = 0.0
    seq: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reachable(self) -> bool:
        return self.alive and not self.cut and not self.frozen and not self.stillborn

    def clock(self) -> float:
        """Its own, up to an hour away from everybody else's."""
        return self.world.now() + self.id.int % 7200 - 3600

    def touch(self) -> None:
        self.heard_at = self.world.now()

    def fenced(self, job_id: UUID, fence: int) -> bool:
        """Refuses an order that is older than one it has seen for the same task."""
        if fence < self.fences.get(job_id, 0):
            self.world.count("order refused by its fence")
            return True
        self.fences[job_id] = fence
        return False

    async def news_after(self, seq: int, wait_s: float) -> None:
        """Returns when something has changed since, or the time is over."""
        deadline = self.world.now() + wait_s
        while self.seq == seq and self.reachable and (left_s := deadline - self.world.now()) > 0:
            self.news.clear()
            try:
                async with asyncio.timeout(min(left_s, 10.0)):
                    await self.news.wait()
            except TimeoutError:
                continue

    def submit(self, order: Order, *, along: bool) -> None:
        """Submitted again with the same id: the same task, no second container."""
        if order.job_id in self.removed:
            self.world.violated(f"job {order.job_id} was started again after its removal was confirmed")
        if order.job_id in self.tasks:
            self._step(self.tasks[order.job_id], shim.Submitted())
            return
        runtime = shim.Runtime.DOCKER if order.docker else shim.Runtime.PROCESS
        task = Task(order, shim.submit(order.job_id, runtime, self.world.now()), along=along)
        self.tasks[order.job_id] = task
        self._changed(task)
        self.world.background(self._work(task))

    def pod(self, order: Order) -> bool:
        """A machine without a shim: the container came with it."""
        if not self.fenced(order.job_id, order.fence) and order.job_id not in self.tasks:
            begun = shim.submit(order.job_id, shim.Runtime.PROCESS, self.world.now())
            task = Task(order, replace(begun, state=shim.S.RUNNING, begun=shim.HOOKS))
            self.tasks[order.job_id] = task
            self.world.background(self._work(task))
        return self.run(order.job_id, order.fence)

    def run(self, job_id: UUID, fence: int) -> bool:
        """The runner takes the job; until the container runs there is no runner to take it."""
        if self.fenced(job_id, fence):
            return False
        task = self.tasks.get(job_id)
        if task is None or task.record.state is not shim.S.RUNNING:
            raise Unavailable("the runner does not answer yet")
        self._begin(task)
        return True

    def _begin(self, task: Task) -> None:
        """Only once, also when its program is over already and the order is repeated."""
        if not task.started:
            task.started = task.running = True
            self._write(task)
            self.world.process_started(self, task.order.key)
            task.process = self.world.background(self._program(task))
            at_once = self.world.theme.idle_at_once
            if at_once and self.world.dice.random() < at_once:
                self.world.later(self.world.dice.uniform(0.0, 0.5), lambda: self.find_idle(task))

    def stop(self, job_id: UUID, fence: int) -> None:
        if self.fenced(job_id, fence):
            return
        task = self.tasks.get(job_id)
        if task is None or not task.running or task.asked:
            return
        task.asked = True
        if task.polite:
            self.world.later(self.world.dice.uniform(0.05, 3.0), lambda: self._exit(task, job.Exited(143, signal=15)))

    def warn(self, job_id: UUID, fence: int, in_s: float | None) -> None:
        """Some programs save their work and leave when they hear that the machine will, many at the last moment."""
        if self.fenced(job_id, fence):
            return
        task = self.tasks.get(job_id)
        if task is None or not task.running or in_s is None:
            return
        if self.world.chance("program leaves when it is warned", 0.7):
            exited = job.Exited(self.world.dice.choice((0, 1)))
            least_s = in_s * self.world.dice.choice((0.0, 0.8))
            self.world.later(self.world.dice.uniform(least_s, in_s + 1.0), lambda: self._exit(task, exited))

    def terminate(self, task: Task, grace_s: float) -> None:
        if task.record.state is not shim.S.TERMINATED:
            self._step(task, shim.TerminateAsked(grace_s=grace_s))

    def remove(self, job_id: UUID) -> bool:
        """True when nothing of the task is left."""
        task = self.tasks.get(job_id)
        if task is None:
            self.removed.add(job_id)
            return True
        if task.record.state is not shim.S.TERMINATED:
            return False
        self._step(task, shim.RemovalAsked())
        if self.has_shim:
            self.world.forgotten(job_id, task.log, _exit_code(task.result))
        del self.tasks[job_id]
        self.removed.add(job_id)
        return True

    def hurry_away(self, job_id: UUID, fence: int) -> bool:
        """Of a machine without a shim: asked again and again until nothing is left."""
        if self.fenced(job_id, fence):
            raise Unavailable("a later order was here already")
        if (task := self.tasks.get(job_id)) is not None:
            self.terminate(task, 0.0 if task.hurried else 20.0)
            task.hurried = True
        return self.remove(job_id)

    def vanish(self) -> None:
        """The power is off."""
        self.alive = False
        for task in self.tasks.values():
            self._halt(task)
        self.tasks.clear()

    def clear(self) -> None:
        """Nothing of ours is left here."""
        for task in self.tasks.values():
            self._halt(task)
        self.removed |= self.tasks.keys()
        self.tasks.clear()

    def thaw(self) -> None:
        self.frozen = False
        self.check_leases()
        for task in self.tasks.values():
            if task.running:
                self.world.alone(self, task.order.key)

    def check_leases(self) -> None:
        """The agent's own clock: whoever opted in is stopped when the server has been away too long."""
        for task in list(self.tasks.values()):
            limit_s = task.order.stop_after_s
            if limit_s is not None and task.running and self.world.now() - self.heard_at >= limit_s:
                self.world.count("agent stopped a job by its own clock")
                self._exit(task, job.Exited(143, signal=15), Failure.SILENCE)

    def find_idle(self, task: Task) -> None:
        """The runner has measured that it uses too little."""
        self.world.count("job idle for too long")
        self._exit(task, job.Exited(143, signal=15), Failure.UTILIZATION)

    async def _work(self, task: Task) -> None:
        """The shim's loop for one task: do what it wishes, tell it what came of that."""
        while self.alive and task.order.job_id in self.tasks:
            wishes = shim.wish(task.record)
            if not wishes:
                if task.record.state is shim.S.TERMINATED:
                    return
                task.changed.clear()
                await task.changed.wait()
                continue
            await self.world.pause(0.02, self._longest_s(wishes[0]))
            await self._awake()
            # A start hook in flight is given up when the task is to end meanwhile.
            if self.alive and shim.wish(task.record) == wishes:
                self._do(task, wishes[0])

    def _longest_s(self, wish: Effect) -> float:
        """Containers take their time to start, and may use their grace to stop."""
        match wish:
            case shim.Perform(hook=shim.Hook.CONTAINER):
                return self.world.dice.choice((0.4, 0.4, 0.4, 20.0))
            case shim.Undo(hook=shim.Hook.CONTAINER, grace_s=grace_s):
                return min(0.4 + grace_s, 4.0)
        return 0.4

    def _do(self, task: Task, wish: Effect) -> None:
        match wish:
            case shim.Perform(hook=hook):
                self._perform(task, hook)
            case shim.Undo(hook=hook):
                if self.world.chance("undo failed", 0.05):
                    self._step(task, shim.UndoFailed(hook, "busy"))
                    return
                if hook is shim.Hook.CONTAINER:
                    self._halt(task)
                    if self.world.dice.random() < 0.5:
                        self._step(task, shim.Exited(143))
                self._step(task, shim.Undone(hook))

    def _perform(self, task: Task, hook: shim.Hook) -> None:
        if self.world.chance("hook failed", 0.01):
            self._step(task, shim.HookFailed(hook, "no"))
            self._tell(task, job.AgentFailed(shim.BLAME[hook], "no"))
            return
        pulling = task.record.state is shim.S.PULLING
        if hook is shim.Hook.IMAGE and task.order.docker and not pulling:
            self._step(task, shim.ImageMissing())
            self._step(task, shim.PullProgressed(1, 2))
            return
        done: dict[shim.Hook, Callable[[], Event]] = {
            shim.Hook.DIRECTORIES: shim.DirectoriesMade,
            shim.Hook.VOLUMES: shim.VolumesMounted,
            shim.Hook.DEVICES: shim.DevicesTaken,
            shim.Hook.IMAGE: shim.ImageReady,
            shim.Hook.NETWORK: shim.NetworkReady,
            shim.Hook.CONTAINER: shim.Started,
        }
        self._step(task, done[hook]())
        if hook is shim.Hook.CONTAINER and task.along:
            self._begin(task)

    async def _program(self, task: Task) -> None:
        program = self.world.program(task.order.key)
        task.polite = not self.world.chance("program ignores SIGTERM", 0.1)
        await self.world.pause(program.least_s, program.most_s)
        await self._awake()
        if self.world.chance("agent fails under a running job", 0.03):
            self._halt(task)
            self._tell(task, job.AgentFailed(JobReason.EXECUTOR_ERROR, "the runner died"))
            failed = Result(exit_code=255, failure=Failure.EXECUTOR, ended_at=self.clock(), log_end=len(task.log))
            self._end(task, failed)
            return
        if self.alive and not program.endless:
            self._exit(task, program.ends(self.world.dice, self.world.theme.failing))
        while program.endless and self.alive and task.running:
            await self.world.pause(60.0, 60.0)

    async def _awake(self) -> None:
        while self.frozen and self.alive:
            await self.world.pause(5.0, 5.0)

    def _exit(self, task: Task, exited: job.Exited, limit: Failure | None = None) -> None:
        if self.frozen:
            self.world.later(5.0, lambda: self._exit(task, exited, limit))
            return
        if not task.running or task.ended is not None or not self.alive:
            return
        self._halt(task)
        self._write(task)
        self._end(task, _result(exited, limit, self.clock(), len(task.log)))
        self._step(task, shim.Exited(exited.exit_code, oom=exited.oom))
        self._tell(task, exited if limit is None else job.LimitExceeded(LIMITS[limit], "", exited))

        if exited.exit_code and not self.owned and self.world.chance("machine goes with the program", 0.4):
            self.world.provider.preempt(self.id, 0.0)

    def _halt(self, task: Task) -> None:
        if task.running:
            task.running = False
            self.world.process_ended(self, task.order.key)
        if task.process is not None and task.process is not asyncio.current_task():
            task.process.cancel()

    def _tell(self, task: Task, event: End) -> None:
        if task.ended is None:
            task.ended = event
        if self.reachable and not self.has_shim:
            self.world.post_job(task.order.job_id, task.order.run_id, task.order.attempt, event)

    def _write(self, task: Task) -> None:
        task.log += bytes(FRAME) * self.world.dice.randint(0, 3)
        self._changed(task)

    def _end(self, task: Task, result: Result) -> None:
        """Written down before anybody is told."""
        if task.result is None:
            task.result = result
            self._changed(task)

    def _changed(self, task: Task) -> None:
        self.seq += 1
        task.seq = self.seq
        self.news.set()

    def _step(self, task: Task, event: Event) -> None:
        step = shim.SHIM_TASK.step(task.record, event, self.world.now())
        task.record = step.record
        task.changed.set()
        self._changed(task)
        self.world.visited("shim task", step.row)


def _exit_code(result: Result | None) -> int | None:
    return None if result is None or result.failure is Failure.EXECUTOR else result.exit_code


def _result(exited: job.Exited, limit: Failure | None, ended_at: float, log_end: int) -> Result:
    return Result(
        exit_code=exited.exit_code, signal=exited.signal, oom=exited.oom, setup=exited.setup,
        failure=limit, ended_at=ended_at, log_end=log_end,
    )  # fmt: skip
