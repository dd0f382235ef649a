"""Instances that a project may use."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from stoker.core.errors import Conflict, NotFound
from stoker.server import view
from stoker.server.auth import Member
from stoker.server.error import answered
from stoker.server.parameter import Ctx, Cursor, Limit, id_cursor, id_of
from stoker.store import instance as store
from stoker.wire.instance import Instance, InstancePage

router = APIRouter(prefix="/projects/{project}/instances", tags=["instances"])


@router.get("", response_model=InstancePage)
async def list_instances(
    context: Ctx,
    access: Member,
    finished: Annotated[bool, Query(description="Also those that are gone.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    after = id_cursor(cursor) or UUID(int=0)
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, after, finished, limit + 1)
    items = tuple(view.instance_of(one.instance, one.fleet) for one in found[:limit])
    return answered(InstancePage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.get("/{instance}", response_model=Instance)
async def get_instance(
    context: Ctx, access: Member, instance: Annotated[str, Path(description="The name or the id of an instance.")]
) -> Response:
    async with context.database.connection() as connection:
        if id := id_of(instance):
            one = await store.visible(connection, access.project_id, id)
            found = [one] if one else []
        else:
            found = await store.named(connection, access.project_id, instance)
    if not found:
        raise NotFound(f"There is no instance {instance[:63]}.", hint="`stoker instances` lists them.")
    if len(found) > 1:
        ids = ", ".join(str(one.instance.id) for one in found)
        raise Conflict(
            f"{instance} is the name of {len(found)} instances.", hint=f"Say which: {ids}.", code="ambiguous"
        )
    return answered(view.instance_of(found[0].instance, found[0].fleet))
