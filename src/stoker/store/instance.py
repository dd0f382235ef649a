"""Instances as rows, with the blocks that jobs hold of them."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.errors import NotFound
from stoker.core.evolve import made
from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, instance_name
from stoker.core.instance import deadline
from stoker.core.instance_facts import Instance, S
from stoker.core.resources import Capacity
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection, Record

LOCK = """
SELECT * FROM instance WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
"""
"""Waits: whoever holds an instance holds all its runs already, so it cannot be waiting for ours."""

INSERT = Part("instance_insert", """
INSERT INTO instance (id, fleet_id, backend, capacity, blocks, owned, shim, provisioning_limit_s, price, spot, offer,
                      location, state, version, entered_at, deadline_at, held, handle, unreachable_since, health,
                      cordoned, drain_at, destroy_at, message, launched_at, ended_at, failed_at)
SELECT id, fleet_id, backend, capacity, blocks, owned, shim, provisioning_limit_s, price, spot, offer,
       location, state, version, entered_at, deadline_at, held, handle, unreachable_since, health, cordoned, drain_at,
       destroy_at, message, launched_at, ended_at, failed_at
FROM unnest($1::instance_row[])
RETURNING 1
""", 1)  # fmt: skip

SAVE = Part("instance_save", """
UPDATE instance
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    held = new.held, handle = new.handle, unreachable_since = new.unreachable_since, health = new.health,
    cordoned = new.cordoned, drain_at = new.drain_at, destroy_at = new.destroy_at, message = new.message,
    launched_at = new.launched_at, ended_at = new.ended_at, failed_at = new.failed_at, blocks = new.blocks,
    capacity = new.capacity
FROM unnest($1::instance_row[]) AS new
WHERE instance.id = new.id AND instance.version = new.was
RETURNING 1
""", 1)  # fmt: skip

_WITH_PLACE = """
instance LEFT JOIN fleet ON fleet.id = instance.fleet_id LEFT JOIN host ON host.instance_id = instance.id
"""

PROVIDED = """
SELECT instance.*, host.instance_id IS NOT NULL AS reached FROM instance
LEFT JOIN host ON host.instance_id = instance.id
WHERE instance.backend = $1 AND NOT instance.owned AND instance.state <> 'TERMINATED' ORDER BY instance.id
"""

FAILURES = """
SELECT backend, offer, location, spot, failed_at, launched_at FROM instance
WHERE failed_at > $1 AND offer <> '' ORDER BY failed_at DESC LIMIT $2
"""

OF_FLEETS = """
SELECT * FROM instance WHERE fleet_id IS NOT NULL AND state <> 'TERMINATED' ORDER BY id
"""

JOBS = """
SELECT job.id, spec.name AS run, spec.project_id, job.replica, job.node, job.state
FROM job JOIN run_spec AS spec ON spec.run_id = job.run_id
WHERE job.id = ANY($1::uuid[]) AND spec.project_id = $2 ORDER BY spec.name, job.replica, job.node LIMIT $3
"""
STANDING = f"""
SELECT instance.id, instance.version, coalesce(host.project_id, fleet.project_id) AS project_id FROM {_WITH_PLACE}
WHERE instance.state <> 'TERMINATED' ORDER BY instance.id
"""

SOME = "SELECT * FROM instance WHERE id = ANY($1::uuid[]) AND state <> 'TERMINATED'"

DUE = """
SELECT id FROM instance WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2
"""

_VISIBLE = f"""
SELECT instance.*, fleet.name AS fleet, coalesce(host.project_id, fleet.project_id) AS project_id FROM {_WITH_PLACE}
WHERE coalesce(host.project_id, fleet.project_id, $1) = $1
"""

PAGE = f"""
{_VISIBLE} AND instance.id > $2 AND ($3 OR instance.state <> 'TERMINATED') AND ($5::text IS NULL OR fleet.name = $5)
ORDER BY instance.id LIMIT $4
"""

NAMED = f"{_VISIBLE} AND instance.backend || '-' || right(instance.id::text, 6) = $2 ORDER BY instance.id"
"""As `instance_name` makes them."""

NAMES = "SELECT id, backend FROM instance WHERE id = ANY($1::uuid[])"

COUNTS = "SELECT state, count(*) FROM instance WHERE state <> 'TERMINATED' GROUP BY state"

_UNCHANGED = (None,) * 5
"""Written once, when the instance is inserted, as is what it is before its blocks."""


async def lock(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, Instance]:
    return {instance.id: instance for instance in map(read, await tx.fetch(LOCK, list(ids)))}


async def get(tx: Connection, id: InstanceId) -> Instance:
    row = await tx.fetchrow("SELECT * FROM instance WHERE id = $1", id)
    if row is None:
        raise NotFound(f"There is no instance {id}.")
    return read(row)


async def ended(tx: Connection, id: InstanceId) -> bool:
    return bool(await tx.fetchval("SELECT state = 'TERMINATED' FROM instance WHERE id = $1", id))


class Unfinished(NamedTuple):
    instance: Instance
    project_id: ProjectId | None
    """The only one that it serves; None: any."""


class Provided(NamedTuple):
    """A machine of a provider's."""

    instance: Instance
    reached: bool
    """The way to it is known."""


