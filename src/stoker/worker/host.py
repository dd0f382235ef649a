"""What this host offers to tasks: what was found, unless somebody says otherwise."""

import os
import socket
from collections.abc import Mapping

import psutil

from stoker.core.errors import UserError
from stoker.core.fit import CPUS, GPUS, MEMORY, Room, parse_amounts
from stoker.core.quantity import whole
from stoker.shim import allowance
from stoker.shim.host import capacity
from stoker.shim.host import gpus as nvml_gpus

MB = 1024 * 1024


def name() -> str:
    return socket.gethostname() or "worker"


def total(cpus: float | None, memory: str | None, gpus: int, others: Mapping[str, float]) -> Room:
    """`cpus` and `memory` as the machine and our control groups have them, where they are not said."""
    found_cpus, found_mb = capacity(
        allowance.read(), cpus=len(os.sched_getaffinity(0)), memory_bytes=psutil.virtual_memory().total
    )
    if taken := {CPUS, MEMORY, GPUS} & set(others):
        raise UserError(f"--resource {min(taken)}: this one has an option of its own.", hint=f"Say --{min(taken)}.")
    said = {MEMORY: found_mb if memory is None else memory, CPUS: found_cpus if cpus is None else cpus, **others}
    amounts = parse_amounts(said)
    return Room({name: whole(amount) for name, amount in amounts.items()}, (1,) * gpus)


def gpus(said: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What tasks will see in `CUDA_VISIBLE_DEVICES`: of those that we may use so many, or those that were named."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
    else:
        found = () if said == "0" else tuple(str(gpu.index) for gpu in nvml_gpus())
    if said is None:
        return found
    if "," in said:
        names = tuple(name.strip() for name in said.split(",") if name.strip())
        if not all(name.isdecimal() for name in names) or len(set(names)) < len(names):
            raise UserError(f"--gpus {said}: expected a number, or indices.", hint="For example 2, or 0,3.")
        return names
    if not said.isdecimal():
        raise UserError(f"--gpus {said}: expected a number, or indices.", hint="For example 2, or 0,3.")
    count = int(said)
    return found[:count] if len(found) >= count else tuple(str(index) for index in range(count))
