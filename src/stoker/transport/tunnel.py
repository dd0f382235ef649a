"""The tunnels to hosts that are reached by SSH: one connection each, over which everything goes.

Theory of operation. A tunnel is made by the first who needs it, and whoever comes meanwhile waits for the same one.
When it could not be made, the next try is made after a delay that grows, and who asks before that hears at once what
was wrong. Keep-alives find out within fifteen seconds that a link is down; then every request over it fails, and the
next one makes a new tunnel. Nothing of that concerns the jobs: they do not know who looks at them.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from stoker.core.errors import StokerError, Unavailable
from stoker.core.ids import InstanceId
from stoker.transport.channel import ChannelConnector, Session
from stoker.transport.http import Connect
from stoker.transport.remote import Remote
from stoker.transport.ssh import Access, Connection, Met, connect

if TYPE_CHECKING:
    import asyncssh

FIRST_DELAY_S: Final = 0.5
LONGEST_DELAY_S: Final = 15.0
MOST_CHANNELS: Final = 256
"""Open at once over one connection; more wait."""

log = structlog.get_logger()


class Doors(Protocol):
    """What is known of the hosts; kept by the server."""

    revision: int
    """Another one when that has changed."""

    async def access(self, id: InstanceId) -> Access:
        """`Unavailable` when nobody knows how to log in."""
        ...

    async def met(self, access: Access, met: Met) -> None:
        """Host keys that were seen."""
        ...


@dataclass
class Tunnel:
    id: InstanceId
    doors: Doors
    deaf: Callable[[InstanceId], None] = lambda id: None
    clock: Callable[[], float] = time.monotonic
    _connection: Connection | None = None
    _making: "asyncio.Task[Connection] | None" = None
    _failures: int = 0
    _not_before: float = 0.0
    _trouble: StokerError | None = None
    _revision: int = 0
    _channels: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_CHANNELS))

    async def connection(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._making is None:
            as_before = self._revision == self.doors.revision
            if self._trouble is not None and as_before and self.clock() < self._not_before:
                raise self._trouble
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(_seen)
        # Whoever gives up does not take the others' connection along.
        return await asyncio.shield(self._making)

    async def _make(self) -> Connection:
        met, self._revision = Met(), self.doors.revision
        try:
            access = await self.doors.access(self.id)
            try:
                made = await connect(access, met)
            finally:
                await self.doors.met(access, met)
        except StokerError as error:
            self._failures += 1
            delay_s = min(FIRST_DELAY_S * 2 ** min(self._failures - 1, 8), LONGEST_DELAY_S)
            self._trouble, self._not_before = error, self.clock() + delay_s
            self.deaf(self.id)
            raise
        else:
            self._connection, self._failures, self._trouble = made, 0, None
            return made
        finally:
            self._making = None

    async def dial(self, path: str, protocol: asyncio.Protocol) -> None:
        """To a unix socket of the host."""
        import asyncssh

        connection = await self.connection()
        await self._channels.acquire()
        ended = _Once(self._channels.release)
        try:
            await connection.main.create_unix_connection(lambda: _session(protocol, ended), path)
        except asyncssh.ChannelOpenError as error:
            ended()
            self.deaf(self.id)
            said = f"Nobody listens at {path} on that host: {error.reason}."
            raise Unavailable(said, code="agent_silent") from None
        except (asyncssh.Error, OSError) as error:
            ended()
            raise Unavailable(f"The tunnel broke: {error}.", code="agent_silent") from None
        except BaseException:
            ended()
            raise

    def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Tunnels:
    def __init__(self, doors: Doors, deaf: Callable[[InstanceId], None] = lambda id: None) -> None:
        """`deaf` is told of a host that cannot be reached, or where somebody whom we want to speak to is not."""
        self._doors, self._deaf = doors, deaf
        self._tunnels: dict[InstanceId, Tunnel] = {}

    def to(self, id: InstanceId) -> Tunnel:
        tunnel = self._tunnels.get(id)
        if tunnel is None:
            tunnel = self._tunnels[id] = Tunnel(id, self._doors, self._deaf)
        return tunnel

    def connect(self, id: InstanceId) -> Connect:
        """How sockets of that host are reached."""
        return lambda path, limit: ChannelConnector(lambda at, protocol: self.to(id).dial(at, protocol), path, limit)

    async def remote(self, id: InstanceId) -> Remote:
        """To run commands there."""
        return Remote((await self.to(id).connection()).main)

    def forget(self, id: InstanceId) -> None:
        """The instance is gone."""
        if (tunnel := self._tunnels.pop(id, None)) is not None:
            tunnel.close()

    async def close(self) -> None:
        for tunnel in self._tunnels.values():
            tunnel.close()


class _Once:
    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def __call__(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


def _session(protocol: asyncio.Protocol, ended: Callable[[], None]) -> "asyncssh.SSHUNIXSession[bytes]":
    import asyncssh

    class _Session(Session, asyncssh.SSHUNIXSession[bytes]):
        pass

    return _Session(protocol, ended)


def _seen(task: "asyncio.Task[Connection]") -> None:
    """Also when nobody waits for it any more, its error was seen."""
    if not task.cancelled():
        task.exception()
