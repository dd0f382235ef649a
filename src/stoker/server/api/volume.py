"""Volumes of a project: look, plan, apply, delete."""

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from stoker.server import view
from stoker.server.auth import Member
from stoker.server.error import answered
from stoker.server.parameter import Ctx, Cursor, Limit, NameRef, id_cursor
from stoker.server.volume import VolumeDesk, find_volume
from stoker.store import volume as store
from stoker.wire.volume import Volume, VolumeApply, VolumePage, VolumePlan, VolumePlanRequest

router = APIRouter(prefix="/projects/{project}/volumes", tags=["volumes"])


@router.get("", response_model=VolumePage)
async def list_volumes(context: Ctx, access: Member, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Those that are not gone."""
    after = id_cursor(cursor) or UUID(int=0)
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, after, limit + 1)
    items = tuple(map(view.volume_of, found[:limit]))
    return answered(VolumePage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.post("/plan", response_model=VolumePlan)
async def plan_volume(context: Ctx, access: Member, body: VolumePlanRequest) -> Response:
    """What would happen if this were applied now."""
    return answered(await VolumeDesk(context, access).plan(body.configuration))


@router.post("", response_model=Volume, responses={201: {"model": Volume, "description": "It was made."}})
async def apply_volume(context: Ctx, access: Member, body: VolumeApply) -> Response:
    """Makes the volume, or changes the tags of the one of that name. Said twice, it changes nothing the second time."""
    checked = "expected" in body.model_fields_set
    made = await VolumeDesk(context, access).apply(body.configuration, body.expected, checked)
    async with context.database.connection() as connection:
        found = await find_volume(connection, access, body.configuration.name)
    return answered(view.volume_of(found), 201 if made else 200)


@router.get("/{name}", response_model=Volume)
async def get_volume(context: Ctx, access: Member, name: NameRef) -> Response:
    """Also the last one of that name that was deleted."""
    async with context.database.connection() as connection:
        return answered(view.volume_of(await find_volume(connection, access, name)))


@router.delete("/{name}", response_model=Volume)
async def delete_volume(context: Ctx, access: Member, name: NameRef) -> Response:
    """With all that is in it (of an nfs server nothing is deleted). Refused while a run wants it."""
    return answered(view.volume_of(await VolumeDesk(context, access).delete(name)))
