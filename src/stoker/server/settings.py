"""How one server process is set up: from the environment, with flags of the command line over it."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from stoker.core.errors import UserError
from stoker.core.limits import LONGEST_LEASE_S
from stoker.engine.swarm import LEASE_S
from stoker.store.postgres import default_home, external_url
from stoker.wire.container import Images
from stoker.wire.duration import parse_duration

DEFAULT_PORT: Final = 4400
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("console", "json")


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """Zero: any that is free."""
    database_url: str | None = None
    """A shared PostgreSQL; None starts the embedded one."""
    logs: Path | None = None
    """Where the logs of jobs are kept; replicas share it. None: below the home."""
    name: str = ""
    """Of this replica; by default the host and the home make one."""
    local: bool = False
    """Make an instance of the server's own host."""
    lease_s: float = LEASE_S
    """How long a worker of the swarm may be silent before its tasks move on."""
    images: Images = field(default_factory=Images)
    """Of tasks that name none."""
    log_level: str = "info"
    log_format: str = "console"

    @classmethod
    def of(cls, environ: Mapping[str, str], **flags: object) -> Self:
        """`flags` that are None were not given."""
        found: dict[str, object] = {
            "home": default_home(environ, os.geteuid()),
            "database_url": external_url(environ),
            "host": environ.get("STOKER_HOST") or "127.0.0.1",
            "port": _port(environ.get("STOKER_PORT") or str(DEFAULT_PORT)),
            "logs": Path(environ["STOKER_LOGS"]).expanduser().absolute() if environ.get("STOKER_LOGS") else None,
            "name": environ.get("STOKER_NAME") or "",
            "lease_s": _lease_s(environ.get("STOKER_LEASE") or str(LEASE_S)),
            "images": Images.of(environ),
            "log_level": _one_of("STOKER_LOG_LEVEL", environ.get("STOKER_LOG_LEVEL") or "info", LOG_LEVELS),
            "log_format": _one_of("STOKER_LOG_FORMAT", environ.get("STOKER_LOG_FORMAT") or "console", LOG_FORMATS),
        }
        return cls(**(found | {name: value for name, value in flags.items() if value is not None}))  # type: ignore[arg-type]

    @property
    def replica(self) -> str:
        """The home is locked by one process, so no two have the same."""
        digest = sha256(os.fsencode(self.home)).hexdigest()[:8]
        return self.name or f"{socket.gethostname()}-{digest}"

    @property
    def log_root(self) -> Path:
        return self.logs or self.home / "logs"

    @property
    def config_file(self) -> Path:
        """Of the clients of this home."""
        return self.home / "config.yml"

    @property
    def seal_file(self) -> Path:
        """What private keys in the database are sealed with. Replicas have the same."""
        return self.home / "seal.key"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise UserError(f"STOKER_PORT is {text!r}, which is no port.", hint="Write a number from 1 to 65535.")
    return int(text)


def _lease_s(text: str) -> float:
    try:
        seconds = parse_duration(text) or 0.0
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= LONGEST_LEASE_S:
        raise UserError(f"STOKER_LEASE is {text!r}, which is no lease.", hint="Write it as 60s; from 1s to 1h.")
    return seconds


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value.lower() not in known:
        raise UserError(f"{name} is {value!r}.", hint=f"It is one of {', '.join(known)}.")
    return value.lower()
