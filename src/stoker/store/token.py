"""Bearer tokens as rows: only the hash of the secret is kept."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import ProjectId
from stoker.store.database import Connection, Record

INSERT = """
INSERT INTO token (id, user_id, project_id, name, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
"""

_SHOWN = """
SELECT token.id, token.name, token.user_id, "user".name AS user, project.name AS project, token.created_at,
       token.expires_at, token.used_at
FROM token JOIN "user" ON "user".id = token.user_id LEFT JOIN project ON project.id = token.project_id
"""

PAGE = f"{_SHOWN} WHERE ($1::uuid IS NULL OR token.user_id = $1) AND token.id > $2 ORDER BY token.id LIMIT $3"

FIND = """
SELECT token.id, token.expires_at, token.used_at, token.project_id, "user".id AS user_id, "user".name AS user,
       "user".admin,
       ARRAY(
           SELECT (project.id, project.name, member.role)
           FROM member JOIN project ON project.id = member.project_id
           WHERE member.user_id = "user".id AND project.deleted_at IS NULL
       ) AS roles,
       (SELECT name FROM project WHERE project.id = token.project_id AND deleted_at IS NULL) AS project
FROM token JOIN "user" ON "user".id = token.user_id
WHERE token.hash = $1
"""

USED = """
UPDATE token SET used_at = new.at FROM unnest($1::uuid[], $2::float8[]) AS new (id, at)
WHERE token.id = new.id AND (token.used_at IS NULL OR token.used_at < new.at)
"""


class NewToken(NamedTuple):
    id: UUID
    user_id: UUID
    project_id: UUID | None
    name: str
    hash: bytes
    created_at: float
    expires_at: float | None


class Token(NamedTuple):
    id: UUID
    name: str
    user_id: UUID
    user: str
    project: str | None
    created_at: float
    expires_at: float | None
    used_at: float | None


class Found(NamedTuple):
    """Whose token it is, and what it opens."""

    id: UUID
    user_id: UUID
    user: str
    admin: bool
    expires_at: float | None
    used_at: float | None
    project_id: UUID | None
    """It opens this project only, whatever its user may."""
    project: str | None
    roles: dict[str, tuple[ProjectId, str]]
    """By the names of projects."""


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def insert(tx: Connection, token: NewToken) -> None:
    await tx.execute(INSERT, *token)


async def get(tx: Connection, id: UUID) -> Token | None:
    row = await tx.fetchrow(f"{_SHOWN} WHERE token.id = $1", id)
    return Token(*row.values()) if row else None


async def page(tx: Connection, user_id: UUID | None, after: UUID, limit: int) -> list[Token]:
    """`user_id` None: everybody's."""
    return [Token(*row.values()) for row in await tx.fetch(PAGE, user_id, after, limit)]


async def find(tx: Connection, hash: bytes) -> Found | None:
    row = await tx.fetchrow(FIND, hash)
    return _found(row) if row else None


def _found(row: Record) -> Found:
    return Found(
        row["id"], row["user_id"], row["user"], row["admin"], row["expires_at"], row["used_at"], row["project_id"],
        row["project"], {name: (ProjectId(id), role) for id, name, role in row["roles"]},
    )  # fmt: skip


async def used(tx: Connection, moments: Mapping[UUID, float]) -> None:
    await tx.execute(USED, list(moments), list(moments.values()))


async def delete(tx: Connection, id: UUID) -> None:
    await tx.execute("DELETE FROM token WHERE id = $1", id)
