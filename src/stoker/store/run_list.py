"""Runs as people see them: lists in pages, one run with its jobs, and which of them are to be deleted.

Pages are cut by id, which grows with the time of submission: what is submitted while somebody turns pages does not move
them. Each kind of list has an index that begins where the page does (0005_people.sql).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from stoker.core.ids import InstanceId, JobId, ProjectId, RunId, uuid7
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import S as J
from stoker.core.reason import JobReason, RunReason
from stoker.core.run_facts import FINISHED, NO_JOBS, S, Tally
from stoker.store.database import Connection, Record
from stoker.store.run import unpacked

_COLUMNS = """
run.id, run.project_id, run.name, coalesce(spec."user", '') AS "user", coalesce(spec.type, 'task') AS type, run.state,
run.version, run.entered_at, run.submitted_at, run.reason, run.message, run.cause, run.exit_code, run.resume_at,
run.trigger_at, run.ended_at, run.held, run.round, run.queued, run.last_reason, run.policy -> 'schedule' AS schedule,
run.tally, run.policy ->> 'retry_of' AS retry_of,
(SELECT min(running_at) FROM job
 WHERE job.run_id = run.id AND replica = coalesce((run.policy -> 'only' ->> 0)::int, 0) AND node = 0) AS started_at,
CASE WHEN run.state IN ('TERMINATED', 'FAILED', 'DONE') THEN ''
     ELSE coalesce((SELECT max(error) FROM outbox WHERE family = run.id AND error <> ''), '') END AS trouble
"""

_ALL = f"""
SELECT {_COLUMNS} FROM run_spec AS spec JOIN run ON run.id = spec.run_id
WHERE spec.project_id = $1 AND spec.run_id < $2 AND spec.run_id >= $3 AND spec.deleted_at IS NULL
"""

_BY_STATE = f"""
SELECT {_COLUMNS} FROM run JOIN run_spec AS spec ON spec.run_id = run.id
WHERE run.project_id = $1 AND run.id < $2 AND run.id >= $3 AND spec.deleted_at IS NULL
"""

_UNFINISHED = "run.state NOT IN ('TERMINATED', 'FAILED', 'DONE')"

GET = f"""
SELECT {_COLUMNS}, spec.configuration FROM run LEFT JOIN run_spec AS spec ON spec.run_id = run.id
WHERE run.project_id = $1 AND run.id = $2 AND spec.deleted_at IS NULL
"""

LATEST = f"""
SELECT {_COLUMNS}, spec.configuration FROM run_spec AS spec JOIN run ON run.id = spec.run_id
WHERE spec.project_id = $1 AND spec.name = $2 AND spec.deleted_at IS NULL
ORDER BY spec.run_id DESC LIMIT 1
"""

BETWEEN = f"""
SELECT {_COLUMNS}, spec.configuration FROM run_spec AS spec JOIN run ON run.id = spec.run_id
WHERE spec.project_id = $1 AND spec.run_id BETWEEN $2 AND $3 AND spec.deleted_at IS NULL
ORDER BY spec.run_id DESC LIMIT $4
"""

STANDING = """
SELECT run.name FROM run
WHERE project_id = $1 AND name = ANY ($2::text[]) AND state NOT IN ('TERMINATED', 'FAILED', 'DONE')
ORDER BY name LIMIT 1
"""

UNFINISHED = f"SELECT id, name, version FROM run WHERE project_id = $1 AND {_UNFINISHED} ORDER BY id LIMIT $2"

VERSIONS = "SELECT id, version FROM run WHERE id = ANY ($1::uuid[])"

_JOB_COLUMNS = """
id, run_id, replica, node, attempt, state, entered_at, submitted_at, running_at, instance_id, reason, message,
exit_code, exit_signal, unreachable_since, exited_at,
(SELECT backend FROM instance WHERE instance.id = job.instance_id) AS backend
"""

JOBS = f"""
SELECT {_JOB_COLUMNS} FROM job
WHERE run_id = $1 AND (replica, node, attempt) > ($2, $3, $4)
  AND ($6::text[] IS NULL OR state = ANY ($6)) AND (NOT $7 OR latest) AND ($8::int IS NULL OR replica = $8)
ORDER BY replica, node, attempt LIMIT $5
"""

UNDONE = """
SELECT replica FROM job JOIN run ON run.id = job.run_id
WHERE job.run_id = $1 AND job.latest AND job.round = run.round
GROUP BY replica HAVING bool_or(job.state <> 'DONE') ORDER BY replica
"""
"""Replicas of which something did not get done."""

HIDE = """
UPDATE run_spec SET deleted_at = $2
FROM run
WHERE run_spec.run_id = $1 AND run.id = run_spec.run_id AND run.state IN ('TERMINATED', 'FAILED', 'DONE')
  AND run.owner_id IS NULL
