"""Users: seen by everybody who has a token, made and changed by admins of the server."""

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import Conflict, NotFound
from stoker.server.auth import ServerAdmin, SignedIn
from stoker.server.context import Context
from stoker.server.error import Forbidden, answered
from stoker.server.idempotency import IdempotencyKey, once
from stoker.server.parameter import Ctx, Cursor, Limit, NameRef, name_cursor
from stoker.store import user as store
from stoker.store.database import Connection
from stoker.wire.model import Invalid, Problem
from stoker.wire.name import is_name
from stoker.wire.time import moment, moment_or_none
from stoker.wire.user import ChangeUser, CreateUser, Me, Membership, User, UserPage

router = APIRouter(prefix="/users", tags=["users"])

ME = "me"


@router.get("", response_model=UserPage)
async def list_users(context: Ctx, caller: ServerAdmin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    async with context.database.connection() as connection:
        found = await store.page(connection, name_cursor(cursor), limit + 1)
    items = tuple(map(_view, found[:limit]))
    return answered(UserPage(items=items, next_cursor=items[-1].name if len(found) > limit else None))


@router.post("", response_model=User, status_code=201)
async def create_user(context: Ctx, caller: ServerAdmin, body: CreateUser, key: IdempotencyKey = None) -> Response:
    if body.name == ME:
        raise Invalid([Problem(key="name", message=f"{ME} means whoever asks", hint="Choose another name.")])

    async def make(tx: Connection, now: float) -> str:
        made = await store.insert(tx, store.User(context.engine.new_id(), body.name, body.admin, now))
        if not made:
            raise Conflict(f"There is a user {body.name} already.", code="name_taken")
        return body.name

    name = await once(context, caller, "users", key, body, make)
    async with context.database.connection() as connection:
        return answered(_view(await store.get(connection, name)), 201)


@router.get("/me", response_model=Me)
async def me(context: Ctx, caller: SignedIn) -> Response:
    """Whose token this is, and what it opens."""
    async with context.database.connection() as connection:
        found = await store.get(connection, caller.user)
    projects = tuple(Membership(project=name, role=role) for name, (_, role) in sorted(caller.roles.items()))
    return answered(
        Me(
            id=found.id,
            name=found.name,
            admin=caller.admin,
            created_at=moment(found.created_at),
            projects=projects,
            token_expires_at=moment_or_none(caller.expires_at),
        )
    )


@router.get("/{name}", response_model=User)
async def get_user(context: Ctx, caller: SignedIn, name: NameRef) -> Response:
    if name != caller.user and not caller.admin:
        raise Forbidden("Other users are shown to admins of the server.")
    return answered(_view(await _find(context, name)))


@router.patch("/{name}", response_model=User)
async def change_user(context: Ctx, caller: ServerAdmin, name: NameRef, body: ChangeUser) -> Response:
    found = await _find(context, name)
    async with context.database.transaction() as tx:
        if found.admin and not body.admin:
            await _keep_one_admin(tx)
        await store.set_admin(tx, found.id, body.admin)
    context.doorkeeper.forget()
    return answered(_view(found._replace(admin=body.admin)))


@router.delete("/{name}", status_code=204)
async def delete_user(context: Ctx, caller: ServerAdmin, name: NameRef) -> Response:
    """Their tokens end at once; their runs stay."""
    found = await _find(context, name)
    async with context.database.transaction() as tx:
        if found.admin:
            await _keep_one_admin(tx)
        await store.delete(tx, found.id)
    context.doorkeeper.forget()
    return Response(status_code=204)


async def _keep_one_admin(tx: Connection) -> None:
    if await store.count(tx, admins=True) <= 1:
        raise Conflict("This is the last admin of the server.", hint="Make another one first.", code="last_admin")


async def _find(context: Context, name: str) -> store.User:
    if not is_name(name):
        raise NotFound(f"There is no user {name[:63]}.")
    async with context.database.connection() as connection:
        return await store.get(connection, name)


def _view(one: store.User) -> User:
    return User(id=one.id, name=one.name, admin=one.admin, created_at=moment(one.created_at))
