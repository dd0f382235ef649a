"""Instances as rows, with the blocks that jobs hold of them."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.errors import NotFound
from stoker.core.evolve import made
from stoker.core.ids import InstanceId, JobId, ProjectId, instance_name
from stoker.core.instance import Instance, S, deadline
from stoker.core.resources import Capacity
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection, Record

LOCK = """
SELECT * FROM instance WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
"""
"""Waits: whoever holds an instance holds all its runs already, so it cannot be waiting for ours."""

INSERT = Part("instance_insert", """
INSERT INTO instance (id, fleet_id, backend, capacity, blocks, owned, shim, provisioning_limit_s, price, spot, state,
                      version, entered_at, deadline_at, held, handle, unreachable_since, health, cordoned, drain_at,
                      destroy_at, message)
SELECT id, fleet_id, backend, capacity, blocks, owned, shim, provisioning_limit_s, price, spot, state,
       version, entered_at, deadline_at, held, handle, unreachable_since, health, cordoned, drain_at,
       destroy_at, message
FROM unnest($1::instance_row[])
RETURNING 1
""", 1)  # fmt: skip

SAVE = Part("instance_save", """
UPDATE instance
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    held = new.held, handle = new.handle, unreachable_since = new.unreachable_since, health = new.health,
    cordoned = new.cordoned, drain_at = new.drain_at, destroy_at = new.destroy_at, message = new.message
FROM unnest($1::instance_row[]) AS new
WHERE instance.id = new.id AND instance.version = new.was
RETURNING 1
""", 1)  # fmt: skip

_WITH_PLACE = """
instance LEFT JOIN fleet ON fleet.id = instance.fleet_id LEFT JOIN host ON host.instance_id = instance.id
"""

UNFINISHED = f"""
SELECT instance.*, coalesce(host.project_id, fleet.project_id) AS project_id FROM {_WITH_PLACE}
WHERE instance.state <> 'TERMINATED' ORDER BY instance.id
"""

DUE = """
SELECT id FROM instance WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""

_VISIBLE = f"""
SELECT instance.*, fleet.name AS fleet FROM {_WITH_PLACE}
WHERE coalesce(host.project_id, fleet.project_id, $1) = $1
"""

PAGE = f"{_VISIBLE} AND instance.id > $2 AND ($3 OR instance.state <> 'TERMINATED') ORDER BY instance.id LIMIT $4"

NAMED = f"{_VISIBLE} AND instance.backend || '-' || right(instance.id::text, 6) = $2 ORDER BY instance.id"
"""As `instance_name` makes them."""

NAMES = "SELECT id, backend FROM instance WHERE id = ANY($1::uuid[])"

COUNTS = "SELECT state, count(*) FROM instance WHERE state <> 'TERMINATED' GROUP BY state"

_UNCHANGED = (None,) * 9
"""Written once, when the instance is inserted."""


async def lock(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, Instance]:
    return {instance.id: instance for instance in map(read, await tx.fetch(LOCK, list(ids)))}


async def get(tx: Connection, id: InstanceId) -> Instance:
    row = await tx.fetchrow("SELECT * FROM instance WHERE id = $1", id)
    if row is None:
        raise NotFound(f"There is no instance {id}.")
    return read(row)


class Unfinished(NamedTuple):
    instance: Instance
    project_id: ProjectId | None
    """The only one that it serves; None: any."""


async def unfinished(tx: Connection) -> list[Unfinished]:
    return [_unfinished(row) for row in await tx.fetch(UNFINISHED)]


class Shown(NamedTuple):
    instance: Instance
    fleet: str | None
    """Its name."""


async def page(tx: Connection, project_id: ProjectId, after: UUID, finished: bool, limit: int) -> list[Shown]:
    """Those that the project may use; `finished` ones only when they are asked for."""
    return [_shown(row) for row in await tx.fetch(PAGE, project_id, after, finished, limit)]


async def visible(tx: Connection, project_id: ProjectId, id: UUID) -> Shown | None:
    row = await tx.fetchrow(f"{_VISIBLE} AND instance.id = $2", project_id, id)
    return _shown(row) if row else None


async def named(tx: Connection, project_id: ProjectId, name: str) -> list[Shown]:
    """Those that people call so: one, unless the ends of two ids happen to be the same."""
    return [_shown(row) for row in await tx.fetch(NAMED, project_id, name)]


async def names(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, str]:
    return {row["id"]: instance_name(row["backend"], row["id"]) for row in await tx.fetch(NAMES, list(ids))}


async def counts(tx: Connection) -> dict[str, int]:
    """By state, for the metrics."""
    return {row["state"]: row["count"] for row in await tx.fetch(COUNTS)}


def insert(bundle: Bundle, instances: Sequence[Instance]) -> None:
    rows = [
        (one.id, one.fleet_id, one.backend, json.dumps(one.blocks.capacity.to_json()), one.blocks.total, one.owned,
         one.shim, one.provisioning_limit_s, one.price, one.spot, None, *_changing(one))
        for one in instances
    ]  # fmt: skip
    bundle.add(INSERT, [rows])


def save(bundle: Bundle, instances: Sequence[tuple[int, Instance]]) -> None:
    """Each with the version it was loaded with."""
    rows = [(one.id, *_UNCHANGED, was, *_changing(one)) for was, one in instances]
    bundle.add(SAVE, [rows], expected=len(rows))


def _changing(one: Instance) -> tuple[Any, ...]:
    held = json.dumps({str(job): numbers for job, numbers in one.blocks.held.items()})
    return (
        one.state, one.version, one.entered_at, deadline(one), held, one.handle, one.unreachable_since, one.health,
        one.cordoned, one.drain_at, one.destroy_at, one.message,
    )  # fmt: skip


def _shown(row: Record) -> Shown:
    fields = dict(row)
    fleet = fields.pop("fleet")
    return Shown(_made(fields), fleet)


def _unfinished(row: Record) -> Unfinished:
    fields = dict(row)
    project_id = fields.pop("project_id")
    return Unfinished(_made(fields), project_id)


def read(row: Record) -> Instance:
    return _made(dict(row))


def _made(fields: dict[str, Any]) -> Instance:
    del fields["deadline_at"]
    held = fields.pop("held")
    jobs = {JobId(UUID(job)): tuple(numbers) for job, numbers in json.loads(held).items()} if held != "{}" else {}
    fields["blocks"] = Blocks(capacity_of(fields.pop("capacity")), fields["blocks"], jobs)
    fields["state"] = _STATES[fields["state"]]
    fields["attempt"] = 0
    return made(Instance, fields)


_STATES: dict[str, S] = {one.value: one for one in S}


@lru_cache(maxsize=1024)
def capacity_of(text: str) -> Capacity:
    return Capacity.from_json(json.loads(text))
