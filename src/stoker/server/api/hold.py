"""Runs that wait for a person: held and released."""

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import Conflict
from stoker.core.run_facts import HoldAsked, ReleaseAsked, S
from stoker.engine.change import Change, of_run
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx, RunRef, find_run, may_change
from stoker.store.run_list import Listed
from stoker.wire.run import Run

router = APIRouter(prefix="/projects/{project}/runs", tags=["runs"])


@router.post("/{run}/hold", response_model=Run)
async def hold_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """Nothing of it is placed until it is released. Refused where everything of it has started."""
    found = await _found(context, access, run, "hold")
    now = await _said(context, access, found, HoldAsked(by=access.user))
    if not now.held:
        raise Conflict(f"{now.name} is {now.state}: nothing of it waits any more.", hint=_hint(now), code="started")
    return answered(view.run_of(now, access))


@router.post("/{run}/release", response_model=Run)
async def release_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """It is placed as soon as there is room. One that is not held stays what it is."""
    found = await _found(context, access, run, "release")
    return answered(view.run_of(await _said(context, access, found, ReleaseAsked(by=access.user)), access))


def _hint(run: Listed) -> str:
    return "" if run.finished or run.state is S.TERMINATING else f"`stoker stop {run.name}` ends it."


async def _found(context: Context, access: Access, ref: str, what: str) -> Listed:
    async with context.database.connection() as connection:
        found = await find_run(connection, access, ref)
    may_change(access, found, what)
    return found


async def _said(context: Context, access: Access, run: Listed, event: HoldAsked | ReleaseAsked) -> Listed:
    await asyncio.shield(context.engine.commit(Change(facts=(of_run(run.id, event),))))
    return await _found(context, access, str(run.id), "see")
