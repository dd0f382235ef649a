"""Logs of jobs: a range by offset, or followed as they grow. What is sent are the frames as they were written.

Who asks for the last lines, or for what was written since a time, is told at which frame they begin and how much of
that is to be skipped, and goes on by offset. So there is one way to read a log, and what was read is never sent twice.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from stoker.core.errors import NotFound, UserError
from stoker.core.job_facts import FINISHED
from stoker.core.limits import MOST_TAIL_BYTES, MOST_TAIL_LINES
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import Responses
from stoker.server.log_hub import Bell
from stoker.server.parameter import RunRef, find_run
from stoker.server.sse import LOOK_S, PING, SCHEMA, Silence, event, streamed
from stoker.store import run_list
from stoker.store.log import READ_BYTES, runner_log
from stoker.store.log_place import Place
from stoker.store.run_list import ListedJob
from stoker.wire.log import GONE, LogHeader, skip_text
from stoker.wire.runner import Header as PieceHeader
from stoker.wire.time import seconds_of

router = APIRouter(prefix="/projects/{project}/runs/{run}/logs", tags=["logs"])

FOLLOWED_BYTES: Final = 256 * 1024
"""In one event: large enough to be fast, small enough for thousands of followers."""
MOST_OFFSET: Final = 2**62


class Growth(Enum):
    """Whether more is to be expected."""

    GOES_ON = auto()
    COMPLETE = auto()
    """A job finishes only after all of its log has been kept."""
    GONE = auto()
    """Deleted, together with the run."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which log is meant."""

    context: Context
    access: Access
    run: str
    job: ListedJob
    log_id: UUID

    async def growth(self) -> Growth:
        async with self.context.database.connection() as connection:
            now = await run_list.job(connection, self.job.run_id, self.job.id)
        if now is None:
            return Growth.GONE
        return Growth.COMPLETE if now.state in FINISHED else Growth.GOES_ON

    async def is_gone(self, offset: int) -> bool:
        """Whether nothing was found at an offset because somebody deleted it."""
        end = await self.context.logs.end(self.log_id)
        return not 0 < offset == end and await self.growth() is Growth.GONE

    def headers(self, place: Place) -> dict[str, str]:
        return {
            LogHeader.RUN: str(self.job.run_id),
            LogHeader.SUBMISSION: str(self.job.attempt),
            LogHeader.START: str(place.offset),
            LogHeader.SKIP: skip_text(place.skip),
        }


async def _wanted(
    request: Request,
    access: Member,
    run: RunRef,
    job: Annotated[UUID | None, Query(description="The id of a job; instead of the next three.")] = None,
    replica: Annotated[int | None, Query(ge=0, le=1_000_000, description="Its first unless it is said.")] = None,
    node: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    submission: Annotated[int | None, Query(ge=1, le=1_000_000, description="The latest unless it is said.")] = None,
    runner: Annotated[bool, Query(description="What the runner itself has to say.")] = False,
) -> Wanted:
    context: Context = request.app.state.context
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        if job is not None:
            one = await run_list.job(connection, found.id, job)
        else:
            one = await run_list.submission(connection, found.id, replica, node, submission)
    if one is None:
        raise NotFound(f"{found.name} has no such job.", hint=f"`stoker get {found.name}` shows those it has.")
    return Wanted(context, access, found.name, one, runner_log(one.id) if runner else one.id)


Log = Annotated[Wanted, Depends(_wanted)]


