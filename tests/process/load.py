"""A server process for the kill test: a real engine, agents that answer at once, callers that note what they were told.

    python -m tests.process.load URL NAME LEDGER

SIGTERM: submit nothing more, but go on with everything that is open. SIGINT: stop in good order. The ledger is one
file of whole lines, appended to by all processes; a line is written only after what it says has happened.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from stoker.core.block import Blocks
from stoker.core.errors import StokerError, Unavailable
from stoker.core.family import found
from stoker.core.ids import InstanceId, JobId, ProjectId, RunId
from stoker.core.instance_facts import Instance, Launch, Launched, ShimAnswered
from stoker.core.job_facts import (
    AskStop,
    CleanedUp,
    Cleanup,
    Exited,
    RemoveTask,
    RunnerAccepted,
    StartTask,
    SubmitJob,
    TaskAccepted,
)
from stoker.core.machine import Effect, Event
from stoker.core.policy import Policy
from stoker.core.resources import Capacity, Request
from stoker.core.retry import Retry
from stoker.core.run_facts import StopAsked
from stoker.engine.change import Change, RunBirth, of_instance, of_job, of_run
from stoker.engine.engine import Engine, Settings
from stoker.engine.errand import Performer
from stoker.store.database import Database
from stoker.store.outbox import Errand

PROJECT = ProjectId(UUID(int=1))
CALLERS = 12
MOST_OPEN = 150
"""Unfinished runs in the whole cluster before callers pause: what is open at the end has to finish in the end."""
CPUS = 32
HELD_S = 0.5
TRY_AGAIN = 7
MARK = " ."
"""The end of a whole line; a write that a kill cut short has none."""

OPEN_RUNS = "SELECT count(*) FROM run WHERE state NOT IN ('TERMINATED', 'FAILED', 'DONE')"
OLD_RUNS = """
SELECT id FROM run WHERE state NOT IN ('TERMINATED', 'FAILED', 'DONE', 'TERMINATING') AND submitted_at <= $1
ORDER BY id LIMIT 100
"""


class Kind(Enum):
    """What becomes of a run: its id says it, so that any process can act its part, and the test can check it."""

    QUICK = Policy()
    HELD = Policy(stop_duration_s=600.0)
    """Runs until somebody stops it: when an acknowledged stop is lost, it never ends."""
    TIMED = Policy(max_duration_s=0.2)
    FLAKY = Policy(replicas=2, retry=Retry(on_exit_codes=frozenset({TRY_AGAIN})))


def kind_of(run: UUID) -> Kind:
    match run.int % 32:
        case 0:
            return Kind.FLAKY
        case 1 | 2:
            return Kind.TIMED
        case 3 | 4 | 5 | 6:
            return Kind.HELD
    return Kind.QUICK


def exit_code(job: UUID, attempt: int, kind: Kind) -> int:
    """Of a flaky run's jobs some fail at their first try."""
    return TRY_AGAIN if kind is Kind.FLAKY and attempt == 1 and job.int % 2 else 0


class Ledger:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        """Survives the process as soon as it returns, and the machine is not killed here."""
        os.write(self._file, ("\n" + " ".join(map(str, words)) + MARK + "\n").encode())


