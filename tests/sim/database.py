"""The real PostgreSQL as one replica sees it: one transaction at a time, on a connection that may break."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from stoker.store.database import Connection, ConnectionLost, Database
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


class SimDatabase(Database):
    """Every commit may be the one at which the connection, or the whole replica, is lost."""

    def __init__(self, world: "World", server: "Server", line: Line, after: Callable[[], Awaitable[None]]) -> None:
        self._world, self._server, self._line, self._after = world, server, line, after
        self.url = "simulated"
        self._life = server.lives

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        await self._server.thawed()
        self._alive()
        async with self._line.turn() as connection:
            self._alive()
            if self._world.chance("connection lost between statements", 0.002):
                raise ConnectionLost("the connection was lost")
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        await self._server.thawed()
        self._alive()
        async with self._line.turn() as connection:
            self._alive()
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
                self._before_commit()
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()
            await self._after()
            self._after_commit()

    def _alive(self) -> None:
        if not self._server.alive or self._server.lives != self._life:
            raise Killed

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