RETURNING 1
"""

HIDE_ORPHANS = """
UPDATE run_spec SET deleted_at = $1
FROM project, run
WHERE project.deleted_at IS NOT NULL AND run_spec.project_id = project.id AND run_spec.deleted_at IS NULL
  AND run.id = run_spec.run_id AND run.state IN ('TERMINATED', 'FAILED', 'DONE')
"""

ORPHANS = f"""
SELECT run.id FROM project JOIN run ON run.project_id = project.id
WHERE project.deleted_at IS NOT NULL AND {_UNFINISHED} ORDER BY run.id LIMIT $1
"""

HIDDEN = """
SELECT run_id, ARRAY(SELECT id FROM job WHERE job.run_id = run_spec.run_id LIMIT 20000) AS jobs
FROM run_spec
WHERE deleted_at IS NOT NULL AND NOT EXISTS (SELECT FROM outbox WHERE family = run_spec.run_id)
ORDER BY deleted_at LIMIT $1
"""
"""Those of which nothing is under way any more: late news of a run that is not there could not be told apart from
a mistake."""

REMOVE = """
WITH gone AS (DELETE FROM run_spec WHERE run_id = ANY ($1::uuid[]) AND deleted_at IS NOT NULL RETURNING run_id)
DELETE FROM run WHERE id IN (SELECT run_id FROM gone)
"""

COUNTS = f"SELECT state, count(*) FROM run WHERE {_UNFINISHED} GROUP BY state"

_LAST = UUID(int=2**128 - 1)


class Listed(NamedTuple):
    """A run as a line of a list."""

    id: RunId
    project_id: ProjectId
    name: str
    user: str
    type: str
    state: S
    version: int
    entered_at: float
    submitted_at: float
    reason: RunReason | None = None
    message: str = ""
    cause: JobReason | None = None
    exit_code: int | None = None
    resume_at: float | None = None
    trigger_at: float | None = None
    ended_at: float | None = None
    held: bool = False
    round: int = 0
    queued: bool = False
    last_reason: RunReason | None = None
    schedule: str | None = None
    """As the policy has it, in JSON."""
    started_at: float | None = None
    trouble: str = ""
    """What keeps it from going on now."""
    configuration: str | None = None
    tally: Tally = NO_JOBS
    retry_of: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def finished_at(self) -> float | None:
        if not self.finished:
            return None
        return self.entered_at if self.ended_at is None else self.ended_at


class ListedJob(NamedTuple):
    id: JobId
    run_id: RunId
    replica: int
    node: int
    attempt: int
    state: J
    entered_at: float
    submitted_at: float
    running_at: float | None = None
    instance_id: InstanceId | None = None
    reason: JobReason | None = None
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    unreachable_since: float | None = None
    exited_at: float | None = None
    backend: str | None = None
    """Of its instance."""

    @property
    def finished_at(self) -> float | None:
        """When its commands ended, where anybody knows; cleaning up behind them took longer."""
        if self.state not in JOB_FINISHED:
            return None
        return self.entered_at if self.exited_at is None else self.exited_at


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list is to show; everything unless it is said."""

    states: frozenset[S] = frozenset()
    active: bool | None = None
    name: str | None = None
    type: str | None = None
    user: str | None = None
    since: float | None = None

    def statement(self) -> tuple[str, list[Any]]:
        """SQL by what is asked for: one statement for all would have one plan for all."""
        wanted = self.states or frozenset(S)
        if self.active is not None:
            wanted &= FINISHED if self.active is False else frozenset(S) - FINISHED
        parts, arguments = [], []
        if wanted.isdisjoint(FINISHED):
            parts.append(f"{_BY_STATE} AND {_UNFINISHED}")
        elif wanted <= FINISHED and len(wanted) == 1:
            parts.append(_BY_STATE)
        else:
            parts.append(_ALL)
        if wanted != frozenset(S):
            # As literals: that is how PostgreSQL knows that the index of unfinished or of finished runs will do.
            states = ", ".join(f"'{state.value}'" for state in sorted(wanted)) or "NULL"
            parts.append(f"AND run.state IN ({states})")
        for column, value in (("name", self.name), ("type", self.type), ('"user"', self.user)):
            if value is not None:
                arguments.append(value)
                parts.append(f"AND spec.{column} = ${4 + len(arguments)}")
        return f"{' '.join(parts)} ORDER BY run.id DESC LIMIT $4", arguments


async def page(tx: Connection, project_id: ProjectId, chosen: Filter, before: UUID | None, limit: int) -> list[Listed]:
    """Newest first, those that were submitted before the run `before`."""
    sql, arguments = chosen.statement()
    oldest = uuid7(max(0.0, chosen.since), 0) if chosen.since is not None else UUID(int=0)
    return [read(row) for row in await tx.fetch(sql, project_id, before or _LAST, oldest, limit, *arguments)]


async def get(tx: Connection, project_id: ProjectId, id: UUID) -> Listed | None:
    row = await tx.fetchrow(GET, project_id, id)
    return read(row) if row else None


async def latest(tx: Connection, project_id: ProjectId, name: str) -> Listed | None:
    """The run of that name that was submitted last."""
    row = await tx.fetchrow(LATEST, project_id, name)
    return read(row) if row else None


