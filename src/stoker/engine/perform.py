"""Performers of what a job wishes of its host: each safe to run twice, each result the next fact.

The agents refuse an order that is older than one they have seen for the same task. Then the wish has an heir, whose
performer says what came of it, and this one has nothing to say.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from stoker.core.errors import NOT_YET, Conflict, NotFound, StokerError, Unavailable, UserError
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.job_facts import (
    AgentFailed,
    AskStop,
    CleanedUp,
    Cleanup,
    DetachVolumes,
    Exited,
    LimitExceeded,
    RemoveTask,
    RunnerAccepted,
    StartTask,
    SubmitJob,
    TaskAccepted,
    Unregister,
    Warn,
)
from stoker.core.limits import LONGEST_GRACE_S
from stoker.core.machine import Effect, Event
from stoker.core.reason import JobReason
from stoker.core.shim_task import S
from stoker.core.warning import Deadline as Cause
from stoker.engine.agent import NO_WAY, Agents, Shim
from stoker.engine.attachment import VOLUME
from stoker.engine.change import Change, of_job
from stoker.engine.errand import Performer
from stoker.engine.log_pump import LogPump
from stoker.engine.news import End, end_of, task_lost
from stoker.store.outbox import Errand
from stoker.wire.runner import Deadline, JobOrder, Stop
from stoker.wire.shim import TaskOrder, Terminate

FENCED = "fenced"
STOPPED = "stopped"
"""The runner was stopped before its order came; news of its end is on the way."""
REMEMBERED = 1024
TERMINATION_S = 5.0
"""How long one call waits for a task to end; then the errand is tried again."""


Tell = Callable[[Change], Awaitable[object]]


class Orders(Protocol):
    """What is to be run, and where; read when the errand is performed, so it is as fresh as can be."""

    async def place(self, job_id: JobId) -> InstanceId: ...

    async def task(self, errand: Errand, job: JobOrder | None) -> TaskOrder:
        """With the job that its runner is given as it starts."""
        ...

    async def job(self, errand: Errand) -> JobOrder: ...


class Attachments(Protocol):
    """Volumes that are not the host's own."""

    async def attached(self, instance_id: InstanceId, order: TaskOrder) -> TaskOrder: ...

    async def detach(self, job_id: JobId, *, force: bool) -> None: ...


class NoAttachments:
    async def attached(self, instance_id: InstanceId, order: TaskOrder) -> TaskOrder:
        return order

    async def detach(self, job_id: JobId, *, force: bool) -> None:
        """There are none."""


