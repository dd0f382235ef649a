"""Deadlines: told when they come, not when a period is over."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

from stoker.core.commitment import Moved
from stoker.core.errors import Unavailable
from stoker.core.family import found
from stoker.core.ids import ProjectId, RunId
from stoker.core.instance_facts import Destroy, Launch
from stoker.core.job_facts import Exited
from stoker.core.limits import LAUNCH_S
from stoker.core.policy import Policy
from stoker.core.run_facts import S
from stoker.engine.change import Change, of_job
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.hint import PLACEMENT
from stoker.engine.presence import Presence
from stoker.engine.timer import Timer
from stoker.store.database import Database
from stoker.store.outbox import Errand
from tests.conftest import Databases
from tests.engine.conftest import NEVER_S, ask, die, engine_with, eventually, eventually_passes
from tests.engine.test_engine import Agents, host, run_of, until


async def test_a_job_that_runs_too_long_is_ended_on_time(database: Databases) -> None:
    """Its deadline is the only one, and no period would come to its help."""
    async with database() as db, engine_with(db, Agents(exit_code=None).performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine, max_duration_s=0.2)
        await engine.commit(Change(runs=(birth,)))
        await until(db, birth.run.id, "RUNNING")
        begun = time.monotonic()
        assert await until(db, birth.run.id, "TERMINATED", "FAILED") == "TERMINATED"
        assert time.monotonic() - begun < 2.0
        assert await ask(db, "SELECT reason FROM job") == "MAX_DURATION_EXCEEDED"
        late_s = await ask(db, "SELECT at - (SELECT running_at FROM job) FROM journal WHERE event = 'TimeUp'")
        assert 0.2 <= late_s <= 1.0


async def test_a_nearer_deadline_comes_before_the_one_that_was_waited_for(database: Databases) -> None:
    async with database() as db, engine_with(db, Agents(exit_code=None).performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        births = [run_of(engine, f"r{limit_s}", max_duration_s=limit_s) for limit_s in (500.0, 30.0, 0.3, 0.1)]
        for birth in births:
            await engine.commit(Change(runs=(birth,)))
            await until(db, birth.run.id, "RUNNING", "TERMINATING", "TERMINATED")
        for birth in reversed(births[2:]):
            assert await until(db, birth.run.id, "TERMINATED") == "TERMINATED"
        assert await ask(db, "SELECT count(*) FROM run WHERE state = 'RUNNING'") == 2


async def test_the_deadlines_of_a_dead_replica_are_told_by_another(database: Databases) -> None:
    """Deadlines are columns: who set one need not live until it comes."""
    performers = Agents(exit_code=None).performers()
    async with (
        database() as db,
        engine_with(db, performers, "a") as a,
        engine_with(db, performers, "b", without=[PLACEMENT], period_s=0.3),
    ):
        await a.commit(Change(instances=(host(a),)))
        birth = run_of(a, max_duration_s=0.5)
        await a.commit(Change(runs=(birth,)))
        await until(db, birth.run.id, "RUNNING")
        await die(a)
        assert await until(db, birth.run.id, "TERMINATED", "FAILED") == "TERMINATED"


async def test_a_server_that_was_away_listens_before_it_says_that_a_job_ran_too_long(database: Databases) -> None:
    """The job ended in time while nobody was there; the deadline passed too. What it did is heard first."""
    performers = Agents(exit_code=None).performers()
    async with database() as db:
        async with engine_with(db, performers, "a") as a:
            await a.commit(Change(instances=(host(a),)))
            birth = run_of(a, max_duration_s=0.5)
            await a.commit(Change(runs=(birth,)))
            await until(db, birth.run.id, "RUNNING")
            await die(a)
        await eventually(lambda: ask(db, f"SELECT deadline_at < {time.time()} FROM job"), "its time is up")
        async with engine_with(db, performers, "b") as b:
            await b.loops["timer"]._once()
            assert await ask(db, "SELECT state FROM run") == "RUNNING"
            exited = Exited(0, ago_s=0.3, attempt=1)
            await b.commit(Change(facts=(of_job(await ask(db, "SELECT id FROM job"), birth.run.id, exited),)))
            assert await until(db, birth.run.id, "DONE", "TERMINATED", "FAILED") == "DONE"


class Meanwhile:
    """A database in which something is committed while the next deadline is being asked for."""

    def __init__(self, happens: Callable[[], None], answer: float | None) -> None:
        self._happens, self._answer = happens, answer

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["Meanwhile"]:
        yield self

    async def fetchval(self, statement: str, *arguments: object) -> float | None:
        self._happens()
        return self._answer


class Nothing:
    """Nothing is due."""

    async def commit_planned(self, key: int, plan: Callable[..., Awaitable[Any]]) -> list[Any]:
        return []


class Standing:
    def now(self) -> float:
        return 1000.0


async def test_a_deadline_set_while_the_next_one_is_asked_for_is_not_slept_over() -> None:
    """The answer is older than the commit: without being woken again it would wait until the period is over."""
    woken: list[str] = []
    run = found(RunId(uuid4()), ProjectId(uuid4()), "r", Policy(), 0.0)
    pending = replace(run, state=S.PENDING, resume_at=1001.0)

    def commit() -> None:
        timer.saw([Moved("run", run, pending, None, None)], woken.append)

    database = Meanwhile(commit, 1000.0 + NEVER_S)
    timer = Timer(cast(Database, database), cast(Clock, Standing()), cast(Committer, Nothing()), Presence(NEVER_S))
    await timer.once()
    assert woken == ["timer"]


async def test_a_record_that_cannot_be_told_keeps_nobody_else_waiting(database: Databases) -> None:
    """PostgreSQL refuses what the timer has to say to one run: the others hear it on time, and that one is not asked
    without end. When it is mended, it is told."""
    async with database() as db, engine_with(db, Agents(exit_code=None).performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        births = [run_of(engine, name, max_duration_s=0.3) for name in ("sick", "sound", "other")]
        async with db.transaction() as tx:
            await tx.execute("ALTER TABLE run ADD CONSTRAINT sickness CHECK (name <> 'sick' OR state <> 'TERMINATING')")
        for birth in births:
            await engine.commit(Change(runs=(birth,)))
            await until(db, birth.run.id, "RUNNING", "TERMINATED")
        begun, passes = time.monotonic(), engine.loops["timer"].passes
        for birth in births[1:]:
            assert await until(db, birth.run.id, "TERMINATED", "FAILED", deadline_s=3.0) == "TERMINATED"
        await eventually_passes(1.0)
        seconds = time.monotonic() - begun
        assert engine.loops["timer"].bugs > 0 and engine.loops["timer"].failures == 0
        assert engine.loops["timer"].passes - passes < 30 + 5 * seconds
        assert await ask(db, "SELECT state FROM run WHERE name = 'sick'") == "RUNNING"
        async with db.transaction() as tx:
            await tx.execute("ALTER TABLE run DROP CONSTRAINT sickness")
        assert await until(db, births[0].run.id, "TERMINATED", "FAILED") == "TERMINATED"


async def test_a_deadline_that_nobody_serves_is_not_told_without_end(database: Databases) -> None:
    async with database() as db, engine_with(db, Agents(exit_code=None).performers()) as engine:
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        async with db.transaction() as tx:
            await tx.execute("UPDATE run SET deadline_at = 1.0")
        passes = engine.loops["timer"].passes
        engine.wake("timer")
        await eventually_passes(1.0)
        assert 2 <= engine.loops["timer"].passes - passes < 30


class Deaf(Agents):
    """A provider that neither takes nor refuses the launch, and destroys what carries the tag."""

    def __init__(self) -> None:
        super().__init__(exit_code=None)
        self.called: list[str] = []

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        self.called.append("launch")
        raise Unavailable("The provider does not answer.")

    async def destroy(self, errand: Errand, effect: Destroy) -> Change:
        self.called.append("destroy")
        return await super().destroy(errand, effect)


async def test_a_machine_that_the_provider_never_answers_for_keeps_no_job_waiting(database: Databases) -> None:
    """It is destroyed by our id all the same, nobody asks for it any more, and its job goes where there is room."""
    deaf = Deaf()
    async with database() as db, engine_with(db, deaf.performers()) as engine:
        machine = replace(host(engine), owned=False)
        await engine.commit(Change(instances=(replace(machine, entered_at=machine.entered_at - LAUNCH_S + 0.6),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await eventually(lambda: ask(db, "SELECT instance_id FROM job"), "the job waits for the machine")
        ended = "SELECT message FROM instance WHERE state = 'TERMINATED'"
        await eventually(lambda: ask(db, ended), "the machine is given up")
        assert await ask(db, ended) == "no provider answered within 900 s"
        assert deaf.called[-1] == "destroy" and "launch" in deaf.called
        await eventually(lambda: ask(db, "SELECT instance_id IS NULL FROM job"), "the job waits in the queue again")
        await eventually(lambda: ask(db, "SELECT count(*) = 0 FROM outbox"), "nobody asks for the machine any more")
        assert await ask(db, "SELECT state FROM job") == "SUBMITTED"
