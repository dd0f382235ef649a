"""What all containers of a shim share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol

from stoker.shim.engine import Engine
from stoker.shim.engine_watch import EngineWatch
from stoker.shim.port import Ports
from stoker.shim.prune import Images


class Bundle(Protocol):
    """Our own programs as a tree that needs nothing of the image that it is mounted into."""

    @property
    def root(self) -> Path: ...

    def command(self, root: PurePath, module: str) -> list[str]: ...


@dataclass(frozen=True)
class Containers:
    engine: Engine
    home_id: str
    watch: EngineWatch
    images: Images
    bundle: Callable[[], Bundle]
    """Blocks: the first time it may have to be built."""
    ports: Ports = field(default_factory=Ports)