class JobPerformers:
    def __init__(
        self, agents: Agents, orders: Orders, pump: LogPump, tell: Tell, now: Callable[[], float],
        attachments: Attachments | None = None,
    ) -> None:  # fmt: skip
        """`tell` commits what must be known before a performer may go on; `now` is the engine's time."""
        self._attachments = attachments or NoAttachments()
        self._agents, self._orders, self._pump, self._tell, self._now = agents, orders, pump, tell, now
        self._sockets: OrderedDict[UUID, str] = OrderedDict()
        """Of runners that have just started, so that nobody is asked twice."""

    def performers(self) -> dict[type[Effect], Performer]:
        return {
            StartTask: self.start_task,
            SubmitJob: self.submit_job,
            Warn: self.warn,
            AskStop: self.ask_stop,
            RemoveTask: self.remove_task,
            Unregister: self.unregister,
            DetachVolumes: self.detach_volumes,
        }

    async def start_task(self, errand: Errand, effect: StartTask) -> Change:
        """Where its runner is there at once, as processes are, it has the job that came along: one commit for both. A
        node of several waits for the others."""
        try:
            job = await self._orders.job(errand) if effect.alone else None
            order = await self._orders.task(errand, job)
            # Known from the orders.
            place = await self._place(errand)
            order = await self._attachments.attached(place, order)
            task = await (await self._agents.shim(place)).submit(order)
        except NotFound:
            # It is on no machine any more; whether it is still wanted is looked at before the next try.
            raise
        except StokerError as error:
            return _not_begun(errand, error)
        accepted = TaskAccepted(attempt=errand.attempt)
        if job is not None and task.job_taken:
            # It may have ended already.
            return _said(errand, accepted, _taken(errand, job))
        if task.state is not S.RUNNING:
            return _said(errand, accepted)
        if job is None:
            self._remember(errand.target, task.socket)
            return _said(errand, accepted)
        try:
            await self._agents.runner(place, JobId(errand.target), task.socket).run(job)
        except StokerError:
            # The wish to submit it comes next, and says what came of it.
            self._remember(errand.target, task.socket)
            return _said(errand, accepted)
        return _said(errand, accepted, _taken(errand, job))

    async def submit_job(self, errand: Errand, effect: SubmitJob) -> Change:
        place, order = await self._place(errand), await self._orders.job(errand)
        try:
            socket = self._sockets.pop(errand.target, "") or await self._socket(place, errand)
            await self._agents.runner(place, JobId(errand.target), socket).run(order)
        except NotFound:
            return _said(errand, task_lost(errand.attempt))
        except StokerError as error:
            return _not_begun(errand, error)
        return _said(errand, _taken(errand, order))

    async def warn(self, errand: Errand, effect: Warn) -> Change:
        """How its program takes it is its own affair; that the job ended meanwhile is told by whoever watches."""
        shim = await self._shim(errand)
        in_s = None if effect.at is None else max(0.0, effect.at - self._now())
        try:
            task = await shim.task(errand.target)
            if task.state is S.RUNNING and task.result is None:
                runner = self._agents.runner(await self._place(errand), JobId(errand.target), task.socket)
                await runner.set_deadline(Deadline(fence=errand.fence, in_s=in_s, reason=Cause(effect.deadline)))
        except NotFound:
            return Change()
        except StokerError as error:
            return _refused(errand, error)
        return Change()

    async def ask_stop(self, errand: Errand, effect: AskStop) -> Change:
        """Its end is news of its own, told by whoever watches the host; unless it has ended before anybody asked."""
        shim = await self._shim(errand)
        try:
            task = await shim.task(errand.target)
            if (end := end_of(task, errand.attempt)) is not None:
                return _said(errand, end)
            if task.state is S.RUNNING:
                runner = self._agents.runner(await self._place(errand), JobId(errand.target), task.socket)
                grace_s = None if effect.grace_s is None else min(effect.grace_s, LONGEST_GRACE_S)
                await runner.stop(Stop(fence=errand.fence, grace_s=grace_s))
        except NotFound:
            return _said(errand, task_lost(errand.attempt))
        except StokerError as error:
            return _refused(errand, error)
        return Change()

    async def remove_task(self, errand: Errand, effect: RemoveTask) -> Change:
        """The task is ended first, then its logs are read to their end, and only then is anything forgotten."""
        try:
            shim = await self._shim(errand)
            ended = await self._end(shim, errand, min(effect.grace_s, LONGEST_GRACE_S))
            if isinstance(ended, Exited | LimitExceeded) and not effect.known:
                # It would be gone with the task: committed here before it is forgotten there.
                await self._tell(_said(errand, ended))
            await shim.remove(errand.target, errand.fence)
        except StokerError as error:
            # Who was never spoken to has no task of ours: nobody waits for a machine that is still on its way.
            if error.code != NO_WAY:
                return _refused(errand, error)
        return _said(errand, CleanedUp(Cleanup.REMOVE, attempt=errand.attempt))

    async def unregister(self, errand: Errand, effect: Unregister) -> Change:
        return _said(errand, CleanedUp(Cleanup.UNREGISTER, attempt=errand.attempt))

    async def detach_volumes(self, errand: Errand, effect: DetachVolumes) -> Change:
        await self._attachments.detach(JobId(errand.target), force=self._now() >= effect.force_at)
        return _said(errand, CleanedUp(Cleanup.DETACH, attempt=errand.attempt))

    async def _socket(self, place: InstanceId, errand: Errand) -> str:
        task = await (await self._agents.shim(place)).task(errand.target)
        if task.state is not S.RUNNING:
            # News of its end, if that is why, comes from whoever watches the host.
            raise Unavailable("The runner has not started yet.", code=NOT_YET, retry_after_s=0.05)
        return task.socket

    def _remember(self, id: UUID, socket: str) -> None:
        self._sockets[id] = socket
        while len(self._sockets) > REMEMBERED:
            self._sockets.popitem(last=False)

    async def _end(self, shim: Shim, errand: Errand, grace_s: float) -> End | None:
        """How its commands ended, where anybody knows."""
        try:
            task = await shim.terminate(errand.target, Terminate(fence=errand.fence, grace_s=grace_s), TERMINATION_S)
        except NotFound:
            return None
        if task.state is not S.TERMINATED:
            raise Unavailable(task.cleanup_error or "The task is still ending.", retry_after_s=0.1)
        await self._pump.collect(shim, task)
        return end_of(task, errand.attempt)

    async def _shim(self, errand: Errand) -> Shim:
        return await self._agents.shim(await self._place(errand))

    async def _place(self, errand: Errand) -> InstanceId:
        return await self._orders.place(JobId(errand.target))


def _taken(errand: Errand, order: JobOrder) -> RunnerAccepted:
    """With the limit that it was given: that may have changed since the order was written."""
    limit_s = math.inf if order.max_duration_s is None else order.max_duration_s
    return RunnerAccepted(limit_s, attempt=errand.attempt)


def _not_begun(errand: Errand, error: StokerError) -> Change:
    """What an agent will never do is said at once, in its own words; asking again would only take time."""
    if isinstance(error, UserError) and error.code not in (FENCED, STOPPED):
        reason = JobReason.VOLUME_ERROR if error.code == VOLUME else JobReason.EXECUTOR_ERROR
        event = AgentFailed(reason, error.sentence, attempt=errand.attempt)
        return _said(errand, event)
    return _refused(errand, error)


def _refused(errand: Errand, error: StokerError) -> Change:
    """An order that somebody's later one overtook is nobody's any more; whatever else went wrong is tried again."""
    if isinstance(error, Conflict) and error.code == FENCED:
        return Change()
    raise error


def _said(errand: Errand, *events: Event) -> Change:
    return Change(facts=tuple(of_job(JobId(errand.target), RunId(errand.family), event) for event in events))
