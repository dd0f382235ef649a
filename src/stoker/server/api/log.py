"""Logs of jobs: a range by offset, or followed as they grow. What is sent are the frames as they were written."""

from base64 import b64encode
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from stoker.core.errors import NotFound, UserError
from stoker.core.job_facts import FINISHED
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import Responses
from stoker.server.log_hub import Bell
from stoker.server.parameter import RunRef, find_run
from stoker.server.sse import LOOK_S, PING, SCHEMA, Silence, event, streamed
from stoker.store import run_list
from stoker.store.log import READ_BYTES, runner_log
from stoker.store.run_list import ListedJob
from stoker.wire.runner import Header as LogHeader

router = APIRouter(prefix="/projects/{project}/runs/{run}/logs", tags=["logs"])

FOLLOWED_BYTES: Final = 256 * 1024
"""In one event: large enough to be fast, small enough for thousands of followers."""
MOST_OFFSET: Final = 2**62

Offset = Annotated[int, Query(ge=0, le=MOST_OFFSET, description="Where to begin, in bytes of the framed log.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which log is meant."""

    context: Context
    access: Access
    job: ListedJob
    log_id: UUID

    async def complete(self) -> bool:
        """Will it grow no more? A job finishes only after all of its log has been kept."""
        async with self.context.database.connection() as connection:
            now = await run_list.job(connection, self.job.run_id, self.job.id)
        return now is None or now.state in FINISHED


async def _wanted(
    request: Request,
    access: Member,
    run: RunRef,
    job: Annotated[UUID | None, Query(description="The id of a job; instead of the next three.")] = None,
    replica: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
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
    return Wanted(context, access, one, runner_log(one.id) if runner else one.id)


Log = Annotated[Wanted, Depends(_wanted)]

_FRAMES: Final[Responses] = {
    200: {
        "description": "Frames. `Stoker-Next-Offset` is where to go on, `Stoker-Log-End` how far the log goes now, "
        "`Stoker-Log-Complete` whether it will grow no more.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_EVENTS: Final[Responses] = {
    200: {
        "description": "Server-sent events: data is base64 of frames, id the offset behind them. The event `end` says "
        "that the log is complete.",
        "content": {"text/event-stream": {"schema": SCHEMA}},
    }
}


@router.get("", response_class=Response, responses=_FRAMES)
async def read_log(
    log: Log, offset: Offset = 0, limit: Annotated[int, Query(ge=1, le=READ_BYTES)] = READ_BYTES
) -> Response:
    """From an offset on, at most about `limit` bytes."""
    # Asked before it is read: what comes in between is for the next request.
    complete = await log.complete()
    frames = await log.context.logs.read(log.log_id, offset, limit)
    end = max(await log.context.logs.end(log.log_id), offset + len(frames))
    following = offset + len(frames)
    headers: dict[str, str] = {
        LogHeader.NEXT: str(following),
        LogHeader.END: str(end),
        LogHeader.COMPLETE: "true" if complete and following >= end else "false",
    }
    return Response(frames, headers=headers, media_type="application/octet-stream")


@router.get("/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_log(
    log: Log,
    offset: Offset = 0,
    last_event_id: Annotated[str | None, Header(description="Goes on there, instead of `offset`.")] = None,
) -> Response:
    """As it grows, until it is complete."""
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
            raise UserError("Last-Event-ID is no offset.")
        offset = int(last_event_id)
    # A wrong offset is an error now, and not in the middle of a stream.
    await log.context.logs.read(log.log_id, offset, 1)
    return streamed(log.context, _followed(log, offset))


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
                yield event("{}", id=offset, name="end")
                return
            complete = await log.complete()
            if not complete:
                await bell.heard(LOOK_S)
                if silence.too_long():
                    yield PING
