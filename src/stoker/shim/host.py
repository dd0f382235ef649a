"""What this host has and we may use: CPUs, memory, disk, addresses, and the GPUs that NVML knows."""

import ipaddress
import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psutil
import pynvml  # type: ignore[import-untyped]

from stoker.shim import allowance
from stoker.shim.allowance import Allowance
from stoker.wire.shim import HostGpu, HostInfo

MB = 1024 * 1024
LEAST_CPUS = 0.001


def gpus() -> tuple[HostGpu, ...]:
    """None where there is no driver. They do not change while the host is up."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    found: list[HostGpu] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            # One that fell off its bus must not hide the others.
            with suppress(pynvml.NVMLError):
                found.append(_gpu(index))
    finally:
        pynvml.nvmlShutdown()
    return tuple(found)


def ailing(known: Sequence[HostGpu]) -> list[str]:
    """What is wrong with those that were there when we began."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ["the driver of its GPUs does not answer"]
    try:
        return [said for gpu in known if (said := _ailment(gpu))]
    finally:
        pynvml.nvmlShutdown()


def _ailment(gpu: HostGpu) -> str:
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(gpu.id)
        # One that fell off its bus has a handle, and answers nothing.
        pynvml.nvmlDeviceGetMemoryInfo(device)
    except pynvml.NVMLError:
        return f"GPU {gpu.index} ({gpu.name}) is gone"
    # Cards without spare rows do not tell.
    with suppress(pynvml.NVMLError):
        if pynvml.nvmlDeviceGetRemappedRows(device)[3]:
            return f"GPU {gpu.index} ({gpu.name}) has memory that could not be repaired"
    return ""


def _gpu(index: int) -> HostGpu:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    return HostGpu(
        index=index,
        id=_text(pynvml.nvmlDeviceGetUUID(device)),
        name=_text(pynvml.nvmlDeviceGetName(device)),
        memory_mb=int(pynvml.nvmlDeviceGetMemoryInfo(device).total) // MB,
        vendor="nvidia",
    )


def _text(said: str | bytes) -> str:
    # Older versions of the library answer with bytes.
    return said.decode() if isinstance(said, bytes) else said


def look(home: Path, gpus: tuple[HostGpu, ...], *, cgroups: bool, project_id: UUID | None, docker: str) -> HostInfo:
    cpus, memory_mb = capacity(
        allowance.read(), cpus=len(os.sched_getaffinity(0)), memory_bytes=psutil.virtual_memory().total
    )
    return HostInfo(
        hostname=socket.gethostname(),
        cpus=cpus,
        memory_mb=memory_mb,
        disk_mb=psutil.disk_usage(str(home)).total // MB,
        gpus=gpus,
        addresses=addresses(),
        root=os.geteuid() == 0,
        project_id=project_id,
        cgroups=cgroups,
        docker=docker,
    )


def capacity(allowed: Allowance, *, cpus: int, memory_bytes: int) -> tuple[float, int]:
    """CPUs, rounded down to thousandths, and MB: what the machine has and we may use."""
    quota = cpus if allowed.cpus is None else max(math.floor(allowed.cpus * 1000) / 1000, LEAST_CPUS)
    limit = memory_bytes if allowed.memory_bytes is None else max(allowed.memory_bytes, MB)
    return min(cpus, quota), min(memory_bytes, limit) // MB


def addresses() -> tuple[str, ...]:
    """Those that others may reach us by."""
    found: set[str] = set()
    for interface in psutil.net_if_addrs().values():
        for one in interface:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(one.address.partition("%")[0])
                if not (address.is_loopback or address.is_link_local):
                    found.add(str(address))
    return tuple(sorted(found))
