"""What a worker was told when it was started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.core.fit import Room


@dataclass(frozen=True)
class Settings:
    url: str
    token: str = field(repr=False)
    project: str
    name: str
    directory: Path
    """Where it keeps its files."""
    total: Room
    gpus: tuple[str, ...] = ()
    """What `CUDA_VISIBLE_DEVICES` calls them, by index."""
    cpus: tuple[int, ...] = ()
    """Indices of the CPUs that tasks are pinned to; none: they are not."""
    group: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None
    idle_timeout_s: float | None = None
    drain_timeout_s: float | None = None
