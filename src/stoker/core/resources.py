"""What a job asks for (`Request`) and what a machine has (`Capacity`).

A request has one plain form, the one people write in configurations; the database keeps the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.core.errors import UserError
from stoker.core.gpu import Gpu, GpuRequest, format_gpu, parse_gpu
from stoker.core.quantity import (
    ANY,
    MAX_AMOUNT,
    Range,
    format_number,
    format_range,
    format_size,
    parse_number,
    parse_size,
)

__all__ = ["ANY", "Capacity", "Gpu", "GpuRequest", "Range", "Request", "format_request", "parse_request"]

KEYS = ("cpu", "memory", "disk", "gpu", "named")
CONTAINER = "container"
"""Follows from the rest of a configuration, and is kept with what it asks for."""
_EXAMPLE = "{cpu: 2.., memory: 8GB, gpu: A100:1, named: {license: 2}}"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Request:
    """Bounds that hold for what the job gets, not only for what it needs."""

    cpu: Range = ANY
    memory_mb: Range = ANY
    disk_mb: Range = ANY
    gpu: GpuRequest | None = None
    # Equal requests are planned together, so a request must hash; a mapping cannot, and need not.
    named: Mapping[str, int] = field(default_factory=dict, hash=False)
    container: bool = False
    """It runs in one, so only where there is an engine."""

    def to_json(self) -> dict[str, Any]:
        return format_request(self)

    @staticmethod
    def from_json(value: object) -> "Request":
        return parse_request(value)

    def __str__(self) -> str:
        named = {"named": ",".join(f"{name}:{amount}" for name, amount in self.named.items())}
        plain = format_request(self)
        return " ".join(f"{key}={part}" for key, part in {**plain, **(named if self.named else {})}.items()) or "any"


@dataclass(frozen=True, slots=True)
class Capacity:
    cpu: float
    memory_mb: int
    disk_mb: int = 0
    gpus: tuple[Gpu, ...] = ()
    named: Mapping[str, int] = field(default_factory=dict, hash=False)
    docker: bool = False
    """There is a container engine, and it answers."""

    def to_json(self) -> dict[str, Any]:
        return {
            "cpu": self.cpu,
            "memory_mb": self.memory_mb,
            "disk_mb": self.disk_mb,
            "gpus": [
                {"index": gpu.index, "name": gpu.name, "memory_mb": gpu.memory_mb, "vendor": gpu.vendor}
                for gpu in self.gpus
            ],
            "named": dict(self.named),
            **({"docker": True} if self.docker else {}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Capacity":
        """Reads what `to_json` wrote; the outside world speaks through `wire`."""
        gpus = tuple(Gpu(gpu["index"], gpu["name"], gpu["memory_mb"], gpu["vendor"]) for gpu in value["gpus"])
        docker = value.get("docker", False)
        return Capacity(value["cpu"], value["memory_mb"], value["disk_mb"], gpus, dict(value["named"]), docker)


def parse_request(value: object) -> Request:
    """Reads `resources:` of a configuration; a key without a value is not given."""
    if value is None:
        return Request()
    if not isinstance(value, Mapping):
        raise UserError(f"resources: expected a mapping, got {value!r}.", hint=f"Write it as {_EXAMPLE}.")
    for key in value:
        if key not in KEYS and key != CONTAINER:
            raise UserError(
                f"resources: {key!r} is not one of {', '.join(KEYS)}.",
                hint=f"A resource of your own goes under named, as in {_EXAMPLE}.",
            )
    given = {key: part for key, part in value.items() if part is not None}
    return Request(
        cpu=parse_number(given["cpu"], "cpu") if "cpu" in given else ANY,
        memory_mb=parse_size(given["memory"], "memory") if "memory" in given else ANY,
        disk_mb=parse_size(given["disk"], "disk") if "disk" in given else ANY,
        gpu=parse_gpu(given["gpu"]) if "gpu" in given else None,
        named=_named(given.get("named", {})),
        container=given.get(CONTAINER, False) is True,
    )


def _named(value: object) -> dict[str, int]:
    hint = "Write it as {license: 2}."
    if not isinstance(value, Mapping):
        raise UserError(f"named: expected names and whole numbers, got {value!r}.", hint=hint)
    named: dict[str, int] = {}
    for name, amount in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"named: {name!r} is not a name (letters, digits, '_', '.', '-').", hint=hint)
        if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= MAX_AMOUNT:
            raise UserError(f"named: {name} is {amount!r}, expected a whole number.", hint=hint)
        if amount:
            named[name] = amount
    return dict(sorted(named.items()))


def format_request(request: Request) -> dict[str, Any]:
    """`parse_request` reads it back as the same; only what is asked for is in it."""
    plain: dict[str, Any] = {}
    if request.cpu != ANY:
        plain["cpu"] = format_range(request.cpu, format_number)
    if request.memory_mb != ANY:
        plain["memory"] = format_range(request.memory_mb, format_size)
    if request.disk_mb != ANY:
        plain["disk"] = format_range(request.disk_mb, format_size)
    if request.gpu is not None:
        plain["gpu"] = format_gpu(request.gpu)
    if request.named:
        plain["named"] = dict(request.named)
    if request.container:
        plain[CONTAINER] = True
    return plain
