"""Managed jobs and their tasks in PostgreSQL; every function runs inside the caller's transaction.

Slots are counted over all replicas, so those who give them take turns: under the advisory lock `SLOT_LOCK` come
`counts` and `waiting`, then the commit of `Scheduled`, in one transaction (`commit_planned`). The lock goes with the
transaction, so the next one counts what this one gave.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stoker.core.errors import Broken
from stoker.core.ids import ManagedJobId, ProjectId
from stoker.core.managed_job import Aggregate, ManagedJob
from stoker.core.managed_job import S as JobState
from stoker.core.managed_task import ManagedTask, ManagedTaskId, Source
from stoker.core.managed_task import S as TaskState
from stoker.store.bundle import columns
from stoker.store.database import Connection, Record

SLOT_LOCK: Final = 0x736C6F74

LOCK_JOBS: Final = """
SELECT id, project_id, name, priority, state, version, entered_at, created_at, deadline_at, live_runs, cancel_asked
FROM managed_job
WHERE id = ANY($1::uuid[])
ORDER BY id
FOR UPDATE SKIP LOCKED
"""

LOAD_JOBS: Final = """
SELECT id, project_id, name, priority, state, version, entered_at, created_at, deadline_at, live_runs, cancel_asked
FROM managed_job
WHERE id = ANY($1::uuid[])
"""

LOAD_TASKS: Final = """
SELECT id, managed_job_id, index, name, depends_on, has_commands, max_restarts_on_errors, recover_on_exit_codes,
       state, attempt, version, entered_at, launched, recovering, recovery_count, recovery_source,
       restarts_on_errors, resume_at, backoff_step, exit_code, message, controller_error, outcome_before
FROM managed_task
WHERE managed_job_id = ANY($1::uuid[])
ORDER BY managed_job_id, index
"""

INSERT_JOBS: Final = """
INSERT INTO managed_job (
    id, project_id, name, priority, state, version, entered_at, created_at, deadline_at, live_runs, cancel_asked
)
SELECT * FROM unnest(
    $1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::text[], $6::bigint[], $7::double precision[],
    $8::double precision[], $9::double precision[], $10::integer[], $11::boolean[]
)
"""

# Arrays of arrays lose their inner borders in unnest, so lists travel as PostgreSQL writes them.
INSERT_TASKS: Final = """
INSERT INTO managed_task (
    id, managed_job_id, index, name, depends_on, has_commands, max_restarts_on_errors, recover_on_exit_codes, spec,
    state, attempt, version, entered_at, launched, recovering, recovery_count, recovery_source, restarts_on_errors,
    resume_at, backoff_step, exit_code, message, controller_error, outcome_before
)
SELECT id, managed_job_id, index, name, depends_on::integer[], has_commands, max_restarts_on_errors,
       recover_on_exit_codes::integer[], spec, state, attempt, version, entered_at, launched, recovering,
       recovery_count, recovery_source, restarts_on_errors, resume_at, backoff_step, exit_code, message,
       controller_error, outcome_before
FROM unnest(
    $1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::text[], $6::boolean[], $7::integer[], $8::text[],
    $9::jsonb[], $10::text[], $11::integer[], $12::bigint[], $13::double precision[], $14::boolean[],
    $15::boolean[], $16::integer[], $17::text[], $18::integer[], $19::double precision[], $20::integer[],
    $21::integer[], $22::text[], $23::text[], $24::text[]
) AS new (
    id, managed_job_id, index, name, depends_on, has_commands, max_restarts_on_errors, recover_on_exit_codes, spec,
    state, attempt, version, entered_at, launched, recovering, recovery_count, recovery_source, restarts_on_errors,
    resume_at, backoff_step, exit_code, message, controller_error, outcome_before
)
"""

UPDATE_JOBS: Final = """
UPDATE managed_job AS job
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    live_runs = new.live_runs, cancel_asked = new.cancel_asked
FROM unnest(
    $1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::double precision[], $6::double precision[],
    $7::integer[], $8::boolean[]
) AS new (id, was_version, state, version, entered_at, deadline_at, live_runs, cancel_asked)
WHERE job.id = new.id AND job.version = new.was_version
"""

UPDATE_TASKS: Final = """
UPDATE managed_task AS task
SET state = new.state, attempt = new.attempt, version = new.version, entered_at = new.entered_at,
    launched = new.launched, recovering = new.recovering, recovery_count = new.recovery_count,
    recovery_source = new.recovery_source, restarts_on_errors = new.restarts_on_errors, resume_at = new.resume_at,
    backoff_step = new.backoff_step, exit_code = new.exit_code, message = new.message,
    controller_error = new.controller_error, outcome_before = new.outcome_before
