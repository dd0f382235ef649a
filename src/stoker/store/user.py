"""Users as rows."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.errors import NotFound
from stoker.store.database import Connection

_COLUMNS = "id, name, admin, created_at"

INSERT = f'INSERT INTO "user" ({_COLUMNS}) VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO NOTHING RETURNING 1'

PAGE = f'SELECT {_COLUMNS} FROM "user" WHERE name > $1 ORDER BY name LIMIT $2'

MEMBERSHIPS = """
SELECT project.name, member.role FROM member JOIN project ON project.id = member.project_id
WHERE member.user_id = $1 AND project.deleted_at IS NULL ORDER BY project.name
"""


class User(NamedTuple):
    id: UUID
    name: str
    admin: bool
    created_at: float


async def insert(tx: Connection, user: User) -> bool:
    """False: the name is taken."""
    return await tx.fetchval(INSERT, *user) is not None


async def get(tx: Connection, name: str) -> User:
    row = await tx.fetchrow(f'SELECT {_COLUMNS} FROM "user" WHERE name = $1', name)
    if row is None:
        raise NotFound(f"There is no user {name}.")
    return User(*row.values())


async def page(tx: Connection, after: str, limit: int) -> list[User]:
    return [User(*row.values()) for row in await tx.fetch(PAGE, after, limit)]


async def set_admin(tx: Connection, id: UUID, admin: bool) -> None:
    await tx.execute('UPDATE "user" SET admin = $2 WHERE id = $1', id, admin)


async def delete(tx: Connection, id: UUID) -> None:
    """Their tokens and memberships go with them; what they submitted stays under their name."""
    await tx.execute('DELETE FROM "user" WHERE id = $1', id)


async def count(tx: Connection, *, admins: bool = False) -> int:
    """Locks what it counts, so that no two requests remove the last admin together."""
    rows = await tx.fetch('SELECT id FROM "user" WHERE admin OR NOT $1 ORDER BY id FOR UPDATE', admins)
    return len(rows)


async def first_admin(tx: Connection) -> UUID:
    """There is always one: the last is never removed."""
    id: UUID = await tx.fetchval('SELECT id FROM "user" WHERE admin ORDER BY created_at, id LIMIT 1')
    return id


async def memberships(tx: Connection, id: UUID) -> list[tuple[str, str]]:
    return [(row["name"], row["role"]) for row in await tx.fetch(MEMBERSHIPS, id)]
