"""Volumes as rows, with the jobs that they are attached to."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from stoker.core.evolve import made
from stoker.core.ids import InstanceId, JobId, ProjectId, VolumeId, instance_name
from stoker.core.volume import deadline
from stoker.core.volume_facts import Kind, S, Volume
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection, Record

_COLUMNS = """
id, project_id, name, kind, exclusive, size_mb, source, fleet_id, instance_id, named, used, held, state, version,
entered_at, handle, message
"""

LOCK = f"SELECT {_COLUMNS} FROM volume WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE"

SOME = f"SELECT {_COLUMNS} FROM volume WHERE id = ANY($1::uuid[])"

INSERT = Part("volume_insert", """
INSERT INTO volume (id, project_id, name, kind, spec, made_by, exclusive, size_mb, source, fleet_id, instance_id,
                    named, used, held, state, version, entered_at, created_at, deadline_at, handle, message)
SELECT id, project_id, name, kind, spec, made_by, exclusive, size_mb, source, fleet_id, instance_id, named, used,
       held::uuid[], state, version, entered_at, created_at, deadline_at, handle, message
FROM unnest($1::volume_row[])
RETURNING 1
""", 1)  # fmt: skip

SAVE = Part("volume_save", """
UPDATE volume
SET state = new.state, version = new.version, entered_at = new.entered_at, deadline_at = new.deadline_at,
    instance_id = new.instance_id, used = new.used, held = new.held::uuid[], handle = new.handle, message = new.message
FROM unnest($1::volume_row[]) AS new
WHERE volume.id = new.id AND volume.version = new.was
RETURNING 1
""", 1)  # fmt: skip

DUE = "SELECT id FROM volume WHERE deadline_at <= $1 ORDER BY deadline_at LIMIT $2"

_SHOWN = """
SELECT volume.*, instance.backend AS on_backend, instance.state AS on_state, fleet.name AS fleet,
       project.name AS project,
       ARRAY(SELECT outbox.error FROM outbox WHERE outbox.target = volume.id AND outbox.error <> ''
             ORDER BY outbox.made_at) AS troubles,
       ARRAY(SELECT run.name || '/' || job.replica || '-' || job.node FROM job JOIN run ON run.id = job.run_id
             WHERE job.id = ANY(volume.held) ORDER BY 1) AS holders
FROM volume
JOIN project ON project.id = volume.project_id
LEFT JOIN instance ON instance.id = volume.instance_id
LEFT JOIN fleet ON fleet.id = volume.fleet_id
"""

PAGE = f"{_SHOWN} WHERE volume.project_id = $1 AND volume.id > $2 AND volume.state <> 'DELETED' ORDER BY 1 LIMIT $3"

GET = f"""
{_SHOWN} WHERE volume.project_id = $1 AND volume.name = $2
ORDER BY volume.state = 'DELETED', volume.id DESC LIMIT 1
"""
"""The one that is there; else the last one of that name."""

NAMED = f"SELECT {_COLUMNS} FROM volume WHERE project_id = $1 AND name = ANY($2::text[]) AND state <> 'DELETED'"

NAMES = """
SELECT name FROM volume WHERE project_id = $1 AND state NOT IN ('DELETING', 'DELETED') ORDER BY name LIMIT 500
"""

USERS = """
SELECT name FROM run
WHERE project_id = $1 AND policy ? 'volumes' AND state NOT IN ('TERMINATED', 'FAILED', 'DONE')
  AND policy -> 'volumes' ? $2
ORDER BY id LIMIT $3
"""

HOLDERS = """
SELECT job.id, run.name, job.replica, job.node FROM job JOIN run ON run.id = job.run_id WHERE job.id = ANY($1::uuid[])
"""

ORPHANS = """
SELECT volume.id, volume.instance_id, instance.backend, instance.message
FROM volume JOIN instance ON instance.id = volume.instance_id
WHERE volume.instance_id IS NOT NULL AND volume.state = 'ACTIVE' AND volume.held = '{}'
  AND instance.state = 'TERMINATED'
