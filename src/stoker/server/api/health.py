"""Is it there, can it work, and what does it cost: for those who watch the server, without a token."""

import asyncio
import ipaddress

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoker.core.errors import StokerError, Unavailable
from stoker.server.context import Context
from stoker.server.error import Forbidden, Responses, answered
from stoker.server.metrics import CONTENT_TYPE
from stoker.server.parameter import Ctx
from stoker.wire.model import ErrorBody
from stoker.wire.server import Health

router = APIRouter(tags=["health"])
PATIENCE_S = 2.0

_NOT_READY: Responses = {503: {"model": ErrorBody, "description": "Not now."}}


@router.get("/healthz/live", response_model=Health)
async def live(context: Ctx) -> Response:
    """The process answers."""
    return answered(Health(status="ok", version=context.version))


@router.get("/healthz/ready", response_model=Health, responses=_NOT_READY)
@router.get("/healthz", response_model=Health, responses=_NOT_READY, include_in_schema=False)
async def ready(context: Ctx) -> Response:
    """It can work: the database answers, and the server is not stopping."""
    if context.stopping.is_set():
        raise Unavailable("The server is stopping.")
    try:
        async with asyncio.timeout(PATIENCE_S), context.database.connection() as connection:
            await connection.fetchval("SELECT 1")
    except (StokerError, TimeoutError):
        raise Unavailable("The database does not answer.") from None
    return answered(Health(status="ok", version=context.version))


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request, context: Ctx) -> Response:
    """For Prometheus: from this machine without a token, from elsewhere with one of an admin."""
    if not _is_local(request):
        await _let_admin_in(request, context)
    page = await context.metrics.page(context.database, context.engine, context.streams)
    return Response(page, headers={"Content-Type": CONTENT_TYPE})


async def _let_admin_in(request: Request, context: Context) -> None:
    caller = await context.doorkeeper.caller(request.headers.get("authorization", ""), context.engine.clock.now())
    if not caller.admin:
        raise Forbidden("Metrics are for admins of the server.")


def _is_local(request: Request) -> bool:
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
