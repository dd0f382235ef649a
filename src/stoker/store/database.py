"""The pool of PostgreSQL connections, and the one place where a lost connection becomes an error of ours.

`transaction()`, `connection()` and `at_once()` lend a connection. What is raised inside them and means *the server is
away* leaves them as `ConnectionLost`; every other error of PostgreSQL passes through untouched. JSONB goes in and out
as text, `timestamptz` as aware datetimes: asyncpg's own defaults.

Connections are not reset between borrowers (that is a round trip for each), so session state must not be left
on one: `SET LOCAL` inside a transaction, no session-level advisory lock, `LISTEN` on a connection of its own.
An open transaction is always rolled back before the next borrower comes.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from urllib.parse import urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from stoker.core.errors import Broken, StokerError, Unavailable, UserError

if TYPE_CHECKING:
    Record: TypeAlias = asyncpg.Record
    _Base: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    """What the SQL functions of this room take."""
else:
    # asyncpg's classes are generic in its stubs only.
    Record = asyncpg.Record
    _Base = asyncpg.Connection
    Connection = asyncpg.Connection | PoolConnectionProxy

DISK_FULL: Final = "disk_full"
OLDEST_MAJOR: Final = 14
CONNECT_S: Final = 15.0
ACQUIRE_S: Final = 30.0
COMMAND_S: Final = 60.0

SESSION: Final = {
    "application_name": "stoker",
    "jit": "off",
    # The statements of the engine have one good plan; thinking about it anew costs more than following it.
    "plan_cache_mode": "force_generic_plan",
    # And that plan goes through an index, row by row. Made while the tables are empty, as after the first start, it
    # would read them whole, and stay so when they have grown.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # One that was frozen in the middle of a transaction must not hold its locks against everybody.
    "idle_in_transaction_session_timeout": "30s",
    # A replica whose machine vanished must not hold its row locks for the two hours that TCP would wait.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

# asyncpg raises these three families, and plain OSError (TimeoutError is one) from the socket below it.
_RAISED: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)

_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


class ConnectionLost(Unavailable):
    """PostgreSQL went away. With `outcome_unknown` the COMMIT was on its way: it may or may not have happened."""

    code = "database_unavailable"

    def __init__(self, sentence: str, *, hint: str = "", outcome_unknown: bool = False) -> None:
        super().__init__(sentence, hint=hint)
        self.outcome_unknown = outcome_unknown


class Generations:
    """Counts the servers behind the connections: one that was started again, or a standby in its place, is another."""

    def __init__(self) -> None:
        self.number = 0
        self._started: object = None

    async def greet(self, connection: Connection) -> None:
        """Before a new connection is used."""
        started = await connection.fetchval("SELECT pg_postmaster_start_time()")
        if started != self._started:
            self._started = started
            self.number += 1


class Database:
    """Lends connections of a bounded pool; made by `connect`, given back by `close`."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", url: str, generations: Generations) -> None:
        self._pool, self.url, self._where = pool, url, described(url)
        self._generations = generations

    @property
    def generation(self) -> int:
        """What was committed in an earlier one may be unknown to the server of today."""
        return self._generations.number

    @classmethod
    async def connect(cls, url: str, *, pool_size: int = 10, command_s: float = COMMAND_S) -> Self:
        """Connects once, so that a wrong URL, password or version is said at start and not at the first query."""
        where, generations = described(url), Generations()
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=pool_size,
                timeout=CONNECT_S,
                command_timeout=command_s,
                max_cached_statement_lifetime=0,
                server_settings=SESSION,
                connection_class=_Guarded,
                init=generations.greet,
            )
        except (*_RAISED, ValueError) as error:
            raise _refusal(error, where) from error
        async with pool.acquire() as connection:
            version = connection.get_server_version()
        if version.major < OLDEST_MAJOR:
            await pool.close()
            raise UserError(
                f"The database at {where} is PostgreSQL {version.major}, which is too old.",
                hint=f"Stoker needs PostgreSQL {OLDEST_MAJOR} or newer.",
                code="database_version",
            )
        return cls(pool, url, generations)

    async def close(self) -> None:
        """Waits until what was lent is given back."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Lends a connection on which each statement commits by itself."""
        return self._lent(outcome_unknown=False)

    def at_once(self) -> AbstractAsyncContextManager[Connection]:
        """The same for one statement; when the connection is lost it is unknown whether it happened."""
        return self._lent(outcome_unknown=True)

    @asynccontextmanager
    async def _lent(self, *, outcome_unknown: bool) -> AsyncIterator[Connection]:
        try:
            # A limit costs a task of its own, and where one is free nobody waits.
            wait_s = None if self._pool.get_idle_size() else ACQUIRE_S
            connection = await self._pool.acquire(timeout=wait_s)
        except _RAISED as error:
            raise self._unreachable(error) from error
        try:
            yield connection
        except _RAISED as error:
            translated = self._translated(error, connection, outcome_unknown=outcome_unknown)
            if translated is None:
                raise
            raise translated from error
        finally:
            # asyncpg drops a connection that cannot be given back; what was committed stays committed, so
            # the failure of giving back is nobody's business.
            with suppress(*_RAISED):
                await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """BEGIN, and COMMIT unless something is raised, in READ COMMITTED; `tx.transaction()` inside is a savepoint."""
        async with self.connection() as connection:
            transaction = connection.transaction(isolation="read_committed")
            await transaction.start()
            try:
                yield connection
            except BaseException:
                with suppress(*_RAISED):
                    await transaction.rollback()
                raise
            try:
                await transaction.commit()
            except _RAISED as error:
                translated = self._translated(error, connection, outcome_unknown=True)
                if translated is None:
                    raise
                raise translated from error

    def _translated(self, error: Exception, connection: Connection, *, outcome_unknown: bool) -> StokerError | None:
        """The error of ours, or None for one that says something about the statement and not about the server."""
        match error:
            case asyncpg.DiskFullError():
                return _disk_full(self._where)
            case asyncpg.InsufficientResourcesError():
                return Unavailable(f"PostgreSQL at {self._where} is short of resources: {error}.")
            case asyncpg.InvalidCachedStatementError() | asyncpg.OutdatedSchemaCacheError():
                # Another replica migrated while this one runs; asyncpg has forgotten the statement already.
                return Unavailable("The tables changed under a prepared statement.", hint="The same call works now.")
        if isinstance(error, _LOST) or _closed(connection) or (outcome_unknown and isinstance(error, TimeoutError)):
            return ConnectionLost(
                f"The connection to PostgreSQL at {self._where} was lost: {_first_line(error)}.",
                hint="It is unknown whether the change was committed." if outcome_unknown else "Nothing was committed.",
                outcome_unknown=outcome_unknown,
            )
        return None

    def _unreachable(self, error: Exception) -> StokerError:
        if isinstance(error, TimeoutError) and self._pool.get_idle_size() == 0:
            size = self._pool.get_max_size()
            return Unavailable(f"No database connection became free: {size} are in use.", code="database_busy")
        refusal = _refusal(error, self._where)
        # Once it has worked, a refusal is an outage and not a mistake in the configuration.
        return ConnectionLost(refusal.sentence, hint="Stoker connects again by itself.")


