"""What the processes of a job use now: counted in /proc, and for GPUs asked of the vendor's library."""

import os
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from stoker.runner import cgroup, proc
from stoker.wire.runner import Metrics, ProcessMetrics

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_MB: Final = os.sysconf("SC_PAGESIZE") / 1024**2


def measure(cgroups: Sequence[str], gpu_ids: Sequence[str]) -> Metrics:
    """Of everything that descends from this process. Its CPU time never goes down: the dead are counted as well."""
    seen = [proc.stat(pid) for pid in proc.descendants([os.getpid()]) | cgroup.members(cgroups)]
    living = [one for one in seen if one is not None and one.state not in "ZX"]
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    gpus = _gpus(gpu_ids)
    return Metrics(
        latest=ProcessMetrics(
            at=time.time(),
            processes=len(living),
            cpu_s=dead.ru_utime + dead.ru_stime + sum(one.cpu_ticks for one in living) / _TICKS_PER_S,
            memory_mb=sum(one.memory_pages for one in living) * _PAGE_MB,
            gpu_percent=tuple(percent for percent, _ in gpus),
            gpu_memory_mb=tuple(memory_mb for _, memory_mb in gpus),
        )
    )


def _gpus(ids: Sequence[str]) -> list[tuple[float, float]]:
    """How busy each of them is and how much of its memory is used; nothing where nobody can tell."""
    if not ids:
        return []
    # Loaded only by the runner of a job that has GPUs: the vendor's library takes more memory than we do.
    nvml: Any = import_module("pynvml")
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByUUID(one) for one in ids]
        return [
            (
                float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                nvml.nvmlDeviceGetMemoryInfo(handle).used / 1024**2,
            )
            for handle in handles
        ]
    return []
