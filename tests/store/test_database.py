"""The pool: what commits, what does not, and what is said when PostgreSQL goes away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from stoker.core.errors import Broken, Unavailable, UserError
from stoker.store import database as module
from stoker.store.database import Connection, ConnectionLost, Database
from stoker.store.postgres import Embedded
from tests.conftest import Databases, url_of


@asynccontextmanager
async def things(databases: Databases) -> AsyncIterator[Database]:
    async with databases() as db:
        async with db.connection() as connection:
            await connection.execute("CREATE TABLE thing (n int PRIMARY KEY)")
        yield db


async def count(db: Database) -> int:
    async with db.connection() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM thing"))


async def end_session(db: Database, victim: Connection) -> None:
    """What an administrator, a failover or a crash does to a connection."""
    async with db.connection() as other:
        await other.execute("SELECT pg_terminate_backend($1, 5000)", victim.get_server_pid())


async def test_commits_at_the_end_and_rolls_back_what_raises(empty_database: Databases) -> None:
    async with things(empty_database) as db:
        async with db.transaction() as tx:
            assert await tx.fetchval("SHOW transaction_isolation") == "read committed"
            await tx.execute("INSERT INTO thing VALUES (1)")
        with pytest.raises(LookupError):
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO thing VALUES (2)")
                raise LookupError
        assert await count(db) == 1


async def test_a_savepoint_isolates_one_failure(empty_database: Databases) -> None:
    async with things(empty_database) as db:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO thing VALUES (1)")
            with pytest.raises(asyncpg.UniqueViolationError):
                async with tx.transaction():
                    await tx.execute("INSERT INTO thing VALUES (1)")
            await tx.execute("INSERT INTO thing VALUES (2)")
        assert await count(db) == 2


async def test_a_swallowed_error_is_not_taken_for_a_commit(empty_database: Databases) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK then, and a caller would have told somebody that it is accepted."""
    async with things(empty_database) as db:
        with pytest.raises(Broken):
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO thing VALUES (1)")
                with pytest.raises(asyncpg.UniqueViolationError):
                    await tx.execute("INSERT INTO thing VALUES (1)")
        assert await count(db) == 0


async def test_errors_of_statements_pass_through(empty_database: Databases) -> None:
    async with things(empty_database) as db:
        with pytest.raises(asyncpg.UniqueViolationError):
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO thing VALUES (1), (1)")
        with pytest.raises(FileNotFoundError):
            async with db.transaction() as tx:
                raise FileNotFoundError
        assert await count(db) == 0


async def test_a_connection_lost_in_the_middle(empty_database: Databases) -> None:
    """PostgreSQL restarts while a transaction is open: nothing of it happened, and the next one works."""
    async with things(empty_database) as db:
        with pytest.raises(ConnectionLost) as lost:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO thing VALUES (1)")
                await end_session(db, tx)
                await tx.execute("INSERT INTO thing VALUES (2)")
        assert not lost.value.outcome_unknown
        assert await count(db) == 0


async def test_a_connection_lost_during_commit_has_an_unknown_outcome(empty_database: Databases) -> None:
    async with things(empty_database) as db:
        async with db.connection() as connection:
            await connection.execute(
                """
                CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
                CREATE CONSTRAINT TRIGGER die AFTER INSERT ON thing DEFERRABLE INITIALLY DEFERRED
                    FOR EACH ROW EXECUTE FUNCTION die();
                """
            )
        with pytest.raises(ConnectionLost) as lost:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO thing VALUES (1)")
        assert lost.value.outcome_unknown
        assert await count(db) == 0


async def test_a_commit_that_takes_too_long_has_an_unknown_outcome(empty_database: Databases) -> None:
    async with things(empty_database) as slow:
        async with slow.connection() as connection:
            await connection.execute(
                """
                CREATE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$;
                CREATE CONSTRAINT TRIGGER doze AFTER INSERT ON thing DEFERRABLE INITIALLY DEFERRED
                    FOR EACH ROW EXECUTE FUNCTION doze();
                """
            )
        async with await Database.connect(slow.url, pool_size=1, command_s=0.5) as db:
            with pytest.raises(ConnectionLost) as lost:
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO thing VALUES (1)")
            assert lost.value.outcome_unknown
            assert await count(db) == 0


async def test_a_busy_pool_says_so(empty_database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACQUIRE_S", 0.2)
    async with empty_database() as other, await Database.connect(other.url, pool_size=1) as db, db.transaction():
        with pytest.raises(Unavailable) as refused:
            async with db.connection():
                pass
    assert refused.value.code == "database_busy"


async def test_tables_changed_by_another_replica(empty_database: Databases) -> None:
    """A newer replica migrates; the statements prepared by this one fail once and can be tried again."""
    async with things(empty_database) as db, await Database.connect(db.url, pool_size=1) as old:
        query = "SELECT * FROM thing"
        async with old.transaction() as tx:
            await tx.fetch(query)
        async with db.connection() as connection:
            await connection.execute("ALTER TABLE thing ADD m int")
        with pytest.raises(Unavailable):
            async with old.transaction() as tx:
                await tx.fetch(query)
        async with old.transaction() as tx:
            await tx.fetch(query)


async def test_wrong_urls_are_explained(postgres: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = urlsplit(postgres.url)
    with_wrong_password = urlunsplit(parts._replace(netloc=f"{parts.username}:secret@"))
    for url, code in [
        (with_wrong_password, "database_password"),
        (url_of(postgres, "absent"), "database_missing"),
        ("mysql://host/db", "database_url"),
        ("postgresql://host:port/db", "database_url"),
    ]:
        with pytest.raises(UserError) as refused:
            await Database.connect(url)
        assert refused.value.code == code and refused.value.hint
        assert parts.password and parts.password not in str(refused.value) and "secret" not in str(refused.value)
    monkeypatch.setattr(module, "OLDEST_MAJOR", 99)
    with pytest.raises(UserError, match="too old"):
        await Database.connect(postgres.url)


@pytest.mark.parametrize("url", ["postgresql://u:secret@127.0.0.1:1/db", "postgresql://u:secret@/db?host=/nonexistent"])
async def test_an_unreachable_server_is_explained(url: str) -> None:
    with pytest.raises(ConnectionLost, match="cannot be reached") as refused:
        await Database.connect(url)
    assert "secret" not in str(refused.value)
