"""Watches hosts: one long poll to each shim, so that news arrives in milliseconds and silence is noticed.

Each host is watched by one replica; when that one dies, another finds the host unwatched. News is passed on before
the cursor moves, so what could not be committed is heard again. Silence is counted from this replica's own first try:
a server that was away gives every host a full new period.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from uuid import UUID

import structlog

from stoker.core import instance_facts as inst
from stoker.core import job_facts as job
from stoker.core.errors import Conflict, NotFound, StokerError, Unavailable
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.shim_task import S as TaskState
from stoker.engine.agent import Agents, Shim
from stoker.engine.change import Change, Fact, of_instance, of_job
from stoker.engine.commit import Committer
from stoker.engine.log_pump import LogPump
from stoker.engine.loop import Counts
from stoker.engine.news import end_of, task_lost
from stoker.engine.pulls import Pulls
from stoker.store import host as host_store
from stoker.store import instance as instance_store
from stoker.store.database import Database
from stoker.store.host import Resident
from stoker.wire.shim import Changes, TaskInfo, Terminate

POLL_S = 30.0
"""How long a shim may wait before it says that nothing has changed."""
SILENT_AFTER_S = 15.0
"""Of failed tries, before a host is called unreachable."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 5.0
SWEEP_S = 5.0
COMPLETE_S = 300.0
"""How often all tasks of a host are looked at, whatever it says has changed."""

log = structlog.get_logger()

Refused = Callable[[Fact, StokerError], None]


def _say_refused(fact: Fact, error: StokerError) -> None:
    """True news that a table has no answer to: the table has a hole, and nobody else is held up by it."""
    log.error("news was refused", fact=repr(fact), error=str(error))


