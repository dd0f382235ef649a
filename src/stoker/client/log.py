"""A job's log as the server keeps it, read by offset; whoever reads it again goes on where they stopped.

The server finds where the last lines begin, or what was written since a time; from then on there are offsets only.
What has been written long ago comes in large plain pieces, what is written now by server-sent events. An offset is
a place in the framed stream, so after a broken connection nothing is read twice and nothing is missed.
"""

import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from stoker.client.client import Client, Unreachable
from stoker.client.stream import SILENCE_S, events
from stoker.core.errors import Broken, NotFound, Unavailable
from stoker.wire.frame import Frame, located
from stoker.wire.log import GONE, LogHeader, Skip, skip_of

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

    def of(self, submission: int) -> "Which":
        """One submission, also when there is a later one meanwhile."""
        return self if self.job else replace(self, submission=submission)


@dataclass(frozen=True)
class Piece:
    """Whole frames, and where the next ones begin."""

    frames: bytes
    next_offset: int
    behind: bool
    """There is more already; what follows is not news."""
    complete: bool
    """This was the last piece, and there will be no more."""

    def located(self) -> Iterator[tuple[int, Frame]]:
        return located(self.frames, self.next_offset - len(self.frames))


@dataclass(frozen=True)
class First(Piece):
    """The piece that a reader begins with."""

    run: str
    """Its id: a name may mean another run a moment later, and a run may be tried again."""
    submission: int
    skip: Skip = field(default_factory=dict)
    """What of it, and of what follows, stands before what was asked for."""


def begin(client: Client, run: str, which: Which, *, tail: int | None = None, since: float | None = None) -> First:
    """From the last lines on, or from what was written since, or from the beginning."""
    moment = None if since is None else datetime.fromtimestamp(max(0.0, since), UTC).isoformat()
    reply = client.ask("GET", client.at("runs", run, "logs"), query=which.query() | {"tail": tail, "since": moment})
    headers = reply.headers
    piece = _piece(reply.body, headers, _number(headers, LogHeader.START))
    return First(
        **vars(piece),
        run=headers.get(LogHeader.RUN.lower(), run),
        submission=_number(headers, LogHeader.SUBMISSION),
        skip=skip_of(headers.get(LogHeader.SKIP.lower(), "")),
    )


def read(client: Client, run: str, which: Which, offset: int) -> Piece:
    reply = client.ask("GET", client.at("runs", run, "logs"), query=which.query() | {"offset": offset})
    return _piece(reply.body, reply.headers, offset)


def _piece(frames: bytes, headers: Mapping[str, str], offset: int) -> Piece:
    after, end = _number(headers, "Stoker-Next-Offset"), _number(headers, "Stoker-Log-End")
    if after != offset + len(frames):
        raise Broken(f"The server gave {len(frames)} bytes from {offset} and says that {after} is next.")
    complete = headers.get("stoker-log-complete", "") == "true"
    return Piece(frames, after, after < end, complete and after >= end)


def _number(headers: Mapping[str, str], name: str) -> int:
    try:
        return int(headers[name.lower()])
    except (KeyError, ValueError):
        raise Broken(f"The server's answer does not say {name}.", hint="Is it as new as this client?") from None


def exists(client: Client, run: str, which: Which) -> bool:
    """Whether there is such a job at all."""
    try:
        client.ask("GET", client.at("runs", run, "logs"), query=which.query() | {"limit": 1})
    except NotFound:
        return False
    return True


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
        if said.event == GONE:
            raise NotFound("The run was deleted, and its log with it.")
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
