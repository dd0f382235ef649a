"""Runs as people see them: pages that do not move, filters, and deletion in two steps."""

from uuid import UUID, uuid4

import pytest

from stoker.core.ids import JobId, ProjectId, RunId, uuid7
from stoker.core.job_facts import Job
from stoker.core.policy import Policy
from stoker.core.run_facts import FINISHED, Run, S
from stoker.store import job as job_store
from stoker.store import run as run_store
from stoker.store import run_list, run_spec
from stoker.store.bundle import Bundle
from stoker.store.database import Connection, Database
from stoker.store.run_list import Filter
from stoker.store.run_spec import RunSpec
from tests.conftest import Databases

PROJECT = ProjectId(UUID(int=1))
CONFIGURATION = '{"type": "task", "commands": ["true"]}'


async def store(tx: Connection, at: float, state: S = S.DONE, name: str = "", user: str = "ada") -> Run:
    id = RunId(uuid7(at, uuid4().int & (2**80 - 1)))
    run = Run(id, PROJECT, name or f"r{id.hex}", Policy(), submitted_at=at, state=state, entered_at=at + 5, version=3)
    bundle = Bundle()
    run_store.insert(bundle, [run], {id: "{}"})
    run_spec.insert(bundle, [RunSpec(id, PROJECT, run.name, user, "task", CONFIGURATION)])
    await bundle.write(tx)
    bundle = Bundle()
    job_store.insert(
        bundle, [Job(JobId(uuid4()), id, 0, 0, attempt, Policy(), at, latest=attempt == 2, running_at=at + attempt)
                 for attempt in (1, 2)]
    )  # fmt: skip
    await bundle.write(tx)
    return run


async def names(db: Database, chosen: Filter = Filter(), limit: int = 50) -> list[str]:  # noqa: B008 - frozen
    async with db.connection() as connection:
        return [one.name for one in await run_list.page(connection, PROJECT, chosen, None, limit)]


async def test_pages_go_from_new_to_old_and_do_not_move_while_runs_are_submitted(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        for number in range(10):
            await store(tx, 100.0 + number, name=f"r{number}")
        first = await run_list.page(tx, PROJECT, Filter(), None, 4)
        await store(tx, 500.0, name="late")
        second = await run_list.page(tx, PROJECT, Filter(), first[-1].id, 4)
        third = await run_list.page(tx, PROJECT, Filter(), second[-1].id, 4)
        told = [one.name for one in (*first, *second, *third)]
        assert told == [f"r{number}" for number in range(9, -1, -1)]
        assert first[0].started_at == 110.0
        assert first[0].user == "ada"


@pytest.mark.parametrize("state", list(S))
async def test_each_status_is_found_and_no_other(database: Databases, state: S) -> None:
    async with database() as db:
        async with db.transaction() as tx:
            for number, one in enumerate(S):
                await store(tx, 100.0 + number, one, one.value.lower())
        assert await names(db, Filter(states=frozenset({state}))) == [state.value.lower()]
        active = [one.value.lower() for one in reversed(list(S)) if one not in FINISHED]
        assert await names(db, Filter(active=True)) == active
        assert await names(db, Filter(active=False)) == ["done", "failed", "terminated"]
        both = frozenset({S.RUNNING, S.DONE})
        assert await names(db, Filter(states=both)) == ["done", "running"]
        assert await names(db, Filter(states=both, active=True)) == ["running"]
        assert await names(db, Filter(states=frozenset({S.DONE}), active=True)) == []


async def test_a_list_is_cut_by_name_user_type_and_time(database: Databases) -> None:
    async with database() as db:
        async with db.transaction() as tx:
            await store(tx, 100.0, name="a")
            await store(tx, 200.0, name="b", user="eve")
            await store(tx, 300.0, name="a", state=S.RUNNING)
        assert await names(db, Filter(name="a")) == ["a", "a"]
        assert await names(db, Filter(name="a", active=False)) == ["a"]
        assert await names(db, Filter(user="eve")) == ["b"]
        assert await names(db, Filter(type="service")) == []
        assert await names(db, Filter(since=150.0)) == ["a", "b"]
        assert await names(db, Filter(since=150.0, user="ada", type="task")) == ["a"]


async def test_a_name_means_the_run_that_was_submitted_last(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        await store(tx, 100.0, name="a")
        second = await store(tx, 200.0, S.RUNNING, name="a")
        found = await run_list.latest(tx, PROJECT, "a")
        assert found is not None
        assert found.id == second.id
        assert found.configuration == CONFIGURATION
        assert await run_list.standing(tx, PROJECT, ["x", "a"]) == "a"
        assert await run_list.standing(tx, PROJECT, ["x"]) is None
        assert await run_list.latest(tx, ProjectId(uuid4()), "a") is None
        assert await run_list.get(tx, ProjectId(uuid4()), second.id) is None


async def test_jobs_are_told_in_pages_and_by_submission(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        run = await store(tx, 100.0)
        (first,) = await run_list.jobs(tx, run.id, 1)
        (second,) = await run_list.jobs(tx, run.id, 9, (first.replica, first.node, first.attempt))
        assert [first.attempt, second.attempt] == [1, 2]
        assert await run_list.submission(tx, run.id, 0, 0, None) == second
        assert await run_list.submission(tx, run.id, 0, 0, 1) == first
        assert await run_list.submission(tx, run.id, 0, 1, None) is None
        assert await run_list.job(tx, run.id, second.id) == second


async def test_deleting_hides_at_once_and_removes_later(database: Databases) -> None:
    """In between the logs are removed: a crash leaves neither a log without a run nor a run half there."""
    async with database() as db, db.connection() as tx:
        done, running = await store(tx, 100.0, name="done"), await store(tx, 200.0, S.RUNNING, name="running")
        assert await run_list.hide(tx, done.id, 1.0)
        assert not await run_list.hide(tx, running.id, 1.0)
        assert await names(db) == ["running"]
        assert await run_list.get(tx, PROJECT, done.id) is None
        assert await run_list.latest(tx, PROJECT, "done") is None
        ((id, jobs),) = await run_list.hidden(tx, 10)
        assert id == done.id
        assert len(jobs) == 2
        await run_list.remove(tx, [done.id, running.id])
        assert await tx.fetchval("SELECT count(*) FROM run") == 1
        assert await tx.fetchval("SELECT count(*) FROM job WHERE run_id = $1", done.id) == 0
        assert await run_list.hidden(tx, 10) == []


async def test_a_run_of_which_something_is_under_way_is_not_removed(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        run = await store(tx, 100.0)
        await tx.execute(
            """INSERT INTO outbox (id, owner, kind, target, family, attempt, phase, effect, payload, made_at, due_at)
            VALUES ($1, 1, 'run', $2, $2, 0, 'DONE', 'TellOwner', '{}', 0, 0)""",
            uuid4(),
            run.id,
        )
        assert await run_list.hide(tx, run.id, 1.0)
        assert await run_list.hidden(tx, 10) == []


async def test_what_keeps_a_run_from_going_on_is_shown_with_it(database: Databases) -> None:
    async with database() as db, db.connection() as tx:
        run = await store(tx, 100.0, S.RUNNING)
        await tx.execute(
            """INSERT INTO outbox (id, owner, kind, target, family, attempt, phase, effect, payload, made_at, due_at,
                                   error)
            VALUES ($1, 1, 'job', $1, $2, 0, 'RUNNING', 'AskStop', '{}', 0, 0, 'no space left')""",
            uuid4(),
            run.id,
        )
        (listed,) = await run_list.page(tx, PROJECT, Filter(), None, 1)
        assert listed.trouble == "no space left"