class _Guarded(_Base):
    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        status = await super().execute(query, *args, timeout=timeout)
        if query == "COMMIT;" and status == "ROLLBACK":
            # PostgreSQL answers so when a statement had failed and its error was swallowed; asyncpg ignores it, and
            # the caller would tell somebody that the change is accepted.
            raise Broken("A transaction went on after one of its statements had failed, so nothing was committed.")
        return status

    def get_reset_query(self) -> str:
        return ""


def described(url: str) -> str:
    """The URL without its password and options, for messages."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "its socket", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the given URL"
    return f"{host}{port}, database {parts.path.lstrip('/') or 'unnamed'}"


def _refusal(error: Exception, where: str) -> StokerError:
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return UserError(
                f"PostgreSQL at {where} refused the user or the password: {_first_line(error)}.",
                hint="Check the user and the password in STOKER_DATABASE_URL.",
                code="database_password",
            )
        case asyncpg.InvalidCatalogNameError():
            return UserError(
                f"PostgreSQL at {where} has no such database.",
                hint="Create it, or change the name in STOKER_DATABASE_URL.",
                code="database_missing",
            )
        case asyncpg.DiskFullError():
            return _disk_full(where)
        case asyncpg.InsufficientResourcesError():
            return Unavailable(
                f"PostgreSQL at {where} has no connection left: {_first_line(error)}.",
                hint="Raise its max_connections, or make the pools of the replicas smaller.",
            )
        case asyncpg.ClientConfigurationError() | ValueError():
            return UserError(
                "STOKER_DATABASE_URL is not a PostgreSQL URL.",
                hint="It looks like postgresql://user:password@host:5432/stoker.",
                code="database_url",
            )
    return ConnectionLost(
        f"PostgreSQL at {where} cannot be reached: {_first_line(error)}.",
        hint="Check that it runs and that its address is right.",
    )


def _disk_full(where: str) -> Unavailable:
    return Unavailable(
        f"PostgreSQL at {where} has no space left on its disk.",
        hint="Free some space there; Stoker carries on by itself.",
        code=DISK_FULL,
        retry_after_s=10.0,
    )


def _closed(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        # A broken connection has already left the pool, and its proxy answers nothing any more.
        return True


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
