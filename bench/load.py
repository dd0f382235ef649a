"""Callers that lead whole lives of runs through `commit`, as agents and performers would."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.family import found
from stoker.core.ids import InstanceId, JobId, ProjectId, RunId, uuid7
from stoker.core.instance_facts import Instance, Launched, ShimAnswered
from stoker.core.job_facts import CleanedUp, Cleanup, Exited, Job, Placed, RunnerAccepted, TaskAccepted
from stoker.core.limits import MOST_CHANGES
from stoker.core.machine import Event
from stoker.core.policy import Policy
from stoker.core.resources import Capacity, Request
from stoker.engine.batch import Batch
from stoker.engine.change import Change, RunBirth, of_instance, of_job
from stoker.engine.clock import DatabaseClock
from stoker.engine.commit import Committer
from stoker.engine.memory import Memory
from stoker.store import replica
from stoker.store.database import Database

PROJECT = ProjectId(UUID(int=1))
CAPACITY = Capacity(cpu=4, memory_mb=8192, disk_mb=10_000)


@dataclass(slots=True)
class Tally:
    """What happened between `start` and the end of a load."""

    transitions: int = 0
    commits: int = 0
    batches: int = 0
    latencies_s: list[float] = field(default_factory=list)


class Load:
    """One engine process's committer, and the bookkeeping around it."""

    def __init__(self, database: Database, lanes: int, *, coalesce: bool = True, remember: bool = True) -> None:
        self.database = database
        self.clock = DatabaseClock(database)
        self.dice = random.Random()
        self.committer = Committer(
            database, self.clock, self.new_id, self.saw, lanes=lanes, most_changes=MOST_CHANGES if coalesce else 1,
            memory=Memory() if remember else Memory(0, 0),
        )  # fmt: skip
        self.jobs: dict[RunId, JobId] = {}
        self.tally = Tally()

    async def ready(self) -> None:
        await self.clock.follow()
        async with self.database.transaction() as tx:
            self.committer.owner = await replica.register(tx, f"bench-{self.dice.getrandbits(64):x}", self.clock.now())

    def new_id(self) -> UUID:
        return uuid7(self.clock.now(), self.dice.getrandbits(80))

    def saw(self, batch: Batch) -> None:
        self.tally.batches += 1
        for moved in batch.moved:
            if moved.before is None or moved.before.state is not moved.after.state:
                self.tally.transitions += 1
            if moved.before is None and isinstance(moved.after, Job):
                self.jobs[moved.after.run_id] = moved.after.id

    async def host(self) -> Instance:
        """A machine that is up; each caller has its own."""
        one = Instance(InstanceId(self.new_id()), None, "bench", Blocks(CAPACITY, 4), entered_at=self.clock.now())
        await self.committer.commit(Change(instances=(one,)))
        facts = (of_instance(one.id, Launched("up")), of_instance(one.id, ShimAnswered()))
        await self.committer.commit(Change(facts=facts))
        return one

    async def caller(self, host: Instance, until: float) -> None:
        """Run after run, each event in a commit of its own."""
        while time.monotonic() < until:
            run = found(RunId(self.new_id()), PROJECT, str(self.dice.getrandbits(64)), Policy(), self.clock.now())
            await self.timed(Change(runs=(RunBirth(run, Request()),)))
            job = self.jobs.pop(run.id)
            events: tuple[Event, ...] = (
                Placed(host.id, (0,), attempt=1),
                TaskAccepted(attempt=1),
                RunnerAccepted(attempt=1),
                Exited(0, attempt=1),
                CleanedUp(Cleanup.REMOVE, attempt=1),
            )
            for event in events:
                await self.timed(Change(facts=(of_job(job, run.id, event),)))

    async def timed(self, change: Change) -> None:
        begun = time.perf_counter()
        await self.committer.commit(change)
        self.tally.latencies_s.append(time.perf_counter() - begun)
        self.tally.commits += 1

    async def run(self, callers: int, seconds: float) -> tuple[Tally, float]:
        """Returns what was done and how long it really took."""
        hosts = [await self.host() for _ in range(callers)]
        self.tally = Tally()
        begun = time.monotonic()
        await asyncio.gather(*(self.caller(host, begun + seconds) for host in hosts))
        return self.tally, time.monotonic() - begun