LIMIT $1
"""
"""On an instance that is gone."""

HOMES = """
SELECT instance_id, min(name) AS name FROM volume
WHERE instance_id IS NOT NULL AND state NOT IN ('DELETED', 'FAILED') AND ($1::uuid IS NULL OR instance_id = $1)
GROUP BY instance_id
"""

RETAG = "UPDATE volume SET spec = $3, version = version + 1 WHERE id = $1 AND version = $2"


class Born(Protocol):
    @property
    def spec(self) -> str: ...
    @property
    def user(self) -> str: ...


class Shown(NamedTuple):
    volume: Volume
    spec: str
    created_at: float
    project: str
    fleet: str | None
    where: str
    """The name of its instance."""
    gone: bool
    """That instance is."""
    holders: tuple[str, ...]
    troubles: tuple[str, ...]
    made_by: str


class Holder(NamedTuple):
    run: str
    replica: int
    node: int


async def lock(tx: Connection, ids: Collection[UUID]) -> dict[VolumeId, Volume]:
    return {one.id: one for one in map(_read, await tx.fetch(LOCK, list(ids)))}


async def some(tx: Connection, ids: Collection[UUID]) -> dict[VolumeId, Volume]:
    return {one.id: one for one in map(_read, await tx.fetch(SOME, list(ids)))} if ids else {}


async def page(tx: Connection, project_id: ProjectId, after: UUID, limit: int) -> list[Shown]:
    return [_shown(row) for row in await tx.fetch(PAGE, project_id, after, limit)]


async def get(tx: Connection, project_id: ProjectId, name: str) -> Shown | None:
    row = await tx.fetchrow(GET, project_id, name)
    return _shown(row) if row else None


async def named(tx: Connection, project_id: ProjectId, names: Iterable[str]) -> dict[str, Volume]:
    """Those that are not gone."""
    return {one.name: one for one in map(_read, await tx.fetch(NAMED, project_id, list(names)))}


async def names(tx: Connection, project_id: ProjectId) -> list[str]:
    return [row["name"] for row in await tx.fetch(NAMES, project_id)]


async def users(tx: Connection, volume: Volume, limit: int) -> list[str]:
    """Unfinished runs that want it."""
    return [row["name"] for row in await tx.fetch(USERS, volume.project_id, str(volume.id), limit)]


async def holders(tx: Connection, jobs: Collection[JobId]) -> dict[JobId, Holder]:
    return {row["id"]: Holder(row["name"], row["replica"], row["node"]) for row in await tx.fetch(HOLDERS, list(jobs))}


class Orphan(NamedTuple):
    id: VolumeId
    instance_id: InstanceId
    where: str
    message: str


async def orphans(tx: Connection, limit: int) -> list[Orphan]:
    return [
        Orphan(row["id"], row["instance_id"], instance_name(row["backend"], row["instance_id"]), row["message"])
        for row in await tx.fetch(ORPHANS, limit)
    ]


async def homes(tx: Connection, instance_id: InstanceId | None = None) -> dict[InstanceId, str]:
    """Instances on which volumes are, each with the name of one of them."""
    return {row["instance_id"]: row["name"] for row in await tx.fetch(HOMES, instance_id)}


async def retag(tx: Connection, volume: Volume, spec: str) -> bool:
    done = await tx.execute(RETAG, volume.id, volume.version, spec)
    return done.endswith(" 1")


def insert(bundle: Bundle, born: Sequence[tuple[Volume, Born]], now: float) -> None:
    rows = [
        (one.id, one.project_id, one.name, one.kind, birth.spec, birth.user, one.exclusive, one.size_mb, one.source,
         one.fleet_id, None, *_changing(one, now))
        for one, birth in born
    ]  # fmt: skip
    bundle.add(INSERT, [rows])


def save(bundle: Bundle, volumes: Sequence[tuple[int, Volume]]) -> None:
    """Each with the version it was loaded with."""
    rows = [(one.id, *(None,) * 9, was, *_changing(one, None)) for was, one in volumes]
    bundle.add(SAVE, [rows], expected=len(rows))


def _changing(one: Volume, now: float | None) -> tuple[Any, ...]:
    held = "{" + ",".join(map(str, one.held)) + "}"
    return (
        one.instance_id, one.named, one.used, held, one.state, one.version, one.entered_at, now, deadline(one),
        one.handle, one.message,
    )  # fmt: skip


def _read(row: Record) -> Volume:
    fields = dict(row)
    changed = {"kind": Kind(fields["kind"]), "state": S(fields["state"]), "held": tuple(fields["held"]), "attempt": 0}
    return made(Volume, fields | changed)


_FIELDS = tuple(column.strip() for column in _COLUMNS.split(","))


def _shown(row: Record) -> Shown:
    fields = dict(row)
    changed = {"kind": Kind(fields["kind"]), "state": S(fields["state"]), "held": tuple(fields["held"]), "attempt": 0}
    volume = made(Volume, {name: fields[name] for name in _FIELDS} | changed)
    where = instance_name(fields["on_backend"], fields["instance_id"]) if fields["on_backend"] else ""
    return Shown(
        volume, fields["spec"], fields["created_at"], fields["project"], fields["fleet"], where,
        fields["on_state"] == "TERMINATED", tuple(fields["holders"]), tuple(fields["troubles"]),
        fields["made_by"],
    )  # fmt: skip


def spec_of(shown: Shown) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown.spec)
    return found
