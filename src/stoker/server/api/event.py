"""The journal: what happened to a run, or in a project, from the beginning or as it happens.

A place in it is a number, and whoever goes on from one misses nothing and hears nothing twice: what is told of several
things at once goes only as far as the journal is settled (`store/tail.py`).
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query
from starlette.responses import Response, StreamingResponse

from stoker.core.errors import Gone, Unavailable, UserError
from stoker.core.ids import RunId
from stoker.server import view
from stoker.server.api.instance import find_instance
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import Responses, answered
from stoker.server.fleet import find_fleet
from stoker.server.log_hub import Bell
from stoker.server.parameter import Ctx, Cursor, Limit, RunRef, find_run, number_cursor
from stoker.server.sse import LOOK_S, SCHEMA, Silence, event, ping, streamed
from stoker.store import event as store
from stoker.store import run_list
from stoker.store.database import Connection
from stoker.store.event import Told, Wanted
from stoker.wire.event import GONE, SERVER, EventPage
from stoker.wire.model import ErrorBody, body_of
from stoker.wire.time import seconds_of

router = APIRouter(prefix="/projects/{project}", tags=["events"])

PAGE: Final = 200
UNSETTLED_S: Final = 0.01
"""How soon is looked again when somebody writes what comes before something that can be seen already."""
PATIENCE_S: Final = 5.0

_GONE: Final[Responses] = {
    410: {"model": ErrorBody, "description": "What comes behind this place is not all kept any more."}
}
_EVENTS: Final[Responses] = {
    200: {
        "description": "Server-sent events: data is one event as JSON, id its number. `gone` ends a stream that began "
        "at a place which is older than what is kept.",
        "content": {"text/event-stream": {"schema": SCHEMA}},
    }
}
After = Annotated[int, Query(ge=0, le=2**62, description="Only events with a higher number.")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="Goes on there, instead of `after`.")]
Since = Annotated[
    datetime | None,
    Query(description="Only what happened at this moment or later.", examples=["2025-11-16T10:31:07Z"]),
]
Until = Annotated[
    datetime | None, Query(description="Only what happened before this moment.", examples=["2025-11-16T11:00:00Z"])
]
By = Annotated[
    str | None,
    Query(max_length=100, description=f"Only what this user asked for; `{SERVER}`: what nobody did.", examples=["ada"]),
]


async def _wanted(
    context: Ctx,
    access: Member,
    run: Annotated[str | None, Query(max_length=100, description="Only of this run and its jobs.")] = None,
    instance: Annotated[str | None, Query(max_length=100, description="Only of this instance.")] = None,
    fleet: Annotated[str | None, Query(max_length=100, description="Only of this fleet and its instances.")] = None,
    by: By = None,
    since: Since = None,
) -> Wanted:
    """Whoever may not see the thing is not told that it is there."""
    if sum(one is not None for one in (run, instance, fleet)) > 1:
        raise UserError("run, instance and fleet do not go together.", hint="Say one of them.", code="events_filter")
    wanted = _narrowed(Wanted(access.project_id), by, since)
    if run is instance is fleet is None:
        return wanted
    async with context.database.connection() as connection:
        if run is not None:
            return replace(wanted, family=(await find_run(connection, access, run)).id)
        if instance is not None:
            return replace(wanted, family=(await find_instance(connection, access, instance)).instance.id)
        return replace(wanted, fleet_id=(await find_fleet(connection, context, access, fleet or "")).id)


Filters = Annotated[Wanted, Depends(_wanted)]


def _narrowed(wanted: Wanted, by: str | None, since: datetime | None, until: datetime | None = None) -> Wanted:
    begin = -math.inf if since is None else seconds_of(since)
    end = math.inf if until is None else seconds_of(until)
    if end < begin:
        raise UserError("`until` is before `since`.", hint="Swap them.", code="events_filter")
    return replace(wanted, by="" if by == SERVER else by, since=begin, until=end)


@router.get("/runs/{run}/events", response_model=EventPage, responses=_GONE)
async def list_events(
    context: Ctx,
    access: Member,
    run: RunRef,
    by: By = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Oldest first."""
    after = number_cursor(cursor)
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        wanted = _narrowed(Wanted(access.project_id, found.id), by, since, until)
        told = await store.read(connection, wanted, after, limit + 1)
        await _kept(connection, after)
        last = len(told) <= limit and not found.finished
        troubles = await store.troubles(connection, found.id) if last else []
    page = _page(told, limit)
    return answered(page.model_copy(update={"troubles": tuple(map(view.trouble_of, troubles))}))


