"""Tokens: everybody makes and removes their own, admins of the server everybody's."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.core.errors import NotFound
from stoker.server.auth import PREFIX, Caller, SignedIn, new_secret
from stoker.server.context import Context
from stoker.server.error import Forbidden, answered
from stoker.server.idempotency import IdempotencyKey, once
from stoker.server.parameter import Ctx, Cursor, Limit, id_cursor, id_of
from stoker.store import token as store
from stoker.store import user as user_store
from stoker.store.database import Connection
from stoker.store.token import hash_of
from stoker.wire.time import moment, moment_or_none
from stoker.wire.token import CreateToken, NewToken, Token, TokenPage

router = APIRouter(prefix="/tokens", tags=["tokens"])


@router.get("", response_model=TokenPage)
async def list_tokens(context: Ctx, caller: SignedIn, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Your own; an admin of the server sees everybody's."""
    whose = None if caller.admin else caller.user_id
    async with context.database.connection() as connection:
        found = await store.page(connection, whose, id_cursor(cursor) or UUID(int=0), limit + 1)
    items = tuple(map(_view, found[:limit]))
    return answered(TokenPage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.post("", response_model=NewToken, status_code=201)
async def create_token(
    request: Request, context: Ctx, caller: SignedIn, body: CreateToken, key: IdempotencyKey = None
) -> Response:
    """The secret is in this answer and nowhere else."""
    if body.user is not None and body.user != caller.user and not caller.admin:
        raise Forbidden("Tokens for others are made by admins of the server.")
    if caller.only is not None:
        raise Forbidden("A token for one project cannot make others.", hint="Use one of your own.")

    made: dict[str, str] = {}

    async def make(tx: Connection, now: float) -> str:
        user = await user_store.get(tx, body.user or caller.user)
        project = None
        if body.project is not None:
            project = (await context.doorkeeper.access(caller, body.project, now)).project_id
        id = context.engine.new_id()
        expires_at = now + body.expires_in if body.expires_in is not None else None
        secret = made[str(id)] = _repeatable(context, request, id, key) if key else new_secret()
        await store.insert(tx, store.NewToken(id, user.id, project, body.name, hash_of(secret), now, expires_at))
        return str(id)

    id = UUID(await once(context, caller, f"tokens of {caller.token_id}", key, body, make))
    async with context.database.connection() as connection:
        found = await store.get(connection, id)
    if found is None:
        raise NotFound("The token that was made under this key has been deleted.")
    secret = made.get(str(id)) or _repeatable(context, request, id, key or "")
    return answered(NewToken(**_view(found).model_dump(), token=secret), 201)


@router.delete("/{id}", status_code=204)
async def delete_token(context: Ctx, caller: SignedIn, id: str) -> Response:
    """It opens nothing any more, from this moment on; at once here, within two seconds at other replicas."""
    found = await _find(context, caller, id)
    async with context.database.connection() as connection:
        await store.delete(connection, found.id)
    context.doorkeeper.forget()
    return Response(status_code=204)


def _repeatable(context: Context, request: Request, id: UUID, key: str) -> str:
    """The same for the same request, although it is kept nowhere: made of what the client sends again (its own token
    and its key) and of the cluster's secret, so that neither the client nor the database alone could make it."""
    own = request.headers["authorization"].partition(" ")[2].strip()
    said = "\0".join((own, str(id), key))
    digest = hmac.new(context.secret, said.encode(), hashlib.sha256).digest()
    return PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


async def _find(context: Context, caller: Caller, ref: str) -> store.Token:
    found = None
    if id := id_of(ref):
        async with context.database.connection() as connection:
            found = await store.get(connection, id)
    if found is None or (found.user_id != caller.user_id and not caller.admin):
        raise NotFound(f"There is no token {ref[:63]} of yours.")
    return found


def _view(one: store.Token) -> Token:
    return Token(
        id=one.id,
        name=one.name,
        user=one.user,
        project=one.project,
        created_at=moment(one.created_at),
        expires_at=moment_or_none(one.expires_at),
        used_at=moment_or_none(one.used_at),
    )