async def provided(tx: Connection, backend: str) -> list[Provided]:
    return [_provided(row) for row in await tx.fetch(PROVIDED, backend)]


class Failure(NamedTuple):
    backend: str
    offer: str
    location: str
    spot: bool
    failed_at: float
    launched_at: float | None
    """When its launch was accepted, if it ever was."""


async def failures(tx: Connection, since: float, limit: int) -> list[Failure]:
    """Instances that were refused, preempted or lost, the latest first."""
    return [Failure(*row.values()) for row in await tx.fetch(FAILURES, since, limit)]


class Standing(NamedTuple):
    """An unfinished instance, without what may be known of this version of it already."""

    id: InstanceId
    version: int
    project_id: ProjectId | None
    """The only one that it serves; None: any."""


async def standing(tx: Connection) -> list[Standing]:
    return [Standing(*row.values()) for row in await tx.fetch(STANDING)]


async def some(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, Instance]:
    """Those of them that have not finished."""
    return {one.id: one for one in map(read, await tx.fetch(SOME, list(ids)))}


class Shown(NamedTuple):
    instance: Instance
    fleet: str | None
    """Its name."""
    project_id: ProjectId | None
    """The only one that it serves; None: any."""


class Tenant(NamedTuple):
    """A job that holds a part of an instance."""

    id: JobId
    run: str
    project_id: ProjectId
    replica: int
    node: int
    state: str


async def page(
    tx: Connection, project_id: ProjectId, after: UUID, finished: bool, limit: int, fleet: str | None = None
) -> list[Shown]:
    """Those that the project may use; `finished` ones only when they are asked for."""
    return [_shown(row) for row in await tx.fetch(PAGE, project_id, after, finished, limit, fleet)]


async def visible(tx: Connection, project_id: ProjectId, id: UUID) -> Shown | None:
    row = await tx.fetchrow(f"{_VISIBLE} AND instance.id = $2", project_id, id)
    return _shown(row) if row else None


async def named(tx: Connection, project_id: ProjectId, name: str) -> list[Shown]:
    """Those that people call so: one, unless the ends of two ids happen to be the same."""
    return [_shown(row) for row in await tx.fetch(NAMED, project_id, name)]


async def names(tx: Connection, ids: Iterable[InstanceId]) -> dict[InstanceId, str]:
    return {row["id"]: instance_name(row["backend"], row["id"]) for row in await tx.fetch(NAMES, list(ids))}


async def of_fleets(tx: Connection) -> dict[FleetId, list[Instance]]:
    """Those that are not gone, by fleet."""
    found: dict[FleetId, list[Instance]] = {}
    for one in map(read, await tx.fetch(OF_FLEETS)):
        if one.fleet_id is not None:
            found.setdefault(one.fleet_id, []).append(one)
    return found


async def tenants(tx: Connection, one: Instance, project_id: ProjectId, limit: int) -> list[Tenant]:
    """The jobs on it, of one project; of others only their number is anybody's business."""
    return [Tenant(*row) for row in await tx.fetch(JOBS, list(one.blocks.held), project_id, limit)]


async def counts(tx: Connection) -> dict[str, int]:
    """By state, for the metrics."""
    return {row["state"]: row["count"] for row in await tx.fetch(COUNTS)}


def insert(bundle: Bundle, instances: Sequence[Instance]) -> None:
    rows = [
        (one.id, one.fleet_id, one.backend, _capacity(one.blocks.capacity), one.blocks.total, one.owned,
         one.shim, one.provisioning_limit_s, one.price, one.spot, None, *_changing(one), one.offer, one.location,
         *_moments(one))
        for one in instances
    ]  # fmt: skip
    bundle.add(INSERT, [rows])


def save(bundle: Bundle, instances: Sequence[tuple[int, Instance]]) -> None:
    """Each with the version it was loaded with."""
    rows = [
        (
            one.id,
            None,
            None,
            _capacity(one.blocks.capacity),
            one.blocks.total,
            *_UNCHANGED,
            was,
            *_changing(one),
            None,
            None,
            *_moments(one),
        )
        for was, one in instances
    ]
    bundle.add(SAVE, [rows], expected=len(rows))


def _changing(one: Instance) -> tuple[Any, ...]:
    held = json.dumps({str(job): numbers for job, numbers in one.blocks.held.items()})
    return (
        one.state, one.version, one.entered_at, deadline(one), held, one.handle, one.unreachable_since, one.health,
        one.cordoned, one.drain_at, one.destroy_at, one.message,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _capacity(capacity: Capacity) -> str:
    return json.dumps(capacity.to_json())


def _moments(one: Instance) -> tuple[float | None, ...]:
    return one.launched_at, one.ended_at, one.failed_at


def _shown(row: Record) -> Shown:
    fields = dict(row)
    fleet, project_id = fields.pop("fleet"), fields.pop("project_id")
    return Shown(_made(fields), fleet, project_id)


def _provided(row: Record) -> Provided:
    fields = dict(row)
    reached = fields.pop("reached")
    return Provided(_made(fields), reached)


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