FROM unnest(
    $1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::bigint[], $6::double precision[], $7::boolean[],
    $8::boolean[], $9::integer[], $10::text[], $11::integer[], $12::double precision[], $13::integer[],
    $14::integer[], $15::text[], $16::text[], $17::text[]
) AS new (
    id, was_version, state, attempt, version, entered_at, launched, recovering, recovery_count, recovery_source,
    restarts_on_errors, resume_at, backoff_step, exit_code, message, controller_error, outcome_before
)
WHERE task.id = new.id AND task.version = new.was_version
"""

# The head of the queue, and the head of those that need no alive slot: they may pass the others.
WAITING: Final = """
(
    SELECT id, project_id, name, priority, state, version, entered_at, created_at, deadline_at, live_runs, cancel_asked
    FROM managed_job
    WHERE state IN ('WAITING', 'ALIVE_WAITING')
    ORDER BY priority DESC, id
    LIMIT $1
) UNION (
    SELECT id, project_id, name, priority, state, version, entered_at, created_at, deadline_at, live_runs, cancel_asked
    FROM managed_job
    WHERE state = 'ALIVE_WAITING' AND live_runs > 0
    ORDER BY priority DESC, id
    LIMIT $1
)
ORDER BY priority DESC, id
"""

COUNTS: Final = """
SELECT count(*) FILTER (WHERE state = 'LAUNCHING') AS launching, count(*) AS alive
FROM managed_job
WHERE live_runs > 0
"""

DUE: Final = "SELECT id FROM managed_job WHERE deadline_at <= $1 ORDER BY deadline_at, id LIMIT $2"

JOBS_OF: Final = "SELECT id, managed_job_id FROM managed_task WHERE id = ANY($1::uuid[])"

SPEC_OF: Final = "SELECT spec FROM managed_task WHERE id = $1"


class Counts(NamedTuple):
    launching: int
    alive: int


async def lock(conn: Connection, ids: Collection[ManagedJobId]) -> dict[ManagedJobId, Aggregate]:
    """What is free of these, locked in the order of ids; a busy one is left out for the next batch."""
    return await _with_tasks(conn, await conn.fetch(LOCK_JOBS, list(ids)))


async def load(conn: Connection, ids: Collection[ManagedJobId]) -> dict[ManagedJobId, Aggregate]:
    """To look at; a change starts with `lock`."""
    return await _with_tasks(conn, await conn.fetch(LOAD_JOBS, list(ids)))


async def insert(conn: Connection, aggregates: Collection[Aggregate], specs: Mapping[ManagedTaskId, str]) -> None:
    """New jobs and their tasks; `specs` has the JSON of every task's run configuration."""
    jobs = [_job_values(aggregate.job) for aggregate in aggregates]
    tasks = [
        (*_fixed_values(task), specs[task.id], *_task_values(task))
        for aggregate in aggregates
        for task in aggregate.tasks
    ]
    if jobs:
        await conn.execute(INSERT_JOBS, *columns(jobs))
        await conn.execute(INSERT_TASKS, *columns(tasks))


async def save(conn: Connection, changed: Iterable[tuple[Aggregate, Aggregate]]) -> None:
    """Pairs as they were locked and as they are now; records whose version stands are not written."""
    jobs: list[tuple[object, ...]] = []
    tasks: list[tuple[object, ...]] = []
    for was, new in changed:
        if new.job.version != was.job.version:
            jobs.append((new.job.id, was.job.version, *_moving_values(new.job)))
        for old, task in zip(was.tasks, new.tasks, strict=True):
            if task.version != old.version:
                tasks.append((task.id, old.version, *_task_values(task)))
    await _update(conn, UPDATE_JOBS, jobs, "managed jobs")
    await _update(conn, UPDATE_TASKS, tasks, "managed tasks")


