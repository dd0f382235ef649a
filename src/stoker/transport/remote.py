"""Commands on a host, by whatever shell it has: scripts of POSIX sh, with or without sudo."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.core.errors import Unavailable

if TYPE_CHECKING:
    import asyncssh

COMMAND_S: Final = 60.0
OUTPUT_BYTES: Final = 4 * 1024 * 1024
SAID_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Told:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The end of what it complained about."""
        return " ".join((self.err.strip() or self.out.strip())[-SAID_CHARS:].split())


class Remote:
    def __init__(self, connection: "asyncssh.SSHClientConnection", *, sudo: bool = False) -> None:
        self._connection, self._sudo = connection, sudo

    def as_root(self) -> "Remote":
        return Remote(self._connection, sudo=True)

    async def run(
        self,
        script: str,
        *words: str,
        limit_s: float = COMMAND_S,
        feed: AsyncIterator[bytes] | None = None,
    ) -> Told:
        """The words are $1, $2 and so on of the script."""
        import asyncssh

        line = shlex.join([*(("sudo", "-n", "--") if self._sudo else ()), "/bin/sh", "-c", script, "stoker", *words])
        try:
            async with asyncio.timeout(limit_s):
                process = await self._connection.create_process(line, encoding=None, stdin=asyncssh.PIPE)
                try:
                    return await _spoken(process, feed)
                finally:
                    process.close()
        except TimeoutError:
            raise Unavailable(f"A command on the host took longer than {limit_s:.0f} s.") from None
        except (asyncssh.Error, OSError) as error:
            raise Unavailable(f"The connection broke while a command ran: {error}.") from None


async def _spoken(process: "asyncssh.SSHClientProcess[bytes]", feed: AsyncIterator[bytes] | None) -> Told:
    out = asyncio.ensure_future(_all(process.stdout))
    err = asyncio.ensure_future(_all(process.stderr))
    try:
        if feed is not None:
            await _fed(process, feed)
        process.stdin.write_eof()
        heard = await out, await err
        await process.wait_closed()
    finally:
        out.cancel()
        err.cancel()
    code = process.returncode
    # Without a code it was killed, or its connection ended first.
    return Told(255 if code is None else code, *(one.decode(errors="replace") for one in heard))


async def _fed(process: "asyncssh.SSHClientProcess[bytes]", feed: AsyncIterator[bytes]) -> None:
    """What it no longer reads is of no use: why it ended is said by its code."""
    try:
        async for piece in feed:
            process.stdin.write(piece)
            await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return


async def _all(stream: "asyncssh.SSHReader[bytes]") -> bytes:
    pieces, size = [], 0
    while piece := await stream.read(65_536):
        if size < OUTPUT_BYTES:
            pieces.append(piece)
            size += len(piece)
    return b"".join(pieces)
