"""Jobs as rows: loaded and saved under their run's lock."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from stoker.core.evolve import made
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.job import deadline
from stoker.core.job_facts import Cleanup, Job, S
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.retry import Budget, Fate
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection, Record

LOAD_REPLICAS = """
SELECT job.* FROM job
WHERE id = ANY($1::uuid[])
UNION
SELECT other.* FROM job
JOIN job AS other ON other.run_id = job.run_id AND other.replica = job.replica AND other.latest
WHERE job.id = ANY($1::uuid[])
ORDER BY id
"""
"""These jobs, and the latest submission of each node of their replicas."""

LOAD_WHOLE = """
SELECT * FROM job
WHERE run_id = ANY($1::uuid[])
  AND (latest OR state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED'))
ORDER BY id
"""

LOAD_PAGE = """
SELECT * FROM job
WHERE run_id = $1
  AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
  AND (state <> 'TERMINATING' OR cleanup = 'stop' AND reason <> 'ABORTED_BY_USER')
ORDER BY state = 'TERMINATING', replica, node, attempt
LIMIT $2
"""
"""Jobs that an order to the whole run may mean: active ones, and those in their grace."""

INSERT = Part("job_insert", """
INSERT INTO job (id, run_id, replica, node, attempt, round, submitted_at, latest, ready_at, state, version,
                 entered_at, deadline_at, instance_id, blocks, owned, shim, running_at, unreachable_since, reason,
                 message, exit_code, exit_signal, fate, tries, failing_since, streak, cleanup, gone, remove_at,
                 exited_at, priority, leave_at)
SELECT id, run_id, replica, node, attempt, round, submitted_at, latest, ready_at, state, version,
       entered_at, deadline_at, instance_id, blocks::int[], owned, shim, running_at, unreachable_since, reason,
       message, exit_code, exit_signal, fate, tries, failing_since, streak, cleanup, gone, remove_at, exited_at,
       priority, leave_at
FROM unnest($1::job_row[])
RETURNING 1
""", 1)  # fmt: skip

SAVE = Part("job_save", """
UPDATE job
SET latest = new.latest, ready_at = new.ready_at, state = new.state, version = new.version,
    entered_at = new.entered_at, deadline_at = new.deadline_at, instance_id = new.instance_id,
    blocks = new.blocks::int[], owned = new.owned, shim = new.shim, running_at = new.running_at,
    unreachable_since = new.unreachable_since, reason = new.reason, message = new.message,
    exit_code = new.exit_code, exit_signal = new.exit_signal, fate = new.fate, tries = new.tries,
    failing_since = new.failing_since, streak = new.streak, cleanup = new.cleanup, gone = new.gone,
    remove_at = new.remove_at, exited_at = new.exited_at, priority = new.priority, leave_at = new.leave_at
FROM unnest($1::job_row[]) AS new
WHERE job.id = new.id AND job.version = new.was
RETURNING 1
""", 1)  # fmt: skip

DUE = """
SELECT id, run_id, attempt FROM job WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""

ON_INSTANCE = """
SELECT id, run_id, attempt, state, blocks FROM job
WHERE instance_id = $1 AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
ORDER BY id
"""

ASSEMBLED = """
SELECT job.id, job.run_id, job.replica, job.attempt, job.blocks,
       instance.id AS instance_id, instance.backend, instance.owned, instance.shim
FROM (
    SELECT DISTINCT run_id, replica FROM job WHERE instance_id = $1 AND state = 'SUBMITTED' AND latest
) AS gang
JOIN job ON job.run_id = gang.run_id AND job.replica = gang.replica AND job.latest
JOIN instance ON instance.id = job.instance_id
WHERE NOT EXISTS (
    SELECT FROM job AS other LEFT JOIN instance AS its ON its.id = other.instance_id
    WHERE other.run_id = gang.run_id AND other.replica = gang.replica AND other.latest
      AND (other.state <> 'SUBMITTED' OR its.state IS NULL OR its.state NOT IN ('PROVISIONING', 'IDLE', 'BUSY'))
)
ORDER BY job.run_id, job.replica, job.node
"""
"""Of the replicas that wait for this instance, those whose nodes all have a machine that is there or accepted."""

_UNCHANGED = (None,) * 6
"""Written once, when the job is inserted."""


async def load_replicas(tx: Connection, ids: Iterable[JobId], policies: Mapping[RunId, Policy]) -> list[Job]:
    return [read(row, policies[row["run_id"]]) for row in await tx.fetch(LOAD_REPLICAS, list(ids))]


async def load_whole(tx: Connection, policies: Mapping[RunId, Policy]) -> list[Job]:
    """Every latest and every unfinished submission of these runs."""
    return [read(row, policies[row["run_id"]]) for row in await tx.fetch(LOAD_WHOLE, list(policies))]


async def load_page(tx: Connection, run_id: RunId, policy: Policy, limit: int) -> list[Job]:
    return [read(row, policy) for row in await tx.fetch(LOAD_PAGE, run_id, limit)]


async def on_instance(tx: Connection, instance_id: InstanceId) -> list[Record]:
    return await tx.fetch(ON_INSTANCE, instance_id)


async def assembled(tx: Connection, instance_id: InstanceId) -> list[list[Record]]:
    """Replica by replica, all nodes of each."""
    rows = await tx.fetch(ASSEMBLED, instance_id)
    return [list(nodes) for _, nodes in groupby(rows, key=lambda row: (row["run_id"], row["replica"]))]


async def any_gone(tx: Connection, run_id: RunId) -> bool:
    """Did the machine of one of its latest submissions leave under it?"""
    answer: bool | None = await tx.fetchval("SELECT bool_or(gone) FROM job WHERE run_id = $1 AND latest", run_id)
    return bool(answer)


def insert(bundle: Bundle, jobs: Sequence[Job]) -> None:
    rows = [
        (job.id, job.run_id, job.replica, job.node, job.attempt, job.round, job.submitted_at, None, *_changing(job))
        for job in jobs
    ]
    bundle.add(INSERT, [rows])


def save(bundle: Bundle, jobs: Sequence[tuple[int, Job]]) -> None:
    """Each with the version it was loaded with."""
    rows = [(job.id, *_UNCHANGED, was, *_changing(job)) for was, job in jobs]
    bundle.add(SAVE, [rows], expected=len(rows))


def _changing(job: Job) -> tuple[Any, ...]:
    return (
        job.latest, job.ready_at, job.state, job.version, job.entered_at, deadline(job), job.instance_id,
        "{" + ",".join(map(str, job.blocks)) + "}", job.owned, job.shim, job.running_at, job.unreachable_since,
        job.reason, job.message, job.exit_code, job.exit_signal, job.fate, job.budget.tries,
        job.budget.failing_since, job.budget.streak, job.cleanup, job.gone, job.remove_at, job.exited_at,
        job.policy.priority, job.leave_at,
    )  # fmt: skip


def read(row: Record, policy: Policy) -> Job:
    fields = dict(row)
    del fields["deadline_at"], fields["priority"]
    fields["policy"] = policy
    fields["state"] = _STATES[fields["state"]]
    fields["blocks"] = tuple(fields["blocks"])
    fields["reason"] = _REASONS[fields["reason"]]
    fields["fate"] = _FATES[fields["fate"]]
    fields["budget"] = Budget(fields.pop("tries"), fields.pop("failing_since"), fields.pop("streak"))
    fields["cleanup"] = _CLEANUPS[fields["cleanup"]]
    return made(Job, fields)


_STATES: dict[str, S] = {one.value: one for one in S}
_FATES: dict[str, Fate] = {one.value: one for one in Fate}
_REASONS: dict[str | None, JobReason | None] = {None: None} | {one.value: one for one in JobReason}
_CLEANUPS: dict[str | None, Cleanup | None] = {None: None} | {one.value: one for one in Cleanup}
