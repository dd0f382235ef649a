"""Fleets that a project may use."""

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import NotFound
from stoker.server import view
from stoker.server.auth import Member
from stoker.server.error import answered
from stoker.server.parameter import Ctx, Cursor, Limit, NameRef, id_cursor
from stoker.store import fleet as store
from stoker.wire.fleet import Fleet, FleetPage
from stoker.wire.name import is_name

router = APIRouter(prefix="/projects/{project}/fleets", tags=["fleets"])


@router.get("", response_model=FleetPage)
async def list_fleets(context: Ctx, access: Member, limit: Limit = 50, cursor: Cursor = None) -> Response:
    after = id_cursor(cursor) or UUID(int=0)
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, after, limit + 1)
    items = tuple(map(view.fleet_of, found[:limit]))
    return answered(FleetPage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.get("/{name}", response_model=Fleet)
async def get_fleet(context: Ctx, access: Member, name: NameRef) -> Response:
    found = None
    if is_name(name):
        async with context.database.connection() as connection:
            found = await store.get(connection, access.project_id, name)
    if found is None:
        raise NotFound(f"There is no fleet {name[:63]}.", hint="`stoker fleets` lists them.")
    return answered(view.fleet_of(found))
