"""Runs that come again and again: a round by hand, a pause, and on."""

import asyncio
from typing import Final, Literal

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import Conflict
from stoker.core.round import QUEUED, SKIPPED, TRIGGERED
from stoker.core.run_facts import Amended, PauseAsked, ResumeAsked, TriggerAsked
from stoker.engine.change import Change, of_run
from stoker.engine.draft import Answer
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx, RunRef, find_run, may_change
from stoker.store.run_list import Listed
from stoker.wire.run import Run
from stoker.wire.schedule import Triggered

router = APIRouter(prefix="/projects/{project}/runs", tags=["runs"])

_OUTCOMES: Final[dict[str, tuple[Literal["started", "queued", "skipped"], str]]] = {
    TRIGGERED: ("started", "A round of {name} starts now."),
    QUEUED: ("queued", "A round of {name} runs already; the next one starts as soon as it has ended."),
    SKIPPED: ("skipped", "A round of {name} runs already, and its schedule says `overlap: skip`: nothing was started."),
}


@router.post("/{run}/trigger", response_model=Triggered)
async def trigger_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """Starts a round of its schedule now, whatever the clock says. While one runs, its `overlap` decides."""
    found = await scheduled(context, access, run, "trigger")
    told = await said(context, found, TriggerAsked(by=access.user))
    if not told.applied[0]:
        raise Conflict(f"{found.name} ends, and its schedule with it.", code="ending")
    outcome, sentence = _OUTCOMES[told.notes[0]]
    return answered(Triggered(outcome=outcome, sentence=sentence.format(name=found.name)))


@router.post("/{run}/pause", response_model=Run)
async def pause_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """Its schedule triggers nothing until it is resumed; a round that runs goes on."""
    found = await scheduled(context, access, run, "pause")
    return await _shown(context, access, found, PauseAsked(by=access.user))


@router.post("/{run}/resume", response_model=Run)
async def resume_run(context: Ctx, access: Member, run: RunRef) -> Response:
    """Its schedule goes on with the next trigger; what was missed is not made up for."""
    found = await scheduled(context, access, run, "resume")
    return await _shown(context, access, found, ResumeAsked(by=access.user))


async def scheduled(context: Context, access: Access, ref: str, what: str) -> Listed:
    async with context.database.connection() as connection:
        found = await find_run(connection, access, ref)
    may_change(access, found, what)
    if found.schedule is None:
        raise Conflict(
            f"{found.name} has no schedule to {what}.",
            hint='A schedule is given in the configuration, when the run is submitted: `schedule: "0 3 * * *"`.',
            code="no_schedule",
        )
    if found.finished:
        raise Conflict(
            f"{found.name} has ended, and its schedule with it.", hint="Apply its file again.", code="finished"
        )
    return found


async def said(context: Context, run: Listed, event: TriggerAsked | Amended) -> Answer:
    return await asyncio.shield(context.engine.commit(Change(facts=(of_run(run.id, event),))))


async def _shown(context: Context, access: Access, run: Listed, event: PauseAsked | ResumeAsked) -> Response:
    """Said twice it is the same as once."""
    await said(context, run, event)
    async with context.database.connection() as connection:
        return answered(view.run_of(await find_run(connection, access, str(run.id)), access))