async def _begin(
    log: Log,
    offset: Annotated[
        int | None, Query(ge=0, le=MOST_OFFSET, description="Where to begin, in bytes of the framed log.", examples=[0])
    ] = None,
    tail: Annotated[
        int | None,
        Query(
            ge=0,
            le=MOST_TAIL_LINES,
            description="Begin with the last so many lines of stdout and stderr together, in the order in which they "
            f"began. They are looked for in the last {MOST_TAIL_BYTES >> 20} MiB.",
            examples=[100],
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        Query(
            description="Begin with what was written at this moment or later, by the clock of the host; where that was "
            "set back, with one of the times at which it passed the moment. With `tail`: the last lines of that.",
            examples=["2025-11-16T10:31:07Z"],
        ),
    ] = None,
) -> Place:
    """`offset`, or what stands for it."""
    if tail is None and since is None:
        return Place(offset or 0)
    if offset is not None:
        raise UserError(
            "`offset` does not go together with `tail` or `since`.",
            hint="Ask with these once; the answer says at which offset to go on.",
            code="log_range",
        )
    since_us = None if since is None else round(seconds_of(since) * 1e6)
    return await log.context.logs.place(log.log_id, tail=tail, since_us=since_us)


Begin = Annotated[Place, Depends(_begin)]

_HEADERS: Final[dict[str, str]] = {
    LogHeader.RUN: "The id of the run; a name may mean another run the next time.",
    LogHeader.SUBMISSION: "Of which submission of the job it is.",
    LogHeader.START: "At which offset the answer begins.",
    LogHeader.SKIP: "How many bytes of each stream from there on stand before what was asked for, as in "
    "`stdout=12, stderr=5`. What is not stderr counts as stdout.",
}
_PLACES: Final[dict[str, str]] = {
    PieceHeader.NEXT: "The offset at which to go on.",
    PieceHeader.END: "How far the log goes now.",
    PieceHeader.COMPLETE: "`true` when this was the last of it.",
}


def _described(headers: Mapping[str, str]) -> dict[str, Any]:
    return {str(name): {"description": told, "schema": {"type": "string"}} for name, told in headers.items()}


_FRAMES: Final[Responses] = {
    200: {
        "description": "Whole frames.",
        "headers": _described({**_HEADERS, **_PLACES}),
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_EVENTS: Final[Responses] = {
    200: {
        "description": "Server-sent events: data is base64 of frames, id the offset behind them. The event `end` says "
        "that the log is complete, the event `gone` that it was deleted before all of it was sent.",
        "headers": _described(_HEADERS),
        "content": {"text/event-stream": {"schema": SCHEMA}},
    }
}


@router.get("", response_class=Response, responses=_FRAMES)
async def read_log(log: Log, begin: Begin, limit: Annotated[int, Query(ge=1, le=READ_BYTES)] = READ_BYTES) -> Response:
    """From an offset on, or from the last lines, or since a time; at most about `limit` bytes."""
    offset = begin.offset
    # Asked before it is read: what comes in between is for the next request.
    complete = await log.growth() is Growth.COMPLETE
    frames = await log.context.logs.read(log.log_id, offset, limit)
    if not frames and await log.is_gone(offset):
        raise NotFound(f"{log.run} was deleted, and its log with it.")
    end = max(await log.context.logs.end(log.log_id), offset + len(frames))
    following = offset + len(frames)
    headers: dict[str, str] = {
        **log.headers(begin),
        PieceHeader.NEXT: str(following),
        PieceHeader.END: str(end),
        PieceHeader.COMPLETE: "true" if complete and following >= end else "false",
    }
    return Response(frames, headers=headers, media_type="application/octet-stream")


@router.get("/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_log(
    log: Log,
    begin: Begin,
    last_event_id: Annotated[
        str | None, Header(description="Goes on there, instead of `offset`, `tail` and `since`.")
    ] = None,
) -> Response:
    """As it grows, until it is complete."""
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
            raise UserError("Last-Event-ID is no offset.")
        begin = Place(int(last_event_id))
    # A wrong offset is an error now, and not in the middle of a stream.
    await log.context.logs.read(log.log_id, begin.offset, 1)
    return streamed(log.context, _followed(log, begin.offset), log.headers(begin))


async def _followed(log: Wanted, offset: int) -> AsyncGenerator[bytes, None]:
    context, bell, silence = log.context, Bell(), Silence()
    complete = False
    with context.log_hub.hung(log.log_id, bell), context.runs.hung(log.job.run_id, bell):
        while not context.stopping.is_set():
            frames = await context.logs.read(log.log_id, offset, FOLLOWED_BYTES)
            if frames:
                offset += len(frames)
                silence.broken()
                yield event(b64encode(frames).decode(), id=offset)
                continue
            if complete:
                # It was complete before this last look at it.
                yield event("{}", id=offset, name=GONE if await log.is_gone(offset) else "end")
                return
            complete = await log.growth() is not Growth.GOES_ON
            if not complete:
                await bell.heard(LOOK_S)
                if silence.too_long():
                    yield PING
