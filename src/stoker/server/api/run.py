"""Runs: submit, list, look, wait, stop, delete."""

import asyncio
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from stoker.core.errors import Conflict
from stoker.core.ids import RunId
from stoker.core.limits import LONGEST_WAIT_S, MOST_ITEMS, MOST_JOBS_SHOWN
from stoker.core.run_facts import AbortAsked, S, StopAsked
from stoker.engine.change import Change, of_run
from stoker.server import view
from stoker.server.again import Again
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.idempotency import IdempotencyKey
from stoker.server.log_hub import Bell
from stoker.server.parameter import Ctx, Cursor, Limit, RunRef, find_run, id_cursor, may_change
from stoker.server.submission import Submission
from stoker.server.sweep import NAME as SWEEP
from stoker.store import run_list
from stoker.store.run_list import Filter, Listed
from stoker.wire.name import NAME
from stoker.wire.run import Run, RunList, RunPage, Stop, StopMany, Submit
from stoker.wire.time import seconds_of
from stoker.wire.user import Role

router = APIRouter(prefix="/projects/{project}/runs", tags=["runs"])

NameFilter = Annotated[str | None, Query(pattern=NAME, description="Only of this name.")]


@router.post(
    "",
    response_model=Run | RunList,
    status_code=201,
    response_description="The run; or all, where many were sent.",
    responses={200: {"model": Run, "description": "The unfinished run that was expected, changed in place."}},
)
async def submit_runs(context: Ctx, access: Member, body: Submit, key: IdempotencyKey = None) -> Response:
    """Accepts one configuration, or many of which all are accepted or none. What is answered here is on disk.

    One whose `expected` names an unfinished run changes that run in place, where only such fields differ as may.
    """
    accepted = await Submission(context, access, body, key).accepted()
    headers = {"Idempotent-Replayed": "true"} if accepted.before else None
    if body.configurations is not None:
        return answered(RunList(items=tuple(accepted.runs)), 201, headers)
    return answered(accepted.runs[0], 200 if accepted.revised else 201, headers)


@router.get("", response_model=RunPage)
async def list_runs(
    context: Ctx,
    access: Member,
    status: Annotated[list[S] | None, Query(description="Only these.")] = None,
    active: Annotated[bool | None, Query(description="Only unfinished ones, or only finished ones.")] = None,
    name: NameFilter = None,
    type: Annotated[str | None, Query(pattern="^[a-z-]{1,32}$", description="Only of this type.")] = None,
    user: Annotated[str | None, Query(pattern=NAME, description="Only of this user.")] = None,
    since: Annotated[datetime | None, Query(description="Submitted at this moment or later.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Newest first, without their jobs and configurations."""
    chosen = Filter(frozenset(status or ()), active, name, type, user, None if since is None else seconds_of(since))
    before = id_cursor(cursor)
    async with context.database.connection() as connection:
        found = await run_list.page(connection, access.project_id, chosen, before, limit + 1)
    items = tuple(view.with_pulls(view.run_of(one, access), context.pulls) for one in found[:limit])
    return answered(RunPage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.post("/stop", response_model=RunList)
async def stop_runs(context: Ctx, access: Member, body: StopMany) -> Response:
    """Asks several runs to end: those that are named (all must be there and yours), or every one that you may stop."""
    if body.all:
        found = await _every_unfinished(context, access)
    else:
        async with context.database.connection() as connection:
            found = [await find_run(connection, access, ref) for ref in dict.fromkeys(body.runs)]
        for one in found:
            may_change(access, one, "stop")
    await asyncio.gather(*(_ask_to_stop(context, access, one, body.abort) for one in found))
    async with context.database.connection() as connection:
        now = [await run_list.get(connection, access.project_id, one.id) for one in found]
    return answered(RunList(items=tuple(view.run_of(one, access) for one in now if one is not None)))


@router.get("/{run}", response_model=Run)
async def get_run(context: Ctx, access: Member, run: RunRef) -> Response:
    return answered(await _shown(context, access, run))


@router.get("/{run}/wait", response_model=Run)
async def wait_for_run(
    context: Ctx,
    access: Member,
    run: RunRef,
    timeout_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Then it is answered as it is.")] = 30.0,
) -> Response:
    """Answers as soon as the run has finished, or when the time is over: its status says which."""
    loop, bell = asyncio.get_running_loop(), Bell()
    until = loop.time() + timeout_s
    async with context.database.connection() as connection:
        id = (await find_run(connection, access, run)).id
    with context.runs.hung(id, bell):
        while True:
            shown = await _shown(context, access, str(id))
            left_s = until - loop.time()
            if shown.finished_at is not None or left_s <= 0 or context.stopping.is_set():
                return answered(shown)
            await bell.heard(left_s)


@router.post("/{run}/stop", response_model=Run)
async def stop_run(context: Ctx, access: Member, run: RunRef, body: Stop | None = None) -> Response:
    """Asks it to end in good order, or at once. A run that has finished, or is ending already, stays what it is."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
    may_change(access, found, "stop")
    await _ask_to_stop(context, access, found, body is not None and body.abort)
    return answered(await _shown(context, access, str(found.id)))


@router.post("/{run}/retry", response_model=Run, status_code=201, response_description="The new run.")
async def retry_run(context: Ctx, access: Member, run: RunRef, key: IdempotencyKey = None) -> Response:
    """Does again what did not get done of a finished run, as a new run of the same name: of an array only those
    replicas, under the numbers that they had. The old run and its outcome stay what they are."""
    accepted = await Again(context, access, run, key).accepted()
    return answered(accepted.runs[0], 201, {"Idempotent-Replayed": "true"} if accepted.before else None)


@router.delete("/{run}", status_code=204)
async def delete_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """With its logs. Refused while it is not finished."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        may_change(access, found, "delete")
        if not await run_list.hide(connection, found.id, context.engine.clock.now()):
            raise Conflict(
                f"{found.name} is {found.state}: only a finished run can be deleted.",
                hint=f"Stop it first: stoker stop {found.name}.",
                code="not_finished",
            )
    context.engine.wake(SWEEP)
    return Response(status_code=204)


async def _shown(context: Context, access: Access, ref: str) -> Run:
    async with context.database.connection() as connection:
        found = await find_run(connection, access, ref)
        jobs = await run_list.jobs(connection, found.id, MOST_JOBS_SHOWN)
    return view.with_pulls(view.run_of(found, access, jobs), context.pulls)


async def _every_unfinished(context: Context, access: Access) -> list[Listed]:
    user = None if access.may(Role.MANAGER) else access.user
    found: list[Listed] = []
    before: RunId | None = None
    async with context.database.connection() as connection:
        while True:
            chosen = Filter(active=True, user=user)
            page = await run_list.page(connection, access.project_id, chosen, before, MOST_ITEMS)
            found += page
            if len(page) < MOST_ITEMS:
                return found
            before = page[-1].id


async def _ask_to_stop(context: Context, access: Access, run: Listed, abort: bool) -> None:
    if not run.finished:
        event = AbortAsked(by=access.user) if abort else StopAsked(by=access.user)
        await asyncio.shield(context.engine.commit(Change(facts=(of_run(run.id, event),))))
