"""How a host of the user's is reached by SSH, and as what it is known."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

SSH: Final = "ssh"
"""The backend of hosts that people name, and what their agents' addresses begin with."""
PORT: Final = 22


@dataclass(frozen=True, slots=True)
class Hop:
    host: str
    user: str
    port: int = PORT
    identity: str = ""
    """The file of the key, as it was called where it was read; nothing: the key of the project."""

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port != PORT else self.host
        return host if self.port == PORT else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.place}"


@dataclass(frozen=True, slots=True)
class Route:
    target: Hop
    jump: Hop | None = None
    ip: str = ""
    """Where other hosts reach it, if somebody said so."""
    network: str = ""
    """In which of its networks they do."""

    @property
    def place(self) -> str:
        """What tells a host from others, whoever logs in: behind a gate the same address may be another one."""
        return place_behind(self.target, self.jump)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Route":
        jump = value["jump"]
        return Route(Hop(**value["target"]), None if jump is None else Hop(**jump), value["ip"], value["network"])


def place_behind(target: Hop, jump: Hop | None) -> str:
    return target.place if jump is None else f"{target.place} via {jump.place}"
