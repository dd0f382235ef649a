"""What the server says of itself, and the schema of what it takes."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from stoker.server.auth import SignedIn
from stoker.server.error import answered
from stoker.server.parameter import Ctx
from stoker.wire.configuration import json_schema
from stoker.wire.fleet import FleetConfiguration
from stoker.wire.server import ServerInfo
from stoker.wire.volume import VolumeConfiguration

router = APIRouter(tags=["server"])
public = APIRouter(tags=["server"])


@router.get("/server", response_model=ServerInfo)
async def server(context: Ctx, caller: SignedIn) -> Response:
    """Its version, and which replica answered."""
    return answered(ServerInfo(name=context.settings.replica, version=context.version))


@public.get("/schema/task")
async def task_schema() -> dict[str, Any]:
    """JSON Schema of a task's configuration, for editors; it needs no token, since editors have none."""
    return json_schema()


@public.get("/schema/fleet")
async def fleet_schema() -> dict[str, Any]:
    """JSON Schema of a fleet's configuration, likewise."""
    return json_schema(FleetConfiguration)


@public.get("/schema/volume")
async def volume_schema() -> dict[str, Any]:
    """JSON Schema of a volume's configuration, likewise."""
    return json_schema(VolumeConfiguration)
