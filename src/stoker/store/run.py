"""Runs as rows: what never changes is written once, what changes is saved under the run's lock."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoker.core.errors import NotFound
from stoker.core.ids import RunId
from stoker.core.policy import Policy
from stoker.core.reason import JobReason, RunReason
from stoker.core.run import deadline
from stoker.core.run_facts import Run, S, Tally
from stoker.store.bundle import Bundle, Part, columns
from stoker.store.database import Connection, Record

LOCK = """
SELECT * FROM run WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED
"""

EXIST = """
SELECT id FROM run WHERE id = ANY($1::uuid[])
"""

INSERT = Part("run_insert", """
INSERT INTO run (id, project_id, name, policy, resources, submitted_at, owner_id, owner_attempt, state, version,
                 entered_at, deadline_at, round, replicas, tally, reason, message, cause, exit_code, backoff_step,
                 resume_at, trigger_at, queued, priority)
SELECT id, project_id, name, policy, resources, submitted_at, owner_id, owner_attempt, state, version,
       entered_at, deadline_at, round, replicas, tally::int[], reason, message, cause, exit_code, backoff_step,
       resume_at, trigger_at, queued, priority
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::jsonb[], $6::float8[], $7::uuid[], $8::int[],
            $9::text[], $10::int8[], $11::float8[], $12::float8[], $13::int[], $14::int[], $15::text[], $16::text[],
            $17::text[], $18::text[], $19::int[], $20::int[], $21::float8[], $22::float8[], $23::bool[], $24::int[])
  AS new (id, project_id, name, policy, resources, submitted_at, owner_id, owner_attempt, state, version,
          entered_at, deadline_at, round, replicas, tally, reason, message, cause, exit_code, backoff_step,
          resume_at, trigger_at, queued, priority)
RETURNING 1
""", 24)  # fmt: skip

SAVE = Part("run_save", """
UPDATE run
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    round = new.round, replicas = new.replicas, tally = new.tally::int[], reason = new.reason,
    message = new.message, cause = new.cause, exit_code = new.exit_code, backoff_step = new.backoff_step,
    resume_at = new.resume_at, trigger_at = new.trigger_at, queued = new.queued
FROM unnest($1::uuid[], $2::int8[], $3::text[], $4::int8[], $5::float8[], $6::float8[], $7::int[], $8::int[],
            $9::text[], $10::text[], $11::text[], $12::text[], $13::int[], $14::int[], $15::float8[], $16::float8[],
            $17::bool[])
  AS new (id, was, state, version, entered_at, deadline_at, round, replicas, tally, reason, message, cause,
          exit_code, backoff_step, resume_at, trigger_at, queued)
WHERE run.id = new.id AND run.version = new.was
RETURNING 1
""", 17)  # fmt: skip

DUE = """
SELECT id FROM run WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""


async def lock(tx: Connection, ids: Iterable[RunId]) -> dict[RunId, Run]:
    """Those that are free; one that another commit holds is left out."""
    return {run.id: run for run in map(read, await tx.fetch(LOCK, list(ids)))}


async def get(tx: Connection, id: RunId) -> Run:
    row = await tx.fetchrow("SELECT * FROM run WHERE id = $1", id)
    if row is None:
        raise NotFound(f"There is no run {id}.")
    return read(row)


async def exist(tx: Connection, ids: Iterable[RunId]) -> set[RunId]:
    return {row["id"] for row in await tx.fetch(EXIST, list(ids))}


def insert(bundle: Bundle, runs: Sequence[Run], resources: Mapping[RunId, str]) -> None:
    """`resources` is what the jobs ask for, as JSON."""
    rows = [
        (run.id, run.project_id, run.name, json.dumps(run.policy.to_json()), resources[run.id], run.submitted_at,
         run.owner_id, run.owner_attempt, *_changing(run), run.policy.priority)
        # In one order everywhere: two replicas that insert the same names must not wait for each other.
        for run in sorted(runs, key=lambda run: run.name)
    ]  # fmt: skip
    bundle.add(INSERT, columns(rows))


def save(bundle: Bundle, runs: Sequence[tuple[int, Run]]) -> None:
    """Each with the version it was loaded with."""
    rows = [(run.id, was, *_changing(run)) for was, run in runs]
    bundle.add(SAVE, columns(rows), expected=len(rows))


def _changing(run: Run) -> tuple[Any, ...]:
    return (
        run.state, run.version, run.entered_at, deadline(run), run.round, run.replicas, _packed(run.tally), run.reason,
        run.message, run.cause, run.exit_code, run.backoff_step, run.resume_at, run.trigger_at, run.queued,
    )  # fmt: skip


def read(row: Record) -> Run:
    return Run(
        id=row["id"], project_id=row["project_id"], name=row["name"], policy=policy_of(row["policy"]),
        submitted_at=row["submitted_at"], state=S(row["state"]), version=row["version"],
        entered_at=row["entered_at"], round=row["round"], replicas=row["replicas"], tally=_unpacked(row["tally"]),
        reason=RunReason(row["reason"]) if row["reason"] else None, message=row["message"],
        cause=JobReason(row["cause"]) if row["cause"] else None, exit_code=row["exit_code"],
        backoff_step=row["backoff_step"], resume_at=row["resume_at"], trigger_at=row["trigger_at"],
        queued=row["queued"], owner_id=row["owner_id"], owner_attempt=row["owner_attempt"],
    )  # fmt: skip


@lru_cache(maxsize=1024)
def policy_of(text: str) -> Policy:
    """Runs of one configuration share one policy: reading it again and again would cost more than the step."""
    return Policy.from_json(json.loads(text))


def _packed(tally: Tally) -> str:
    return (
        f"{{{tally.submitted},{tally.starting},{tally.running},{tally.done},{tally.retry},{tally.failed},"
        f"{tally.exhausted},{tally.limit},{tally.gone},{tally.stopped},{tally.unfinished},{int(tally.master_done)}}}"
    )


def _unpacked(numbers: Sequence[int]) -> Tally:
    return Tally(*numbers[:-1], master_done=bool(numbers[-1]))  # type: ignore[arg-type,misc]
