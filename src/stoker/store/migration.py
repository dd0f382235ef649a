"""Numbered SQL files, forward only, applied at start.

Each file is one transaction: take the lock, look at what is applied, apply the next one, record it, commit. The lock
belongs to the transaction, so any number of servers may migrate at once and each file is applied by exactly one of
them. A server that dies in the middle leaves nothing half done.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import asyncpg
import structlog

from stoker.core.errors import Broken, UserError
from stoker.store.database import Connection, Database

DIRECTORY: Final = Path(__file__).parent / "migrations"
LOCK: Final = 0x53746F6B6572  # "Stoker"; the locks of loops are small numbers
PATIENCE_S: Final = 3600.0
_NAME: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL
)
"""

_log = structlog.get_logger()


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    sql: str

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def written(directory: Path = DIRECTORY) -> list[Migration]:
    """The migrations of this version of Stoker, in order."""
    found = []
    for path in sorted(directory.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise Broken(f"{path.name} is no name of a migration.", hint="It looks like 0001_job.sql.")
        # Bytes and not text: the checksum must not depend on how the platform reads line ends.
        found.append(Migration(int(match[1]), match[2], path.read_bytes().decode()))
    for number, migration in enumerate(found, start=1):
        if migration.number != number:
            raise Broken(
                f"Migration {number:04} is missing, or two have one number: {migration}.sql.",
                hint="Number the files 0001, 0002 and so on without gaps.",
            )
    return found


async def migrate(database: Database, directory: Path = DIRECTORY) -> list[str]:
    """Applies what is missing and returns the names of what this call applied."""
    migrations = written(directory)
    applied: list[str] = []
    while True:
        async with database.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", LOCK, timeout=PATIENCE_S)
            await tx.execute(_CREATE)
            done = await tx.fetch("SELECT number, name, checksum FROM migration ORDER BY number")
            _compare(migrations, done)
            if len(done) == len(migrations):
                return applied
            await _apply(tx, migrations[len(done)])
        migration = migrations[len(done)]
        applied.append(migration.name)
        _log.info("migration applied", number=migration.number, name=migration.name)


def _compare(migrations: Sequence[Migration], done: Sequence[asyncpg.Record]) -> None:
    if len(done) > len(migrations):
        raise UserError(
            f"The database is newer than this Stoker: it has migration {done[-1]['number']:04}_{done[-1]['name']}, "
            f"and this version knows {len(migrations)}.",
            hint="Start the version that wrote it, or a later one; migrations do not go back.",
            code="database_newer",
        )
    for migration, row in zip(migrations, done, strict=False):
        if row["number"] != migration.number:
            raise UserError(
                f"Migration {migration} was never applied to this database, but later ones were.",
                hint="Restore the database from a backup; its migration table was changed by hand.",
                code="database_gap",
            )
        if row["checksum"] != migration.checksum:
            raise UserError(
                f"Migration {migration} changed after it was applied to this database.",
                hint="Bring back the file as it was, and write the change as a new migration.",
                code="database_changed",
            )


async def _apply(tx: Connection, migration: Migration) -> None:
    try:
        await tx.execute(migration.sql, timeout=PATIENCE_S)
    except (asyncpg.SyntaxOrAccessError, asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
        raise Broken(f"Migration {migration} failed: {error}.", hint="Nothing of it was applied.") from error
    if not tx.is_in_transaction():
        raise Broken(f"Migration {migration} ends its transaction.", hint="Remove COMMIT or ROLLBACK from the file.")
    await tx.execute(
        "INSERT INTO migration (number, name, checksum, applied_at) VALUES ($1, $2, $3, $4)",
        migration.number,
        migration.name,
        migration.checksum,
        datetime.now(UTC),
    )
