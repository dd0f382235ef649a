"""Amounts in sentences, as people think of them: `1 CPU and 4 GB of memory`, `0.5 of 2 CPUs`.

What is needed is rounded up and what there is down, so that no sentence says that something fits which does not.
"""

import math
from collections.abc import Sequence

from stoker.core.gpu import GpuRequest
from stoker.core.quantity import format_number
from stoker.core.resources import Request

SIZES = ("memory", "disk")
_UNITS = ((1, "MB"), (1024, "GB"), (1024 * 1024, "TB"))
_NOUNS = {"cpu": "CPU", "gpu": "GPU"}


def counted(amount: float, noun: str) -> str:
    return f"{format_number(amount)} {noun}{'' if amount == 1 else 's'}"


def joined(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def amount(code: str, much: float, *, up: bool = False) -> str:
    """So much of a resource: `64 CPUs`, `7.7 GB of memory`, `2 license`."""
    if code in SIZES:
        return f"{_size(much, up=up)} of {code}"
    return counted(much, _NOUNS[code]) if code in _NOUNS else f"{format_number(much)} {code}"


def bare(code: str, much: float) -> str:
    """The same where the resource was just named: `2`, `4 GB`."""
    return _size(much) if code in SIZES else format_number(much)


def spare(code: str, free: float, of: float) -> str:
    """`0.5 of 2 CPUs`, `2 of 8 GB of memory`."""
    if code not in SIZES:
        return f"{format_number(math.floor(free * 100 + 1e-6) / 100)} of {amount(code, of)}"
    left, unit = _size(free).split()
    return f"{left if not free or amount(code, of).split()[1] == unit else f'{left} {unit}'} of {amount(code, of)}"


def gpus(gpu: GpuRequest) -> str:
    """`2 GPUs`, `1 A100 of 40GB..`."""
    kind = gpu.kind if gpu.count.lo == 1 else gpu.kind.replace("GPU", "GPUs")
    return f"{format_number(gpu.count.lo)} {kind}"


def needed(request: Request) -> str:
    """Everything that a request asks for; empty when it asks for nothing."""
    parts = [
        amount(code, asked.lo, up=True)
        for code, asked in (("cpu", request.cpu), ("memory", request.memory_mb), ("disk", request.disk_mb))
        if asked.lo
    ]
    parts += [gpus(request.gpu)] if request.gpu else []
    return joined([*parts, *(amount(name, much) for name, much in request.named.items())])


def _size(mb: float, *, up: bool = False) -> str:
    scale, unit = next((one for one in reversed(_UNITS) if mb >= one[0]), _UNITS[0])
    tenths = round(mb * 10 / scale, 6)
    return f"{format_number((math.ceil(tenths) if up else math.floor(tenths)) / 10)} {unit}"
