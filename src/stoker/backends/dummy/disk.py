"""Disks of the dummy provider: slow to be made, stuck in detaching, as they are told.

One file remembers all of them, and how they behave. A disk is a directory, so that a real machine finds data in it.
"""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from stoker.backends.base import Refused
from stoker.backends.dummy.kind import BACKEND
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, VolumeId, instance_name
from stoker.wire.dummy import DiskBehaviour

FILE: Final = "disks.json"
ASK_AGAIN_S: Final = 0.5
REMEMBERED: Final = 1_000
"""Disks that were removed, so that one is not made by an order that comes late."""


@dataclass(frozen=True, slots=True)
class Disk:
    made_at: float
    """When it is there."""
    machine: str = ""
    """The id of the one that has it."""
    leaving_at: float | None = None
    """Since somebody asked for it to be detached: when it is."""


@dataclass(frozen=True, slots=True)
class Manner:
    provision_delay_s: float = 0.0
    detach_delay_s: float = 0.0
    stuck: bool = False
    """Only force detaches one."""
    refuse: bool = False


class DummyDisks:
    def __init__(
        self, root: Path, is_real: Callable[[InstanceId], bool | None], clock: Callable[[], float] = time.time
    ) -> None:
        """`is_real`: whether that machine wants a directory; None: it is gone."""
        self._root, self._is_real, self._clock = root, is_real, clock
        self.disks: dict[VolumeId, Disk] = {}
        self._removed: list[str] = []
        self.manner = Manner()

    def open(self) -> None:
        (self._root / "disks").mkdir(exist_ok=True)
        # Jobs of real machines run as users of their projects, and pass through.
        (self._root / "disks").chmod(0o711)
        with suppress(OSError, ValueError, TypeError):
            known = json.loads((self._root / FILE).read_text())
            self.disks = {VolumeId(UUID(id)): Disk(**one) for id, one in known["disks"].items()}
            self._removed, self.manner = known["removed"], Manner(**known["manner"])

    def steer(self, behaviour: DiskBehaviour) -> Manner:
        names = {"provision_delay": "provision_delay_s", "detach_delay": "detach_delay_s"}
        given: dict[str, Any] = {names.get(one, one): getattr(behaviour, one) for one in behaviour.model_fields_set}
        self.manner = replace(self.manner, **given)
        self._save()
        return self.manner

    def reset(self) -> None:
        self.manner = Manner()
        self._save()

    def name(self, id: VolumeId) -> str:
        return f"disk-{id.hex[-6:]}"

    def status(self, disk: Disk) -> str:
        if disk.machine:
            return "attached" if disk.leaving_at is None else "detaching"
        return "ready" if disk.made_at <= self._clock() else "coming"

    def machine(self, disk: Disk) -> str:
        return instance_name(BACKEND, UUID(disk.machine)) if disk.machine else ""

    # The contract.

    async def make(self, id: VolumeId, size_mb: int | None) -> str:
        name = self.name(id)
        if id in self.disks:
            return name
        if str(id) in self._removed:
            raise Refused("the disk was removed")
        if self.manner.refuse:
            raise Refused("no more disks, says the provider")
        directory = self._root / "disks" / str(id)
        directory.mkdir(exist_ok=True)
        # Whoever runs there: it is a machine's own disk.
        directory.chmod(0o777)
        self.disks[id] = Disk(self._clock() + self.manner.provision_delay_s)
        self._save()
        return name

    async def ready(self, id: VolumeId) -> bool:
        disk = self.disks.get(id)
        if disk is None:
            raise Refused("the disk is not there any more")
        return disk.made_at <= self._clock()

    async def attach(self, id: VolumeId, instance_id: InstanceId) -> str:
        disk = self.disks.get(id)
        if disk is None:
            raise Refused("the disk is not there any more")
        if disk.machine not in ("", str(instance_id)):
            raise Unavailable(f"The disk is still attached to {self.machine(disk)}.", retry_after_s=ASK_AGAIN_S)
        self._put(id, replace(disk, machine=str(instance_id), leaving_at=None))
        return str(self._root / "disks" / str(id)) if self._is_real(instance_id) else ""

    async def detach(self, id: VolumeId, instance_id: InstanceId, *, force: bool) -> None:
        disk, now = self.disks.get(id), self._clock()
        if disk is None or disk.machine != str(instance_id):
            return
        if disk.leaving_at is None:
            disk = self._put(id, replace(disk, leaving_at=now + self.manner.detach_delay_s))
        assert disk.leaving_at is not None
        force = force or self._is_real(instance_id) is None
        if not force and (self.manner.stuck or disk.leaving_at > now):
            raise Unavailable("The disk is not detached yet.", retry_after_s=ASK_AGAIN_S)
        self._put(id, replace(disk, machine="", leaving_at=None))

    async def remove(self, id: VolumeId) -> None:
        disk = self.disks.get(id)
        if disk is not None and disk.machine:
            raise Unavailable("The disk is still attached.", retry_after_s=ASK_AGAIN_S)
        shutil.rmtree(self._root / "disks" / str(id), ignore_errors=True)
        self.disks.pop(id, None)
        self._removed = [*self._removed, str(id)][-REMEMBERED:]
        self._save()

    def _put(self, id: VolumeId, disk: Disk) -> Disk:
        if self.disks.get(id) != disk:
            self.disks[id] = disk
            self._save()
        return disk

    def _save(self) -> None:
        """Whole or not at all."""
        said = {
            "disks": {str(id): asdict(one) for id, one in self.disks.items()},
            "removed": self._removed,
            "manner": asdict(self.manner),
        }
        fresh = self._root / f"{FILE}.new"
        fresh.write_text(json.dumps(said))
        fresh.replace(self._root / FILE)