class Watch:
    """Which hosts this replica watches. `once` is a loop of the engine."""

    def __init__(
        self,
        database: Database,
        committer: Committer,
        agents: Agents,
        pump: LogPump,
        epoch: Callable[[], int],
        refused: "Refused | None" = None,
        pulls: Pulls | None = None,
    ) -> None:
        self._database, self._committer, self._agents, self._pump = database, committer, agents, pump
        self._epoch, self._refused, self._pulls = epoch, refused or _say_refused, pulls or Pulls()
        self._hosts: dict[InstanceId, asyncio.Task[None]] = {}

    async def once(self) -> Counts:
        async with self._database.transaction() as tx:
            wanted = await host_store.watch(tx, self._epoch())
        for id in self._hosts.keys() - wanted:
            self._hosts.pop(id).cancel()
        fresh = [id for id in wanted if id not in self._hosts or self._hosts[id].done()]
        for id in fresh:
            watch = HostWatch(id, self._database, self._committer, self._agents, self._pump, self._refused, self._pulls)
            self._hosts[id] = asyncio.get_running_loop().create_task(watch.run(), name=f"watch {id}")
        return Counts(len(fresh))

    async def stop(self) -> None:
        tasks = list(self._hosts.values())
        self._hosts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HostWatch:
    def __init__(
        self,
        id: InstanceId,
        database: Database,
        committer: Committer,
        agents: Agents,
        pump: LogPump,
        refused: Refused,
        pulls: Pulls,
    ) -> None:
        self.id, self._refused, self._pulls = id, refused, pulls
        self._database, self._committer, self._agents, self._pump = database, committer, agents, pump
        self._cursor = ""
        self._unswept = False
        """A task that nobody wants could not be removed: look at all of them again."""
        self._complete_at = float("-inf")
        self._silent_since: float | None = None
        self._failures = 0
        self._residents: dict[UUID, Resident] = {}
        """Those of the last look: their runs and attempts never change, so only an unknown one needs another."""
        self._told: set[UUID] = set()
        """Those among them whose result was told, until all tasks are looked at again."""
        self._taken: set[UUID] = set()
        """Those of which was told that their runner has its job."""
        self._state = ("", False)
        """As it was told last; a complete look compares it with what is stored."""
        self._errands: dict[JobId, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self.look()
        finally:
            for task in self._errands.values():
                task.cancel()

    async def look(self) -> None:
        """One answer of the shim, or one failure to get it."""
        try:
            shim = await self._agents.shim(self.id)
            if self._look_at_all():
                self._cursor, self._unswept = "", False
            changes = await shim.changes(self._cursor, POLL_S if self._cursor else 0.0)
            await self._hear(shim, changes)
        except StokerError as error:
            await self._miss(error)
        else:
            self._cursor, self._failures = changes.cursor, 0
            if changes.complete:
                self._complete_at = asyncio.get_running_loop().time()

    def _look_at_all(self) -> bool:
        """A job may have been given up while its host was away, and its task is no news to the host."""
        old = asyncio.get_running_loop().time() - self._complete_at > COMPLETE_S
        return old or self._unswept or self._failures > 0

    async def _hear(self, shim: Shim, changes: Changes) -> None:
        state = (changes.health, bool(changes.docker))
        ails = state != self._state
        if not changes.tasks and not changes.complete and not ails:
            # When nothing changes nothing is read and nothing is written; a complete look comes soon enough.
            return
        facts: list[Fact | None] = []
        examined: list[Fact] = []
        if changes.complete or ails or self._silent_since is not None or not self._knows(changes):
            async with self._database.connection() as connection:
                instance = await instance_store.get(connection, self.id)
                self._residents = {one.id: one for one in await host_store.residents(connection, self.id)}
            self._taken &= self._residents.keys()
            facts += self._answered(instance, self._residents.values())
            if (instance.health, instance.blocks.capacity.docker) != state:
                examined.append(of_instance(self.id, inst.Examined(*state)))
        told = set[UUID]() if changes.complete else self._told & self._residents.keys()
        for task in changes.tasks:
            if (resident := self._residents.get(task.id)) is not None:
                if task.id not in told and (fact := _about(task, resident)) is not None:
                    facts.append(fact)
                    if task.result is not None:
                        told.add(task.id)
                if task.id not in self._taken and (late := _taken_late(task, resident)) is not None:
                    facts.append(late)
                    self._taken.add(task.id)
                self._pulls.heard(resident.run_id, task)
                self._follow(task)
        if changes.complete:
            known = {task.id for task in changes.tasks}
            facts += [await _about_missing(shim, one) for one in self._residents.values() if one.id not in known]
        await self._tell(fact for fact in facts if fact is not None)
        # After the word that it answers: of a machine that is still coming nobody asks how it is.
        await self._tell(examined)
        self._silent_since, self._told, self._state = None, told, state
        for task in changes.tasks:
            if task.id not in self._residents:
                self._beside(JobId(task.id), self._sweep(shim, task))

    def _knows(self, changes: Changes) -> bool:
        return all(task.id in self._residents for task in changes.tasks)

    def _answered(self, instance: Instance, residents: Iterable[Resident]) -> list[Fact]:
        facts: list[Fact] = []
        if instance.state is inst.S.PROVISIONING:
            facts.append(of_instance(self.id, inst.ShimAnswered()))
        elif instance.unreachable_since is not None:
            facts.append(of_instance(self.id, inst.Heard()))
        for one in residents:
            if one.unreachable_since is not None:
                facts.append(of_job(JobId(one.id), RunId(one.run_id), job.Heard(attempt=one.attempt)))
        return facts

    async def _miss(self, error: StokerError) -> None:
        now = asyncio.get_running_loop().time()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= SILENT_AFTER_S and isinstance(error, Unavailable | NotFound):
            await self._say_silent(error)
        self._failures += 1
        await asyncio.sleep(min(FIRST_RETRY_S * 2 ** min(self._failures, 8), LONGEST_RETRY_S))

    async def _say_silent(self, error: StokerError) -> None:
        try:
            async with self._database.connection() as connection:
                instance = await instance_store.get(connection, self.id)
                residents = await host_store.residents(connection, self.id)
            facts: list[Fact] = []
            if instance.state in inst.UP and instance.unreachable_since is None:
                log.warning("host does not answer", instance=str(self.id), error=str(error))
                facts.append(of_instance(self.id, inst.Silent()))
            for one in residents:
                if one.unreachable_since is None:
                    facts.append(of_job(JobId(one.id), RunId(one.run_id), job.Silent(attempt=one.attempt)))
            await self._tell(facts)
        except StokerError as lost:
            # It is the database that does not answer; the next miss says it again.
            log.warning("silence could not be told", instance=str(self.id), error=str(lost))

    async def _tell(self, facts: Iterable[Fact]) -> None:
        """Each in a change of its own, so that one that is refused does not keep the others from being heard."""
        told = list(facts)
        tellings = (self._committer.commit(Change(facts=(fact,))) for fact in told)
        for fact, answer in zip(told, await asyncio.gather(*tellings, return_exceptions=True), strict=True):
            if isinstance(answer, Conflict):
                self._refused(fact, answer)
            elif isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer

    def _follow(self, task: TaskInfo) -> None:
        """Logs come along while a job runs, not only at its end: a host may be lost."""
        if task.state is TaskState.RUNNING and task.result is None and task.log_end:
            id = JobId(task.id)
            self._beside(id, self._pump.drain(self.id, id, task.socket))

    def _beside(self, id: JobId, work: Coroutine[Any, Any, None]) -> None:
        """Not in the way of news; one thing at a time for one task."""
        if id in self._errands:
            work.close()
            return
        self._errands[id] = asyncio.get_running_loop().create_task(work)
        self._errands[id].add_done_callback(lambda done: self._ended(id, done))

    def _ended(self, id: JobId, done: "asyncio.Task[None]") -> None:
        self._errands.pop(id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("a task was not looked after", instance=str(self.id), task=str(id), error=str(error))

    async def _sweep(self, shim: Shim, task: TaskInfo) -> None:
        """A task whose submission is over is stopped and removed: so is a host cleaned that was away."""
        try:
            async with self._database.connection() as connection:
                fence = await host_store.next_fence(connection)
            ended = await shim.terminate(task.id, Terminate(fence=fence), SWEEP_S)
            if ended.state is TaskState.TERMINATED:
                await shim.remove(task.id, fence)
                log.info("removed a task that nobody wants", instance=str(self.id), task=str(task.id))
        except NotFound:
            return
        except StokerError:
            self._unswept = True
            raise


def _about(task: TaskInfo, resident: Resident) -> Fact | None:
    event = end_of(task, resident.attempt)
    return None if event is None else of_job(JobId(resident.id), RunId(resident.run_id), event)


def _taken_late(task: TaskInfo, resident: Resident) -> Fact | None:
    """Its image took so long to come that nobody waited for the runner to take its job."""
    if not task.job_taken or task.result is not None or resident.state != job.S.PULLING:
        return None
    return of_job(JobId(resident.id), RunId(resident.run_id), job.RunnerAccepted(attempt=resident.attempt))


async def _about_missing(shim: Shim, resident: Resident) -> Fact | None:
    """Asked once more, since the shim may have got the task after it had answered."""
    if resident.state not in (job.S.PULLING, job.S.RUNNING, job.S.TERMINATING):
        return None
    try:
        return _about(await shim.task(resident.id), resident)
    except NotFound:
        return of_job(JobId(resident.id), RunId(resident.run_id), task_lost(resident.attempt))
