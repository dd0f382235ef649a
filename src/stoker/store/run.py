"""Runs as rows: what never changes is written once, what changes is saved under the run's lock."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoker.core import limits
from stoker.core.errors import NotFound
from stoker.core.evolve import made
from stoker.core.ids import RunId
from stoker.core.need import Need
from stoker.core.policy import Policy
from stoker.core.reason import JobReason, RunReason
from stoker.core.run import deadline
from stoker.core.run_facts import Run, S, Tally
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection, Record

INSERT = Part("run_insert", """
INSERT INTO run (id, project_id, name, policy, resources, submitted_at, owner_id, owner_attempt, whole, priority, state,
                 version, entered_at, deadline_at, round, replicas, tally, reason, message, cause, exit_code,
                 backoff_step, resume_at, trigger_at, queued, ended_at, held, last_reason)
SELECT id, project_id, name, policy, resources, submitted_at, owner_id, owner_attempt, whole, priority, state,
       version, entered_at, deadline_at, round, replicas, tally::int[], reason, message, cause, exit_code,
       backoff_step, resume_at, trigger_at, queued, ended_at, held, last_reason
FROM unnest($1::run_row[])
RETURNING 1
""", 1)  # fmt: skip

SAVE = Part("run_save", """
UPDATE run
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    round = new.round, replicas = new.replicas, tally = new.tally::int[], reason = new.reason,
    message = new.message, cause = new.cause, exit_code = new.exit_code, backoff_step = new.backoff_step,
    resume_at = new.resume_at, trigger_at = new.trigger_at, queued = new.queued,
    ended_at = new.ended_at, held = new.held, last_reason = new.last_reason,
    policy = coalesce(new.policy, run.policy), priority = coalesce(new.priority, run.priority)
FROM unnest($1::run_row[]) AS new
WHERE run.id = new.id AND run.version = new.was
RETURNING 1
""", 1)  # fmt: skip

DUE = """
SELECT id FROM run WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""

_UNCHANGED = (None,) * 9
"""Written once, when the run is inserted."""
_AROUND = (None,) * 5
"""Those of them between policy and priority, which a revision writes again."""


async def get(tx: Connection, id: RunId) -> Run:
    row = await tx.fetchrow("SELECT * FROM run WHERE id = $1", id)
    if row is None:
        raise NotFound(f"There is no run {id}.")
    return read(row)


def is_whole(run: Run) -> bool:
    """Is it small enough that a commit always loads all its jobs?"""
    return run.policy.size <= limits.WHOLE or run.policy.service


def insert(bundle: Bundle, runs: Sequence[Run], resources: Mapping[RunId, str]) -> None:
    """`resources` is what the jobs ask for, as JSON."""
    rows = [
        (run.id, run.project_id, run.name, json.dumps(run.policy.to_json()), resources[run.id], run.submitted_at,
         run.owner_id, run.owner_attempt, is_whole(run), run.policy.priority, None,
         *_changing(run))
        # In one order everywhere: two replicas that insert the same names must not wait for each other.
        for run in sorted(runs, key=lambda run: run.name)
    ]  # fmt: skip
    bundle.add(INSERT, [rows])


def save(bundle: Bundle, runs: Sequence[tuple[int, Run]], revised: Collection[RunId] = ()) -> None:
    """Each with the version it was loaded with; the policy only of those that have another one."""
    rows = [
        (run.id, None, None, json.dumps(run.policy.to_json()), *_AROUND, run.policy.priority, was, *_changing(run))
        if run.id in revised
        else (run.id, *_UNCHANGED, was, *_changing(run))
        for was, run in runs
    ]
    bundle.add(SAVE, [rows], expected=len(rows))


def _changing(run: Run) -> tuple[Any, ...]:
    return (
        run.state, run.version, run.entered_at, deadline(run), run.round, run.replicas, _packed(run.tally), run.reason,
        run.message, run.cause, run.exit_code, run.backoff_step, run.resume_at, run.trigger_at, run.queued,
        run.ended_at, run.policy.hold, run.last_reason,
    )  # fmt: skip


def read(row: Record) -> Run:
    fields = dict(row)
    del fields["deadline_at"], fields["resources"], fields["whole"], fields["priority"], fields["held"]
    fields["policy"] = policy_of(fields["policy"])
    fields["state"] = _STATES[fields["state"]]
    fields["attempt"] = 0
    fields["tally"] = unpacked(fields["tally"])
    fields["reason"] = _REASONS[fields["reason"]]
    fields["last_reason"] = _REASONS[fields["last_reason"]]
    fields["cause"] = _CAUSES[fields["cause"]]
    return made(Run, fields)


_STATES: dict[str, S] = {one.value: one for one in S}
_REASONS: dict[str | None, RunReason | None] = {None: None} | {one.value: one for one in RunReason}
_CAUSES: dict[str | None, JobReason | None] = {None: None} | {one.value: one for one in JobReason}


@lru_cache(maxsize=1024)
def policy_of(text: str) -> Policy:
    """Runs of one configuration share one policy: reading it again and again would cost more than the step."""
    return Policy.from_json(json.loads(text))


@lru_cache(maxsize=1024)
def need_of(text: str) -> Need:
    return Need.from_json(json.loads(text))


def _packed(tally: Tally) -> str:
    return (
        f"{{{tally.submitted},{tally.starting},{tally.running},{tally.done},{tally.retry},{tally.failed},"
        f"{tally.exhausted},{tally.limit},{tally.gone},{tally.stopped},{tally.unfinished},{int(tally.master_done)}}}"
    )


def unpacked(numbers: Sequence[int]) -> Tally:
    return Tally(*numbers[:-1], master_done=bool(numbers[-1]))  # type: ignore[arg-type,misc]