async def between(tx: Connection, project_id: ProjectId, first: UUID, last: UUID, limit: int) -> list[Listed]:
    """Those whose ids are not outside of these two, newest first."""
    return [read(row) for row in await tx.fetch(BETWEEN, project_id, first, last, limit)]


async def standing(tx: Connection, project_id: ProjectId, names: Collection[str]) -> str | None:
    """One of these names whose run is not finished."""
    name: str | None = await tx.fetchval(STANDING, project_id, names)
    return name


async def unfinished(tx: Connection, project_id: ProjectId, limit: int) -> list[RunId]:
    return [row["id"] for row in await tx.fetch(UNFINISHED, project_id, limit)]


async def versions(tx: Connection, ids: Collection[UUID]) -> dict[UUID, int]:
    return {row["id"]: row["version"] for row in await tx.fetch(VERSIONS, ids)}


async def jobs(
    tx: Connection,
    run_id: RunId,
    limit: int,
    after: tuple[int, int, int] = (-1, -1, -1),
    *,
    states: Collection[J] = (),
    latest: bool = False,
    replica: int | None = None,
) -> list[ListedJob]:
    """Every submission, or only the latest of each job, in the order of replica, node and submission."""
    wanted = [state.value for state in states] or None
    return [read_job(row) for row in await tx.fetch(JOBS, run_id, *after, limit, wanted, latest, replica)]


async def undone(tx: Connection, run_id: RunId) -> list[int]:
    return [row["replica"] for row in await tx.fetch(UNDONE, run_id)]


async def job(tx: Connection, run_id: RunId, id: UUID) -> ListedJob | None:
    """Of a run that was not deleted meanwhile: its rows are there a little longer than its logs."""
    row = await tx.fetchrow(
        f"""SELECT {_JOB_COLUMNS} FROM job
        WHERE run_id = $1 AND id = $2
          AND NOT EXISTS (SELECT FROM run_spec WHERE run_spec.run_id = $1 AND deleted_at IS NOT NULL)""",
        run_id, id,
    )  # fmt: skip
    return read_job(row) if row else None


async def submission(
    tx: Connection, run_id: RunId, replica: int | None, node: int, number: int | None
) -> ListedJob | None:
    """One submission of a job, by default the latest, and of the first replica that the run has."""
    row = await tx.fetchrow(
        f"""SELECT {_JOB_COLUMNS} FROM job
        WHERE run_id = $1 AND node = $3 AND ($4::int IS NULL OR attempt = $4)
          AND replica = coalesce($2::int, (SELECT (policy -> 'only' ->> 0)::int FROM run WHERE id = $1), 0)
        ORDER BY attempt DESC LIMIT 1""",
        run_id, replica, node, number,
    )  # fmt: skip
    return read_job(row) if row else None


async def hide(tx: Connection, id: RunId, now: float) -> bool:
    """Marks a finished run as deleted; it is removed by and by."""
    return await tx.fetchval(HIDE, id, now) is not None


async def hide_orphans(tx: Connection, now: float) -> None:
    """Finished runs of projects that were deleted."""
    await tx.execute(HIDE_ORPHANS, now)


async def orphans(tx: Connection, limit: int) -> list[RunId]:
    """Unfinished ones."""
    return [row["id"] for row in await tx.fetch(ORPHANS, limit)]


async def hidden(tx: Connection, limit: int) -> list[tuple[RunId, list[JobId]]]:
    """Runs to be removed, with all their jobs: whose logs go first."""
    return [(row["run_id"], row["jobs"]) for row in await tx.fetch(HIDDEN, limit)]


async def remove(tx: Connection, ids: Sequence[RunId]) -> None:
    await tx.execute(REMOVE, ids)


async def counts(tx: Connection) -> dict[str, int]:
    """Unfinished runs by state, for the metrics."""
    return {row["state"]: row["count"] for row in await tx.fetch(COUNTS)}


def read(row: Record) -> Listed:
    fields = dict(row)
    fields["state"] = _STATES[fields["state"]]
    fields["reason"] = _REASONS[fields["reason"]]
    fields["cause"] = _CAUSES[fields["cause"]]
    fields["tally"] = unpacked(fields["tally"])
    fields["last_reason"] = _REASONS[fields["last_reason"]]
    return Listed(**fields)


def read_job(row: Record) -> ListedJob:
    fields = dict(row)
    fields["state"] = _JOB_STATES[fields["state"]]
    fields["reason"] = _CAUSES[fields["reason"]]
    return ListedJob(**fields)


def _by_value(kinds: Iterable[Any]) -> dict[Any, Any]:
    return {None: None} | {one.value: one for one in kinds}


_STATES: dict[str, S] = _by_value(S)
_REASONS: dict[str | None, RunReason | None] = _by_value(RunReason)
_CAUSES: dict[str | None, JobReason | None] = _by_value(JobReason)
_JOB_STATES: dict[str, J] = _by_value(J)
