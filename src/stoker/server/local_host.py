"""The server's own host as an instance: its shim is started beside the server, and outlives it."""

import asyncio
import os
from pathlib import Path
from uuid import UUID, uuid4

from stoker.core.block import AUTO, Blocks, divide
from stoker.core.errors import Unavailable
from stoker.core.gpu import Gpu
from stoker.core.ids import FleetId, InstanceId, ProjectId
from stoker.core.instance import Instance
from stoker.core.quantity import whole
from stoker.core.resources import Capacity
from stoker.shim.start import start
from stoker.store import project
from stoker.store.database import Connection
from stoker.transport.http import Line
from stoker.transport.local import LocalShim
from stoker.wire.shim import Health, HostInfo

START_S = 15.0
LOOK_S = 0.02


async def find_shim(home: Path) -> tuple[str, str]:
    """The address and the token of the shim of this home; it is started unless it is there or coming."""
    if (found := await _answering(home)) is not None:
        return found
    start(home)
    deadline = asyncio.get_running_loop().time() + START_S
    while (found := await _answering(home)) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(
                f"The shim of this host did not answer within {START_S:.0f} s.",
                hint=f"What it has to say is in {home / 'shim.log'}.",
            )
        await asyncio.sleep(LOOK_S)
    return found


def instance_of(host: HostInfo, host_id: UUID, fleet_id: FleetId, now: float) -> Instance:
    gpus = tuple(Gpu(gpu.index, gpu.name, gpu.memory_mb, gpu.vendor) for gpu in host.gpus)
    capacity = Capacity(whole(host.cpus), host.memory_mb, host.disk_mb, gpus)
    blocks = Blocks(capacity, divide(capacity, AUTO))
    return Instance(InstanceId(host_id), fleet_id, "local", blocks, entered_at=now, owned=True)


async def only_project(tx: Connection, host: HostInfo, preferred: str) -> ProjectId | None:
    """The only one that the host serves: where its agent runs without root. None: any.

    It is the one whose jobs the agent has had; before that the preferred one, so that whoever comes first by chance
    does not shut all others out for good.
    """
    if host.root:
        return None
    return ProjectId(host.project_id) if host.project_id else await project.preferred(tx, preferred)


def host_id(home: Path) -> UUID:
    """Made once and kept with the shim's home: whatever else changes, the same home is the same instance."""
    path = home / "host_id"
    try:
        return UUID(path.read_text().strip())
    except (FileNotFoundError, ValueError):
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
        return await LocalShim(line).host()
    finally:
        await line.close()
