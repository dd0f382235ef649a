"""Projects and their members as rows."""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from stoker.core.errors import NotFound
from stoker.core.ids import ProjectId
from stoker.store.database import Connection

_COLUMNS = "id, name, created_at"

INSERT = f"""
INSERT INTO project ({_COLUMNS}) VALUES ($1, $2, $3) ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING RETURNING 1
"""

GET = f"SELECT {_COLUMNS} FROM project WHERE name = $1 AND deleted_at IS NULL"

PAGE = f"""
SELECT {_COLUMNS} FROM project
WHERE deleted_at IS NULL AND name > $1 AND ($2::uuid[] IS NULL OR id = ANY ($2)) ORDER BY name LIMIT $3
"""

PREFERRED = "SELECT id FROM project WHERE deleted_at IS NULL ORDER BY name <> $1, created_at, id LIMIT 1"

DELETE = """
UPDATE project SET deleted_at = $2
WHERE id = $1 AND deleted_at IS NULL AND NOT EXISTS (
    SELECT FROM run WHERE project_id = $1 AND state NOT IN ('TERMINATED', 'FAILED', 'DONE')
)
RETURNING 1
"""

REMOVE = """
DELETE FROM project
WHERE deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM run_spec WHERE run_spec.project_id = project.id)
  AND NOT EXISTS (SELECT FROM run WHERE run.project_id = project.id)
  AND NOT EXISTS (SELECT FROM fleet WHERE fleet.project_id = project.id)
"""

SET_MEMBER = """
INSERT INTO member (project_id, user_id, role, added_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (project_id, user_id) DO UPDATE SET role = excluded.role
"""

MEMBERS = """
SELECT "user".id AS user_id, "user".name AS user, member.role, member.added_at
FROM member JOIN "user" ON "user".id = member.user_id
WHERE member.project_id = $1 AND "user".name > $2 ORDER BY "user".name LIMIT $3
"""

MEMBER = """
SELECT "user".id AS user_id, "user".name AS user, member.role, member.added_at
FROM member JOIN "user" ON "user".id = member.user_id
WHERE member.project_id = $1 AND "user".name = $2
"""


class Project(NamedTuple):
    id: ProjectId
    name: str
    created_at: float


class Member(NamedTuple):
    user_id: UUID
    user: str
    role: str
    added_at: float


async def insert(tx: Connection, project: Project) -> bool:
    """False: the name is taken."""
    return await tx.fetchval(INSERT, *project) is not None


async def preferred(tx: Connection, name: str) -> ProjectId | None:
    """The one of that name, else the oldest; None: there is none at all."""
    id: ProjectId | None = await tx.fetchval(PREFERRED, name)
    return id


async def get(tx: Connection, name: str) -> Project:
    row = await tx.fetchrow(GET, name)
    if row is None:
        raise NotFound(f"There is no project {name}.")
    return Project(*row.values())


async def page(tx: Connection, among: Collection[UUID] | None, after: str, limit: int) -> list[Project]:
    """`among` None: all of them."""
    return [Project(*row.values()) for row in await tx.fetch(PAGE, after, among, limit)]


async def delete(tx: Connection, id: ProjectId, now: float) -> bool:
    """Its name is free at once, its runs are removed by and by. False: a run of it is not finished."""
    return await tx.fetchval(DELETE, id, now) is not None


async def remove_empty(tx: Connection) -> int:
    """The rows of deleted projects of which nothing is left."""
    return int((await tx.execute(REMOVE)).rpartition(" ")[2])


async def set_member(tx: Connection, id: ProjectId, user_id: UUID, role: str, now: float) -> None:
    await tx.execute(SET_MEMBER, id, user_id, role, now)


async def remove_member(tx: Connection, id: ProjectId, user_id: UUID) -> None:
    await tx.execute("DELETE FROM member WHERE project_id = $1 AND user_id = $2", id, user_id)


async def member(tx: Connection, id: ProjectId, user: str) -> Member:
    row = await tx.fetchrow(MEMBER, id, user)
    if row is None:
        raise NotFound(f"{user} is no member of this project.")
    return Member(*row.values())


async def role_of(tx: Connection, id: ProjectId, user_id: UUID) -> str | None:
    """None: no member."""
    role: str | None = await tx.fetchval("SELECT role FROM member WHERE project_id = $1 AND user_id = $2", id, user_id)
    return role


async def members(tx: Connection, id: ProjectId, after: str, limit: int) -> list[Member]:
    return [Member(*row.values()) for row in await tx.fetch(MEMBERS, id, after, limit)]