@router.get("/events", response_model=EventPage, responses=_GONE)
async def list_project_events(
    context: Ctx, access: Member, wanted: Filters, until: Until = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Of all that the project may see (its runs, the fleets that it may use and their instances), oldest first."""
    after = number_cursor(cursor)
    if until is not None and seconds_of(until) < wanted.since:
        raise UserError("`until` is before `since`.", hint="Swap them.", code="events_filter")
    wanted = replace(wanted, until=math.inf if until is None else seconds_of(until))
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        end = 0 if wanted.in_order else (await context.tail.look()).end
        async with context.database.connection() as connection:
            told = await store.read(connection, wanted, after, limit + 1)
            await _kept(connection, after)
        # Only who turns a page must not leave anything behind; the last one may show what is not settled yet.
        if wanted.in_order or len(told) <= limit or told[limit - 1].seq <= end:
            return answered(_page(told, limit))
        if asyncio.get_running_loop().time() > give_up_at:
            raise Unavailable("Somebody has been writing to the journal for long.", code="unsettled")
        await asyncio.sleep(UNSETTLED_S)


@router.get("/runs/{run}/events/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_events(
    context: Ctx,
    access: Member,
    run: RunRef,
    by: By = None,
    since: Since = None,
    after: After = 0,
    last_event_id: LastId = None,
) -> Response:
    """Until the run has finished and everything was told; then comes the event `end`."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
    wanted = _narrowed(Wanted(access.project_id, found.id), by, since)
    return streamed(context, _follow_run(context, access, found.id, wanted, _begin(after, last_event_id)))


@router.get("/events/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_project_events(
    context: Ctx,
    wanted: Filters,
    after: Annotated[
        int | None, Query(ge=0, le=2**62, description="From now on, unless it or `since` is said.")
    ] = None,
    last_event_id: LastId = None,
) -> Response:
    """Of all that the project may see, without end."""
    if after is None and last_event_id is None:
        after = 0 if wanted.since > -math.inf else (await context.tail.look()).end
    return streamed(context, _follow(context, wanted, _begin(after or 0, last_event_id)))


def _begin(after: int, last_event_id: str | None) -> int:
    if last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
        raise UserError("Last-Event-ID is no number of an event.")
    return int(last_event_id)


async def _kept(connection: Connection, after: int) -> None:
    """Asked behind the read: what was there then may be gone now, but never the other way round."""
    forgotten = await store.forgotten(connection)
    if 0 < after < forgotten:
        raise Gone(
            f"The journal is kept from number {forgotten + 1} on, and this place is before that.",
            hint="Begin anew; what was between is not known any more.",
        )


def _page(told: list[Told], limit: int) -> EventPage:
    items = tuple(map(view.event_of, told[:limit]))
    return EventPage(items=items, next_cursor=str(items[-1].seq) if len(told) > limit else None)


def _said(one: Told) -> bytes:
    return event(view.event_of(one).model_dump_json(), id=one.seq)


async def _follow_run(
    context: Context, access: Access, run_id: RunId, wanted: Wanted, after: int
) -> AsyncGenerator[bytes, None]:
    bell, silence, finished, behind = Bell(), Silence(), False, True
    with context.runs.hung(run_id, bell):
        while not context.stopping.is_set():
            async with context.database.connection() as connection:
                told = await store.read(connection, wanted, after, PAGE)
                if behind and (lost := await _lost(connection, after)):
                    yield lost
                    return
                if not told and not finished:
                    run = await run_list.get(connection, access.project_id, run_id)
                    finished = run is None or run.finished
                    if finished:
                        # Once more: the last event may have come between the two questions.
                        continue
            behind = len(told) == PAGE
            for one in told:
                after = one.seq
                yield _said(one)
            if told:
                silence.broken()
            elif finished:
                yield event("{}", name="end")
                return
            else:
                await bell.heard(LOOK_S)
                if silence.too_long():
                    yield ping(after)


async def _follow(context: Context, wanted: Wanted, after: int) -> AsyncGenerator[bytes, None]:
    bell, silence, behind = Bell(), Silence(), True
    # At once: who is cut off before the first event has to know from where to go on.
    yield ping(after)
    with context.runs.hung_everywhere(bell):
        while not context.stopping.is_set():
            settled = await context.tail.look()
            async with context.database.connection() as connection:
                told = await store.read(connection, wanted, after, PAGE, settled.end)
                if behind and (lost := await _lost(connection, after)):
                    yield lost
                    return
            behind = len(told) == PAGE
            for one in told:
                yield _said(one)
            # Up to the settled end everything was told, or is not wanted.
            after = told[-1].seq if behind else max(after, settled.end)
            if told:
                silence.broken()
            elif silence.too_long():
                yield ping(after)
            if not behind:
                await bell.heard(LOOK_S if settled.all else UNSETTLED_S)


async def _lost(connection: Connection, after: int) -> bytes | None:
    """What is said to whom the journal cannot be told without a hole."""
    try:
        await _kept(connection, after)
    except Gone as error:
        return event(body_of(error).model_dump_json(), name=GONE)
    return None
