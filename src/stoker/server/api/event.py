"""The journal: what happened to a run, or in a project, from the beginning or as it happens."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from stoker.core.errors import UserError
from stoker.core.ids import RunId
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import Responses, answered
from stoker.server.log_hub import Bell
from stoker.server.parameter import Ctx, Cursor, Limit, RunRef, find_run, number_cursor
from stoker.server.sse import LOOK_S, PING, SCHEMA, Silence, event, streamed
from stoker.store import event as store
from stoker.store import run_list
from stoker.store.event import Told, Trouble
from stoker.wire.event import EventPage

router = APIRouter(prefix="/projects/{project}", tags=["events"])

PAGE: Final = 200
OVERLAP: Final = 2_000
"""Two commits may become visible in another order than their numbers; so much is looked at again, and told once."""

_EVENTS: Final[Responses] = {
    200: {
        "description": "Server-sent events: data is one event as JSON, id its number.",
        "content": {"text/event-stream": {"schema": SCHEMA}},
    }
}
After = Annotated[int, Query(ge=0, le=2**62, description="Only events with a higher number.")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="Goes on there, instead of `after`.")]


@router.get("/runs/{run}/events", response_model=EventPage)
async def list_events(context: Ctx, access: Member, run: RunRef, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Oldest first."""
    after = number_cursor(cursor)
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        told = await store.of_run(connection, found.id, after, limit + 1)
        last = len(told) <= limit and not found.finished
        troubles = await store.troubles(connection, found.id) if last else []
    return _page(told, limit, troubles)


@router.get("/events", response_model=EventPage)
async def list_project_events(context: Ctx, access: Member, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Of all runs of the project, oldest first."""
    after = number_cursor(cursor)
    async with context.database.connection() as connection:
        told = await store.of_project(connection, access.project_id, after, limit + 1)
    return _page(told, limit)


@router.get("/runs/{run}/events/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_events(
    context: Ctx, access: Member, run: RunRef, after: After = 0, last_event_id: LastId = None
) -> Response:
    """Until the run has finished and everything was told; then comes the event `end`."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
    return streamed(context, _follow_run(context, access, found.id, _begin(after, last_event_id)))


@router.get("/events/follow", response_class=StreamingResponse, responses=_EVENTS)
async def follow_project_events(
    context: Ctx,
    access: Member,
    after: Annotated[int | None, Query(ge=0, le=2**62, description="From now on, unless it is said.")] = None,
    last_event_id: LastId = None,
) -> Response:
    """Of all runs of the project, without end."""
    if after is None and last_event_id is None:
        async with context.database.connection() as connection:
            after = await store.newest(connection)
    return streamed(context, _follow_project(context, access, _begin(after or 0, last_event_id)))


def _begin(after: int, last_event_id: str | None) -> int:
    if last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
        raise UserError("Last-Event-ID is no number of an event.")
    return int(last_event_id)


def _page(told: list[Told], limit: int, troubles: Iterable[Trouble] = ()) -> Response:
    items = tuple(map(view.event_of, told[:limit]))
    following = str(items[-1].seq) if len(told) > limit else None
    return answered(EventPage(items=items, next_cursor=following, troubles=tuple(map(view.trouble_of, troubles))))


async def _follow_run(context: Context, access: Access, run_id: RunId, after: int) -> AsyncGenerator[bytes, None]:
    """Commits about one run follow each other, so their numbers come in order."""
    bell, silence, finished = Bell(), Silence(), False
    with context.runs.hung(run_id, bell):
        while not context.stopping.is_set():
            async with context.database.connection() as connection:
                told = await store.of_run(connection, run_id, after, PAGE)
                if not told and not finished:
                    run = await run_list.get(connection, access.project_id, run_id)
                    finished = run is None or run.finished
                    if finished:
                        # Once more: the last event may have come between the two questions.
                        continue
            for one in told:
                after = one.seq
                yield event(view.event_of(one).model_dump_json(), id=one.seq)
            if told:
                silence.broken()
            elif finished:
                yield event("{}", name="end")
                return
            else:
                await bell.heard(LOOK_S)
                if silence.too_long():
                    yield PING


async def _follow_project(context: Context, access: Access, after: int) -> AsyncGenerator[bytes, None]:
    bell, silence, recent = Bell(), Silence(), _Recent(after)
    with context.runs.hung_everywhere(bell):
        while not context.stopping.is_set():
            async for one in recent.fresh(lambda seq: _of_project(context, access, seq)):
                silence.broken()
                yield event(view.event_of(one).model_dump_json(), id=one.seq)
            await bell.heard(LOOK_S)
            if silence.too_long():
                yield PING


async def _of_project(context: Context, access: Access, after: int) -> list[Told]:
    async with context.database.connection() as connection:
        return await store.of_project(connection, access.project_id, after, PAGE)


class _Recent:
    """Which events were told lately: a number that became visible late is told once, and so is every other."""

    def __init__(self, after: int) -> None:
        self._floor, self._told, self._order = after, set[int](), deque[int]()

    async def fresh(self, ask: Callable[[int], Awaitable[list[Told]]]) -> AsyncGenerator[Told, None]:
        after = self._floor
        while True:
            told = await ask(after)
            for one in told:
                after = one.seq
                if one.seq not in self._told:
                    self._note(one.seq)
                    yield one
            if len(told) < PAGE:
                return

    def _note(self, seq: int) -> None:
        self._told.add(seq)
        self._order.append(seq)
        if len(self._order) > OVERLAP:
            oldest = self._order.popleft()
            self._told.discard(oldest)
            self._floor = max(self._floor, oldest)
