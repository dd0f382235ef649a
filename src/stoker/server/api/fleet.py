"""Fleets that a project may use: look, plan, apply, delete."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from stoker.core.errors import UserError
from stoker.server import view
from stoker.server.auth import Manager, Member
from stoker.server.error import answered
from stoker.server.fleet import FleetDesk, find_fleet
from stoker.server.parameter import Ctx, Cursor, Limit, NameRef, id_cursor
from stoker.store import fleet as store
from stoker.wire.fleet import Fleet, FleetApply, FleetPage, FleetPlan, FleetPlanRequest

router = APIRouter(prefix="/projects/{project}/fleets", tags=["fleets"])

Tags = Annotated[
    list[str] | None, Query(max_length=20, description="Only with this tag: team=vision.", examples=[["team=vision"]])
]
Force = Annotated[bool, Query(description="Interrupt what runs on it.")]


@router.get("", response_model=FleetPage)
async def list_fleets(
    context: Ctx, access: Member, tag: Tags = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Its own, and those that serve every project."""
    after, now = id_cursor(cursor) or UUID(int=0), context.engine.clock.now()
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, now, after, limit + 1, _tags(tag or []))
    items = tuple(map(view.fleet_of, found[:limit]))
    return answered(FleetPage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.post("/plan", response_model=FleetPlan)
async def plan_fleet(context: Ctx, access: Member, body: FleetPlanRequest) -> Response:
    """What would change if this were applied now: field by field, and which machines would come and go."""
    return answered(await FleetDesk(context, access).plan(body.configuration))


@router.post("", response_model=Fleet, responses={201: {"model": Fleet, "description": "It was made."}})
async def apply_fleet(context: Ctx, access: Manager, body: FleetApply) -> Response:
    """Makes the fleet, or changes the one of that name in place. Said twice, it changes nothing the second time."""
    checked = "expected" in body.model_fields_set
    made = await FleetDesk(context, access).apply(body.configuration, body.expected, checked, body.keys)
    async with context.database.connection() as connection:
        found = await find_fleet(connection, context, access, body.configuration.name)
    return answered(view.fleet_of(found), 201 if made else 200)


@router.get("/{name}", response_model=Fleet)
async def get_fleet(context: Ctx, access: Member, name: NameRef) -> Response:
    async with context.database.connection() as connection:
        return answered(view.fleet_of(await find_fleet(connection, context, access, name)))


@router.delete("/{name}", response_model=Fleet)
async def delete_fleet(context: Ctx, access: Manager, name: NameRef, force: Force = False) -> Response:
    """With its machines; it is gone with the last of them. Refused while jobs are on them, unless it is forced."""
    return answered(view.fleet_of(await FleetDesk(context, access).delete(name, force)))


def _tags(said: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in said]
    if any(not sign or not f"{name}{value}".isprintable() for name, sign, value in pairs):
        raise UserError("A tag is asked for with its value.", hint="For example: tag=team=vision")
    return {name: value for name, _, value in pairs}
