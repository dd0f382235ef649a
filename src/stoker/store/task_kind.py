"""What swarm tasks share: the kind by which they are handed out, the keys that bound them, the scopes they count in.

Rows of kinds and scopes are never changed, so whoever has read one may remember it.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from math import floor, log2
from typing import Final, NamedTuple

from stoker.core.fit import Kind
from stoker.core.ids import ProjectId
from stoker.store.database import Connection

PROJECT, GROUP, LABEL = "project", "group", "label"

ADD_KINDS: Final = """
INSERT INTO task_kind (project_id, options, at_least_s, group_name, key_name)
SELECT $1, * FROM unnest($2::jsonb[], $3::float8[], $4::text[], $5::text[]) ON CONFLICT DO NOTHING
"""

FIND_KINDS: Final = """
SELECT wanted.place, k.id
FROM unnest($2::jsonb[], $3::float8[], $4::text[], $5::text[]) WITH ORDINALITY
    AS wanted (options, at_least_s, group_name, key_name, place)
JOIN task_kind k ON k.project_id = $1 AND (k.options, k.at_least_s, k.group_name, k.key_name)
    = (wanted.options, wanted.at_least_s, wanted.group_name, wanted.key_name)
"""

KINDS: Final = """
SELECT id, project_id, options, at_least_s, group_name, key_name FROM task_kind WHERE id = ANY($1::integer[])
"""

ADD_SCOPES: Final = """
INSERT INTO task_scope (project_id, sort, name)
SELECT $1, * FROM unnest($2::text[], $3::text[]) ON CONFLICT DO NOTHING
"""

FIND_SCOPES: Final = """
SELECT s.sort, s.name, s.id FROM task_scope s JOIN unnest($2::text[], $3::text[]) AS wanted (sort, name)
    ON s.sort = wanted.sort AND s.name = wanted.name
WHERE s.project_id = $1
"""

SET_KEYS: Final = """
INSERT INTO task_key (project_id, name, most) SELECT $1, * FROM unnest($2::text[], $3::integer[])
ON CONFLICT (project_id, name) DO UPDATE SET most = excluded.most WHERE task_key.most <> excluded.most
"""

KEYS_LEFT: Final = """
SELECT k.name, k.most - (
    SELECT count(*) FROM task_kind i JOIN task t ON t.kind_id = i.id AND t.keyed AND t.worker_id IS NOT NULL
    WHERE i.project_id = k.project_id AND i.key_name = k.name
) AS free
FROM task_key k WHERE k.project_id = $1 AND k.name = ANY($2::text[])
"""

# Only tasks with a key are counted, and whoever hands such out in the whole cluster takes turns.
KEY_LOCK: Final = "SELECT pg_advisory_xact_lock($1)"
_KEY_LOCK: Final = 0x7461_736B_5F6B_6579

WAITING_KINDS: Final = """
WITH RECURSIVE waiting (kind_id) AS (
    (SELECT kind_id FROM task WHERE project_id = $1 AND state = 'available' AND hold IS NULL
     ORDER BY kind_id LIMIT 1)
  UNION ALL
    SELECT (SELECT kind_id FROM task WHERE project_id = $1 AND state = 'available' AND hold IS NULL
            AND kind_id > waiting.kind_id ORDER BY kind_id LIMIT 1)
    FROM waiting WHERE waiting.kind_id IS NOT NULL
)
SELECT kind_id FROM waiting WHERE kind_id IS NOT NULL
"""


class KindKey(NamedTuple):
    """`options` is JSON text with sorted keys."""

    options: str
    at_least_s: float
    group: str
    key: str


class Stored(NamedTuple):
    project: ProjectId
    kind: Kind
    at_least_s: float
    """A worker that has less time left takes none of them; of those that begin at less, it looks at each."""


def at_least(estimated_runtime: float | None) -> float:
    return 0.0 if not estimated_runtime else 2.0 ** floor(log2(estimated_runtime))


def options_text(options: Iterable[str]) -> str:
    """Of amounts that are JSON text each."""
    return f"[{','.join(options)}]"


async def kind_ids(conn: Connection, project: ProjectId, wanted: Collection[KindKey]) -> dict[KindKey, int]:
    """The ids of these kinds; those that were not there before are made."""
    # In one order for everybody: who adds a kind waits for whoever is adding it too.
    keys = sorted(set(wanted))
    if not keys:
        return {}
    columns = list(zip(*keys, strict=True))
    found = await conn.fetch(FIND_KINDS, project, *columns)
    if len(found) < len(keys):
        await conn.execute(ADD_KINDS, project, *columns)
        found = await conn.fetch(FIND_KINDS, project, *columns)
    return {keys[row["place"] - 1]: row["id"] for row in found}


async def read(conn: Connection, ids: Collection[int]) -> dict[int, Stored]:
    return {row["id"]: _stored(*row[1:]) for row in await conn.fetch(KINDS, list(ids))}


def _stored(project: ProjectId, options: str, at_least_s: float, group: str, key: str) -> Stored:
    return Stored(project, Kind(tuple(json.loads(options)), group or None, key or None), at_least_s)


async def scope_ids(
    conn: Connection, project: ProjectId, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """By sort and name; those that were not there before are made."""
    named = sorted(set(wanted))
    columns = [sort for sort, _ in named], [name for _, name in named]
    found = await conn.fetch(FIND_SCOPES, project, *columns)
    if len(found) < len(named):
        await conn.execute(ADD_SCOPES, project, *columns)
        found = await conn.fetch(FIND_SCOPES, project, *columns)
    return {(row["sort"], row["name"]): row["id"] for row in found}


async def set_keys(conn: Connection, project: ProjectId, most: Mapping[str, int]) -> None:
    """How many tasks with each key may run at once. In the order of their names, since others may say so too."""
    if most:
        names = sorted(most)
        await conn.execute(SET_KEYS, project, names, [most[name] for name in names])


async def keys_left(conn: Connection, project: ProjectId, names: Collection[str]) -> dict[str, int]:
    """How many more tasks with these keys may be begun; it stays so until the transaction ends."""
    await conn.execute(KEY_LOCK, _KEY_LOCK)
    return {row["name"]: row["free"] for row in await conn.fetch(KEYS_LEFT, project, list(names))}


async def waiting_kinds(conn: Connection, project: ProjectId) -> set[int]:
    return {row["kind_id"] for row in await conn.fetch(WAITING_KINDS, project)}
