"""One machine as the dummy provider knows it, and the file that remembers it."""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from stoker.backends.dummy.kind import Key
from stoker.core.ids import InstanceId, instance_name
from stoker.core.resources import Capacity
from stoker.core.sight import Way

RECORD = "machine.json"
AGENT = "shim"


@dataclass(frozen=True, slots=True)
class Machine:
    id: InstanceId
    key: Key
    capacity: Capacity
    real: bool
    created_at: float
    up_at: float | None
    """None: it never comes up."""
    ip: str
    token: str
    preempt_at: float | None = None
    """When its provider says that it takes it back."""
    taken_at: float | None = None
    """When it takes it back, once that is said."""
    notice_s: float = 0.0
    hanging: bool = False
    gone_at: float | None = None
    """Set once it is being destroyed, which takes until then."""

    @property
    def name(self) -> str:
        return instance_name("dummy", self.id)

    def next_at(self, now: float) -> float | None:
        """When time changes something about it."""
        moments = (self.up_at, self.preempt_at, self.taken_at, self.gone_at)
        return min((at for at in moments if at is not None and at > now), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id), "key": list(self.key), "capacity": self.capacity.to_json(), "real": self.real,
            "created_at": self.created_at, "up_at": self.up_at, "ip": self.ip, "token": self.token,
            "preempt_at": self.preempt_at, "taken_at": self.taken_at, "notice_s": self.notice_s,
            "hanging": self.hanging, "gone_at": self.gone_at,
        }  # fmt: skip

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Machine":
        return Machine(
            **value
            | {
                "id": InstanceId(UUID(value["id"])),
                "key": Key(*value["key"]),
                "capacity": Capacity.from_json(value["capacity"]),
            }
        )


class Workshop(Protocol):
    """Makes real machines: an agent with a directory of its own on this host."""

    async def start(self, id: InstanceId, home: Path) -> Way:
        """Unless it is there already. Returns when its agent answers; the ip is up to the caller."""
        ...

    def listening(self, home: Path) -> bool: ...

    async def pause(self, id: InstanceId, home: Path, *, on: bool) -> None:
        """Its agent stops answering, or goes on; what it runs does not notice."""
        ...

    async def end(self, id: InstanceId, home: Path) -> None:
        """Kills the agent and everything that it ran, and removes the directory. May be repeated."""
        ...


class Shelf:
    """HOME/dummy: a directory for each machine, and what was changed while the server ran."""

    def __init__(self, root: Path) -> None:
        self.root, self._machines = root, root / "machines"

    def prepare(self) -> None:
        for directory in (self.root, self._machines):
            _directory(directory)

    def directory(self, id: InstanceId) -> Path:
        return self._machines / str(id)

    def agent(self, id: InstanceId) -> Path:
        return self.directory(id) / AGENT

    def machines(self) -> Iterable[Machine]:
        """One whose record was never written was never promised to anybody: what is there of it is removed."""
        for directory in sorted(self._machines.iterdir()):
            try:
                yield Machine.from_json(json.loads((directory / RECORD).read_text()))
            except (OSError, ValueError, KeyError, TypeError):
                shutil.rmtree(directory, ignore_errors=True)

    def save(self, machine: Machine) -> None:
        directory = self.directory(machine.id)
        _directory(directory)
        _write(directory / RECORD, machine.to_json())

    def remove(self, id: InstanceId) -> None:
        shutil.rmtree(self.directory(id), ignore_errors=True)

    def steering(self) -> dict[str, dict[str, Any]]:
        with suppress(OSError, ValueError):
            found: dict[str, dict[str, Any]] = json.loads((self.root / "steering.json").read_text())
            return found
        return {}

    def steer(self, steering: dict[str, dict[str, Any]]) -> None:
        _write(self.root / "steering.json", steering)


def _directory(path: Path) -> None:
    """As root, jobs of real machines run as users of their projects, and pass through to their own directories."""
    path.mkdir(exist_ok=True)
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _write(path: Path, value: Any) -> None:
    """Whole or not at all. A token is in it."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(value, file)
    fresh.replace(path)


def free_ip(taken: Iterable[str]) -> str:
    """127.77.0.1 and so on: all of 127/8 is this host, so each machine can have every port."""
    used = set(taken)
    for number in range(1, 1 << 16):
        ip = f"127.77.{number >> 8}.{number & 255}"
        if number & 255 not in (0, 255) and ip not in used:
            return ip
    raise ValueError("There are no addresses left.")