async def waiting(conn: Connection, limit: int) -> list[ManagedJob]:
    """Candidates for `managed_job.schedule`, best first: at most twice `limit`."""
    return [_job(row) for row in await conn.fetch(WAITING, limit)]


async def counts(conn: Connection) -> Counts:
    row = await conn.fetchrow(COUNTS)
    assert row is not None, "an aggregate without GROUP BY has one row"
    return Counts(row["launching"], row["alive"])


async def due(conn: Connection, now: float, limit: int) -> list[ManagedJobId]:
    """Jobs to be told TimeUp, longest overdue first."""
    return [ManagedJobId(row["id"]) for row in await conn.fetch(DUE, now, limit)]


async def jobs_of(conn: Connection, task_ids: Collection[ManagedTaskId]) -> dict[ManagedTaskId, ManagedJobId]:
    """Which aggregate to lock for news of these tasks."""
    rows = await conn.fetch(JOBS_OF, list(task_ids))
    return {ManagedTaskId(row["id"]): ManagedJobId(row["managed_job_id"]) for row in rows}


async def spec_of(conn: Connection, task_id: ManagedTaskId) -> str:
    """The JSON of the configuration of this task's runs."""
    spec: str | None = await conn.fetchval(SPEC_OF, task_id)
    if spec is None:
        raise Broken(f"There is no managed task {task_id}.")
    return spec


async def _with_tasks(conn: Connection, found: Sequence[Record]) -> dict[ManagedJobId, Aggregate]:
    jobs = [_job(row) for row in found]
    tasks: dict[UUID, list[ManagedTask]] = {job.id: [] for job in jobs}
    if jobs:
        for row in await conn.fetch(LOAD_TASKS, list(tasks)):
            tasks[row["managed_job_id"]].append(_task(row))
    return {job.id: Aggregate(job, tuple(tasks[job.id])) for job in jobs}


async def _update(conn: Connection, statement: str, values: Sequence[tuple[object, ...]], what: str) -> None:
    if not values:
        return
    status = await conn.execute(statement, *columns(values))
    if status != f"UPDATE {len(values)}":
        raise Broken(f"{len(values)} {what} were to be saved, and the database said {status}: a version moved on.")


def _job(row: Record) -> ManagedJob:
    return ManagedJob(
        id=ManagedJobId(row["id"]), project_id=ProjectId(row["project_id"]), name=row["name"],
        priority=row["priority"], state=JobState(row["state"]), version=row["version"],
        entered_at=row["entered_at"], created_at=row["created_at"], resume_at=row["deadline_at"],
        live_runs=row["live_runs"], cancel_asked=row["cancel_asked"],
    )  # fmt: skip


def _task(row: Record) -> ManagedTask:
    fields = dict(row)
    fields["depends_on"] = tuple(row["depends_on"])
    fields["recover_on_exit_codes"] = frozenset(row["recover_on_exit_codes"])
    fields["state"] = TaskState(row["state"])
    fields["recovery_source"] = row["recovery_source"] and Source(row["recovery_source"])
    fields["outcome_before"] = row["outcome_before"] and TaskState(row["outcome_before"])
    return ManagedTask(**fields)


def _job_values(job: ManagedJob) -> tuple[object, ...]:
    return (job.id, job.project_id, job.name, job.priority, job.state, job.version, job.entered_at, job.created_at,
            job.resume_at, job.live_runs, job.cancel_asked)  # fmt: skip


def _moving_values(job: ManagedJob) -> tuple[object, ...]:
    return (job.state, job.version, job.entered_at, job.resume_at, job.live_runs, job.cancel_asked)


def _fixed_values(task: ManagedTask) -> tuple[object, ...]:
    return (task.id, task.managed_job_id, task.index, task.name, _array(task.depends_on), task.has_commands,
            task.max_restarts_on_errors, _array(sorted(task.recover_on_exit_codes)))  # fmt: skip


def _task_values(task: ManagedTask) -> tuple[object, ...]:
    return (task.state, task.attempt, task.version, task.entered_at, task.launched, task.recovering,
            task.recovery_count, task.recovery_source, task.restarts_on_errors, task.resume_at, task.backoff_step,
            task.exit_code, task.message, task.controller_error, task.outcome_before)  # fmt: skip


def _array(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"
