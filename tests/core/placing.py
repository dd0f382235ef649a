"""Gangs and instances in one line each, for the tests of the placer."""

import math
from typing import Any
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import FleetId, InstanceId, JobId, RunId
from stoker.core.placement import Plan
from stoker.core.resources import Capacity, Gpu, parse_request
from stoker.core.why import Why

GB = 1024
NOW = 500.0  # before the oldest gang here has waited long enough to have machines kept for it
A, B = FleetId(UUID(int=0xA)), FleetId(UUID(int=0xB))
NEVER = math.inf


def job(run: int, node: int = 0) -> JobId:
    return JobId(UUID(int=run * 100 + node))


def capacity(cpu: float = 4, gpus: int = 0, name: str = "A100") -> Capacity:
    return Capacity(cpu, int(cpu) * 4 * GB, 100 * GB, tuple(Gpu(n, name, 80 * GB) for n in range(gpus)))


def gang(run: int, *requests: dict[str, Any], **more: Any) -> Gang:
    jobs = tuple((job(run, node), parse_request(request)) for node, request in enumerate(requests or ({},)))
    return Gang(RunId(UUID(int=run)), 0, more.pop("submitted_at", float(run)), jobs, **more)


def room(n: int, cpu: float = 4, gpus: int = 0, total: int = 4, held: int = 0, **more: Any) -> InstanceRoom:
    holding = {job(900 + n): tuple(range(held))} if held else {}
    blocks = Blocks(capacity(cpu, gpus), total, holding)
    return InstanceRoom(InstanceId(UUID(int=n)), blocks, more.pop("fleet_id", A), name=f"local-{n}", **more)


def where(made: Plan) -> dict[int, int]:
    """Run and node (as in `job`) -> instance."""
    return {one.job_id.int: one.instance_id.int for one in made.assignments}


def only(made: Plan) -> Why:
    (why,) = made.left
    return why
