"""The real PostgreSQL as one replica sees it: one transaction at a time, on a connection that may break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from stoker.store.database import Connection, ConnectionLost, Database, Generations
from tests.sim.vloop import VirtualLoop

if TYPE_CHECKING:
    from tests.sim.server import Server
    from tests.sim.world import World


class Killed(BaseException):
    """The process is gone: whoever still runs in its name gets no further."""


class Line:
    """The one connection that all replicas of a world share, one after the other."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with self._turn:
            loop.jump.querying += 1
            try:
                yield self.connection
            finally:
                loop.jump.querying -= 1


STATEMENTS = ("execute", "fetch", "fetchrow", "fetchval")


class Breaking:
    """A connection that answers only so many statements more."""

    def __init__(self, connection: Connection, left: int, lost: Callable[[], None]) -> None:
        self._connection, self._left, self._lost = connection, left, lost

    def __getattr__(self, name: str) -> Any:
        if name in STATEMENTS:
            self._left -= 1
            if self._left < 0:
                self._lost()
                raise asyncpg.ConnectionDoesNotExistError("the connection was closed in the middle of an operation")
        return getattr(self._connection, name)


class SimDatabase(Database):
    """Every commit may be the one at which the connection, or the whole replica, is lost."""

    def __init__(self, world: "World", server: "Server", line: Line, after: Callable[[], Awaitable[None]]) -> None:
        self._world, self._server, self._line, self._after = world, server, line, after
        self.url = "simulated"
        self._generations = Generations()
        self._life = server.lives

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with self._turn() as connection:
            try:
                yield self._frail(connection, "connection lost between statements", 0.004)
            except asyncpg.PostgresConnectionError as error:
                raise ConnectionLost("the connection was lost") from error

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[Connection]:
        """A transaction of one statement: nobody can tell at which moment of it the connection was lost."""
        try:
            async with self.transaction() as tx:
                yield tx
        except ConnectionLost as error:
            raise ConnectionLost(error.sentence, outcome_unknown=True) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._turn() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield self._frail(connection, "connection lost in the middle of a transaction", 0.01)
                self._before_commit()
            except asyncpg.PostgresConnectionError as error:
                await transaction.rollback()
                raise ConnectionLost("the connection was lost") from error
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()
            await self._after()
            self._after_commit()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        await self._server.thawed()
        self._reach()
        async with self._line.turn() as connection:
            self._reach()
            yield connection

    def _reach(self) -> None:
        if not self._server.alive or self._server.lives != self._life:
            raise Killed
        if self._world.now() < self._server.no_database_until:
            raise ConnectionLost("the database cannot be reached")

    def _frail(self, connection: Connection, fault: str, probability: float) -> Connection:
        if not self._world.faults or self._world.dice.random() >= probability:
            return connection
        left = self._world.dice.randint(0, 3)
        return cast(Connection, Breaking(connection, left, lambda: self._world.count(fault)))

    def _before_commit(self) -> None:
        if self._world.chance("connection lost before the commit", 0.006):
            raise ConnectionLost("the connection was lost", outcome_unknown=True)
        if self._world.chance("replica killed before the commit", 0.002):
            self._server.kill()
            raise Killed

    def _after_commit(self) -> None:
        if self._world.chance("connection lost after the commit", 0.006):
            raise ConnectionLost("the connection was lost", outcome_unknown=True)
        if self._world.chance("replica killed after the commit", 0.002):
            self._server.kill()
            raise Killed
