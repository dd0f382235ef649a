"""A committer without an engine around it, and what callers say to it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from stoker.core.family import found
from stoker.core.ids import ProjectId, RunId
from stoker.core.policy import Policy
from stoker.core.resources import Request
from stoker.core.run_facts import StopAsked
from stoker.engine.batch import Batch
from stoker.engine.change import Change, RunBirth, of_run
from stoker.engine.clock import DatabaseClock
from stoker.engine.commit import Committer
from stoker.store.database import Database
from tests.engine.conftest import ask

PROJECT = ProjectId(uuid4())


@dataclass
class Desk:
    """Of one replica."""

    db: Database
    committer: Committer
    clock: DatabaseClock
    batches: list[Batch] = field(default_factory=list)

    def birth(self, name: str = "", **policy: Any) -> Change:
        id = uuid4()
        run = found(RunId(id), PROJECT, name or str(id), Policy(**policy), self.clock.now())
        return Change(runs=(RunBirth(run, Request()),))

    def stop(self, birth: Change) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.committer.commit(Change(facts=(of_run(run_of(birth), StopAsked()),))))

    async def births(self, count: int, **policy: Any) -> list[Change]:
        changes = [self.birth(**policy) for _ in range(count)]
        await asyncio.gather(*map(self.committer.commit, changes))
        return changes


async def desk_on(db: Database, listener: Callable[[Batch], None] | None = None) -> Desk:
    clock, batches = DatabaseClock(db), list[Batch]()
    await clock.follow()
    return Desk(db, Committer(db, clock, uuid4, listener or batches.append), clock, batches)


def run_of(birth: Change) -> RunId:
    return birth.runs[0].run.id


async def state_of(db: Database, birth: Change) -> str:
    return str(await ask(db, "SELECT state FROM run WHERE id = $1", run_of(birth)))
