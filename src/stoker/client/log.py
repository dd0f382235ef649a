"""A job's log as the server keeps it, read by offset; whoever reads it again goes on where they stopped.

What has been written long ago comes in large plain pieces, what is written now by server-sent events. An offset is
a place in the framed stream, so after a broken connection nothing is read twice and nothing is missed.
"""

import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from stoker.client.client import Client, Unreachable
from stoker.client.stream import SILENCE_S, events
from stoker.core.errors import Broken, Unavailable

LONGEST_PAUSE_S: Final = 5.0

Away = Callable[[Unavailable], None]
"""Told each time that the server could not be reached, before the next try."""


@dataclass(frozen=True)
class Which:
    """Of which job, and which log of it; what is not said is the first job and its latest submission."""

    job: str | None = None
    replica: int | None = None
    node: int | None = None
    submission: int | None = None
    runner: bool = False

    def query(self) -> dict[str, object]:
        said = {"job": self.job, "replica": self.replica, "node": self.node, "submission": self.submission}
        return {**said, "runner": self.runner or None}


@dataclass(frozen=True)
class Piece:
    """Whole frames, and where the next ones begin."""

    frames: bytes
    next_offset: int
    behind: bool
    """There is more already; what follows is not news."""
    complete: bool
    """This was the last piece, and there will be no more."""


def read(client: Client, run: str, which: Which, offset: int) -> Piece:
    reply = client.ask("GET", client.at("runs", run, "logs"), query=which.query() | {"offset": offset})
    try:
        after, end = int(reply.headers["stoker-next-offset"]), int(reply.headers["stoker-log-end"])
    except (KeyError, ValueError):
        raise Broken("The server's answer does not say where the log goes on.") from None
    if after != offset + len(reply.body):
        raise Broken(f"The server gave {len(reply.body)} bytes from {offset} and says that {after} is next.")
    complete = reply.headers.get("stoker-log-complete", "") == "true"
    return Piece(reply.body, after, after < end, complete and after >= end)


def backlog(client: Client, run: str, which: Which, offset: int = 0) -> Iterator[Piece]:
    """What has been written until now."""
    while True:
        piece = read(client, run, which, offset)
        yield piece
        offset = piece.next_offset
        if not piece.behind or not piece.frames:
            return


def live(client: Client, run: str, which: Which, offset: int) -> Iterator[Piece]:
    """What is written from now on, over one connection; ends with the log, or raises `Unreachable`."""
    path = client.at("runs", run, "logs", "follow")
    for said in events(client.stream(path, which.query() | {"offset": offset}, silence_s=SILENCE_S)):
        if said.event == "end":
            yield Piece(b"", offset, False, True)
            return
        try:
            frames = b64decode(said.data, validate=True)
        except NotBase64:
            raise Broken("The server's stream of the log is damaged.") from None
        offset += len(frames)
        yield Piece(frames, offset, False, False)
    raise Unreachable("The server closed the stream of the log.")


def follow(client: Client, run: str, which: Which, offset: int, away: Away) -> Iterator[Piece]:
    """All of it until it is complete, however often the server goes away meanwhile."""
    pause_s = 0.1
    while True:
        try:
            for source in (backlog, live):
                for piece in source(client, run, which, offset):
                    pause_s = 0.1
                    yield piece
                    offset = piece.next_offset
                    if piece.complete:
                        return
        except Unavailable as error:
            away(error)
            time.sleep(max(pause_s, error.retry_after_s if not isinstance(error, Unreachable) else 0.0))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
