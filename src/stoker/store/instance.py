"""Instances as rows, with the blocks that jobs hold of them."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.errors import NotFound
from stoker.core.ids import InstanceId, JobId
from stoker.core.instance import Instance, S, deadline
from stoker.core.resources import Capacity
from stoker.store.bundle import Bundle, Part, columns
from stoker.store.database import Connection, Record

LOCK = """
SELECT * FROM instance WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
"""
"""Waits: whoever holds an instance holds all its runs already, so it cannot be waiting for ours."""

EXIST = """
SELECT id FROM instance WHERE id = ANY($1::uuid[])
"""

INSERT = Part("instance_insert", """
INSERT INTO instance (id, fleet_id, backend, capacity, blocks, owned, shim, provisioning_limit_s, price, spot, state,
                      version, entered_at, deadline_at, held, handle, unreachable_since, health, cordoned, drain_at,
                      destroy_at, message)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::jsonb[], $5::int[], $6::bool[], $7::bool[],
                     $8::float8[], $9::float8[], $10::bool[], $11::text[], $12::int8[], $13::float8[], $14::float8[],
                     $15::jsonb[], $16::text[], $17::float8[], $18::text[], $19::bool[], $20::float8[],
                     $21::float8[], $22::text[])
RETURNING 1
""", 22)  # fmt: skip

SAVE = Part("instance_save", """
UPDATE instance
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    held = new.held, handle = new.handle, unreachable_since = new.unreachable_since, health = new.health,
    cordoned = new.cordoned, drain_at = new.drain_at, destroy_at = new.destroy_at, message = new.message
FROM unnest($1::uuid[], $2::int8[], $3::text[], $4::int8[], $5::float8[], $6::float8[], $7::jsonb[], $8::text[],
            $9::float8[], $10::text[], $11::bool[], $12::float8[], $13::float8[], $14::text[])
  AS new (id, was, state, version, entered_at, deadline_at, held, handle, unreachable_since, health, cordoned,
          drain_at, destroy_at, message)
WHERE instance.id = new.id AND instance.version = new.was
RETURNING 1
""", 14)  # fmt: skip

UNFINISHED = """
SELECT * FROM instance WHERE state <> 'TERMINATED' ORDER BY id
"""

DUE = """
SELECT id FROM instance WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""


async def lock(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, Instance]:
    return {instance.id: instance for instance in map(read, await tx.fetch(LOCK, list(ids)))}


async def exist(tx: Connection, ids: Iterable[InstanceId]) -> set[InstanceId]:
    return {row["id"] for row in await tx.fetch(EXIST, list(ids))}


async def get(tx: Connection, id: InstanceId) -> Instance:
    row = await tx.fetchrow("SELECT * FROM instance WHERE id = $1", id)
    if row is None:
        raise NotFound(f"There is no instance {id}.")
    return read(row)


async def unfinished(tx: Connection) -> list[Instance]:
    return list(map(read, await tx.fetch(UNFINISHED)))


def insert(bundle: Bundle, instances: Sequence[Instance]) -> None:
    rows = [
        (one.id, one.fleet_id, one.backend, json.dumps(one.blocks.capacity.to_json()), one.blocks.total, one.owned,
         one.shim, one.provisioning_limit_s, one.price, one.spot, *_changing(one))
        for one in instances
    ]  # fmt: skip
    bundle.add(INSERT, columns(rows))


def save(bundle: Bundle, instances: Sequence[tuple[int, Instance]]) -> None:
    """Each with the version it was loaded with."""
    rows = [(one.id, was, *_changing(one)) for was, one in instances]
    bundle.add(SAVE, columns(rows), expected=len(rows))


def _changing(one: Instance) -> tuple[Any, ...]:
    held = json.dumps({str(job): numbers for job, numbers in one.blocks.held.items()})
    return (
        one.state, one.version, one.entered_at, deadline(one), held, one.handle, one.unreachable_since, one.health,
        one.cordoned, one.drain_at, one.destroy_at, one.message,
    )  # fmt: skip


def read(row: Record) -> Instance:
    held = {JobId(UUID(job)): tuple(numbers) for job, numbers in json.loads(row["held"]).items()}
    return Instance(
        id=row["id"], fleet_id=row["fleet_id"], backend=row["backend"],
        blocks=Blocks(capacity_of(row["capacity"]), row["blocks"], held), state=S(row["state"]),
        version=row["version"], entered_at=row["entered_at"], owned=row["owned"], shim=row["shim"],
        handle=row["handle"], unreachable_since=row["unreachable_since"], health=row["health"],
        cordoned=row["cordoned"], drain_at=row["drain_at"], destroy_at=row["destroy_at"],
        provisioning_limit_s=row["provisioning_limit_s"], price=row["price"], spot=row["spot"],
        message=row["message"],
    )  # fmt: skip


@lru_cache(maxsize=1024)
def capacity_of(text: str) -> Capacity:
    return Capacity.from_json(json.loads(text))