class Agents:
    """Do what they are asked at once, and note it before they answer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def performers(self) -> dict[type[Effect], Performer]:
        return {
            StartTask: self._job(lambda errand: (TaskAccepted(attempt=errand.attempt),)),
            SubmitJob: self._job(self._accepted),
            AskStop: self._job(lambda errand: (Exited(143, signal=15, attempt=errand.attempt),)),
            RemoveTask: self._job(lambda errand: (CleanedUp(Cleanup.REMOVE, attempt=errand.attempt),)),
            Launch: self._launch,
        }

    def _note(self, errand: Errand) -> None:
        self._ledger.write("did", errand.effect, errand.target, errand.fence, os.getpid())

    def _job(self, answer: Callable[[Errand], tuple[Event, ...]]) -> Performer:
        async def perform(errand: Errand, _: Any) -> Change:
            self._note(errand)
            job, run = JobId(errand.target), RunId(errand.family)
            return Change(facts=tuple(of_job(job, run, event) for event in answer(errand)))

        return perform

    @staticmethod
    def _accepted(errand: Errand) -> tuple[Event, ...]:
        accepted, kind = RunnerAccepted(attempt=errand.attempt), kind_of(errand.family)
        if kind in (Kind.HELD, Kind.TIMED):
            return (accepted,)
        return accepted, Exited(exit_code(errand.target, errand.attempt, kind), attempt=errand.attempt)

    async def _launch(self, errand: Errand, _: Launch) -> Change:
        self._note(errand)
        id = InstanceId(errand.target)
        return Change(facts=(of_instance(id, Launched("here")), of_instance(id, ShimAnswered())))


class Load:
    def __init__(self, database: Database, name: str, ledger: Ledger) -> None:
        self._database, self._ledger, self._name = database, ledger, name
        self._dice = random.Random()
        settings = Settings(name=name, heartbeat_s=0.3, dead_after_s=1.2, period_s=1.0)
        self.engine = Engine(database, settings, Agents(ledger).performers())
        self._room = asyncio.Event()
        self._draining = False

    async def run(self) -> None:
        loop, finish = asyncio.get_running_loop(), asyncio.Event()
        await patiently(self.engine.start)
        self._ledger.write("up", self._name, os.getpid())
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        loop.add_signal_handler(signal.SIGINT, finish.set)
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(self._gauge()), tasks.create_task(self._stop_old_ones())]
            begun += [tasks.create_task(self._caller()) for _ in range(CALLERS)]
            await self._host()
            await finish.wait()
            for task in begun:
                task.cancel()
        await patiently(self.engine.stop)

    def _drain(self) -> None:
        self._draining = True
        self._room.clear()

    async def _host(self) -> None:
        """Named after the process, so that its next life says the same birth again."""
        blocks = Blocks(Capacity(cpu=CPUS, memory_mb=65_536, disk_mb=100_000), CPUS)
        id = InstanceId(uuid5(NAMESPACE_OID, self._name.partition("-")[0]))
        host = Instance(id, None, "local", blocks, entered_at=self.engine.clock.now(), owned=True)
        await self._say(Change(instances=(host,)), "host", id)

    async def _caller(self) -> None:
        while True:
            await self._room.wait()
            id = RunId(self.engine.new_id())
            kind = kind_of(id)
            run = found(id, PROJECT, f"r-{id}", kind.value, self.engine.clock.now())
            await self._say(Change(runs=(RunBirth(run, Request()),)), "run", id)
            if kind is Kind.HELD:
                await asyncio.sleep(self._dice.uniform(0.0, HELD_S))
                await self._stop(id)

    async def _stop(self, id: RunId) -> None:
        await self._say(Change(facts=(of_run(id, StopAsked(by=self._name)),)), "stop", id)

    async def _say(self, change: Change, *words: object) -> None:
        """Until it is accepted; only then it is noted."""
        while True:
            try:
                await self.engine.commit(change)
                self._ledger.write(*words)
                return
            except Unavailable:
                continue
            except StokerError as error:
                self._ledger.write("trouble", repr(error))
                return

    async def _gauge(self) -> None:
        parent = os.getppid()
        while True:
            if os.getppid() != parent:
                os._exit(1)
            with suppress(Unavailable):
                async with self._database.connection() as connection:
                    open_runs: int = await connection.fetchval(OPEN_RUNS)
                if self._draining or open_runs > MOST_OPEN:
                    self._room.clear()
                else:
                    self._room.set()
            await asyncio.sleep(0.05)

    async def _stop_old_ones(self) -> None:
        """What a killed caller would have stopped. Both processes do it, and often stop the same run at once."""
        while True:
            with suppress(Unavailable):
                before = self.engine.clock.now() - (0.0 if self._draining else 2 * HELD_S)
                async with self._database.connection() as connection:
                    ids = [RunId(row["id"]) for row in await connection.fetch(OLD_RUNS, before)]
                await asyncio.gather(*(self._stop(id) for id in ids if kind_of(id) is Kind.HELD))
            await asyncio.sleep(0.2)


async def patiently(act: Callable[[], Awaitable[object]]) -> None:
    """PostgreSQL may be down, or go down, at any moment."""
    while True:
        try:
            await act()
            return
        except Unavailable:
            await asyncio.sleep(0.05)


async def main(url: str, name: str, path: str) -> None:
    opened: list[Database] = []

    async def connect() -> None:
        opened.append(await Database.connect(url, pool_size=6))

    await patiently(connect)
    async with opened[0] as database:
        await Load(database, name, Ledger(path)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
