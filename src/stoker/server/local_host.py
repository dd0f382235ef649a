"""The server's own host as an instance: its shim is started beside the server, and outlives it."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from stoker.core.block import AUTO, Blocks, divide
from stoker.core.errors import Unavailable, UserError
from stoker.core.ids import FleetId, InstanceId, ProjectId
from stoker.core.instance_facts import Instance
from stoker.core.resources import Capacity
from stoker.engine.host import capacity_of
from stoker.shim.start import start
from stoker.store import project
from stoker.store.database import Connection
from stoker.transport.agents import ShimLine
from stoker.transport.http import Line
from stoker.wire.shim import Health, HostInfo

START_S = 15.0
LOOK_S = 0.02


async def find_shim(home: Path, variables: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The address and the token of the shim of this home; it is started unless it is there or coming."""
    if (found := await _answering(home)) is not None:
        return found
    start(home, variables)
    deadline = asyncio.get_running_loop().time() + START_S
    while (found := await _answering(home)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(
                f"The shim in {home} did not answer within {START_S:.0f} s.",
                hint=f"What it has to say is in {home / 'shim.log'}.",
            )
        await asyncio.sleep(LOOK_S)
    return found


def instance_of(host: HostInfo, host_id: UUID, fleet_id: FleetId, blocks: int | str | None, now: float) -> Instance:
    capacity = capacity_of(host)
    divided = Blocks(capacity, _divided(capacity, blocks))
    return Instance(InstanceId(host_id), fleet_id, "local", divided, entered_at=now, owned=True)


def _divided(capacity: Capacity, blocks: int | str | None) -> int:
    """A host that joins a fleet whose division its GPUs do not allow is divided in its own way."""
    try:
        return divide(capacity, AUTO if blocks is None else blocks)
    except UserError:
        return divide(capacity, AUTO)


async def only_project(tx: Connection, host: HostInfo, preferred: str) -> ProjectId | None:
    """The only one that the host serves: where its agent runs without root. None: any.

    It is the one whose jobs the agent has had; before that the preferred one, so that whoever comes first by chance
    does not shut all others out for good.
    """
    if host.root:
        return None
    return ProjectId(host.project_id) if host.project_id else await project.preferred(tx, preferred)


def host_id(home: Path, *, renewed: bool = False) -> UUID:
    """Made once and kept with the shim's home: whatever else changes, the same home is the same instance.

    `renewed`: that one has ended, and the host comes back as another.
    """
    path = home / "host_id"
    with suppress(FileNotFoundError, ValueError):
        if not renewed:
            return UUID(path.read_text().strip())
    made = uuid4()
    fresh = home / f".host_id-{os.getpid()}"
    fresh.write_text(f"{made}\n")
    fresh.replace(path)
    return made


async def _answering(home: Path) -> tuple[str, str] | None:
    try:
        path, token = (home / "address").read_text().strip(), (home / "token").read_text().strip()
    except FileNotFoundError:
        return None
    line = Line(path, token)
    try:
        await line.ask(Health, "GET", "/healthz")
    except Unavailable:
        return None
    finally:
        await line.close()
    return f"unix:{path}", token


async def look(address: str, token: str) -> HostInfo:
    line = Line(address.removeprefix("unix:"), token)
    try:
        return await ShimLine(line).host()
    finally:
        await line.close()
