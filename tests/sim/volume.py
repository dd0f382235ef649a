"""Volumes of the simulation: made at the beginning, wanted by some runs; and disks of a provider that is slow."""

import random
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stoker.backends.base import Refused
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, ProjectId, VolumeId
from stoker.core.limits import LAUNCH_S
from stoker.core.volume_facts import Kind, Volume
from stoker.engine.change import VolumeBirth

if TYPE_CHECKING:
    from tests.sim.world import World

KINDS: Final = (Kind.DUMMY, Kind.NFS, Kind.LOCAL, Kind.DUMMY)
WANTED: Final = 0.25
"""How many runs want one."""


class SimDisks:
    """Keeps the contract of `backends/disk.py`; what it was told to break, it breaks."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.ready_at: dict[VolumeId, float] = {}
        self.back_at: dict[VolumeId, float] = {}
        """From when on its provider hears of one."""
        self.on: dict[VolumeId, InstanceId] = {}
        self.removed: set[VolumeId] = set()

    async def make(self, id: VolumeId, size_mb: int | None) -> str:
        await self._way()
        if id in self.removed:
            raise Refused("the disk was removed")
        if id not in self.back_at:
            away = self.world.chance("provider of volumes away", 0.04)
            self.back_at[id] = self.world.now() + (1.3 * LAUNCH_S if away else 0.0)
        if self.world.now() < self.back_at[id]:
            raise Unavailable("the provider does not answer")
        if self.world.always("volume refused", id, 0.04):
            raise Refused("there is no room for another disk")
        if id not in self.ready_at:
            slow = self.world.chance("volume slow to be made", 0.3)
            delay_s = self.world.dice.choice((30.0, 300.0, 1.3 * LAUNCH_S)) if slow else 0.0
            self.ready_at[id] = self.world.now() + delay_s
        await self._way()
        return f"disk-{id.hex[-6:]}"

    async def ready(self, id: VolumeId) -> bool:
        await self._way()
        if self.world.always("volume broken as it is made", id, 0.04):
            raise Refused("the disk broke")
        return self._there(id) <= self.world.now()

    async def attach(self, id: VolumeId, instance_id: InstanceId) -> str:
        await self._way()
        self._there(id)
        if self.on.get(id, instance_id) != instance_id:
            # Two jobs have it: the engine gave it to a second before the first was released.
            self.world.violated(f"volume {id} is attached to {self.on[id]} and wanted on {instance_id}")
        self.on[id] = instance_id
        await self._way()
        return ""

    async def detach(self, id: VolumeId, instance_id: InstanceId, *, force: bool) -> None:
        await self._way()
        if not force and self.world.chance("volume will not detach", 0.3):
            raise Unavailable("still attached")
        if self.on.get(id) == instance_id:
            del self.on[id]

    async def remove(self, id: VolumeId) -> None:
        await self._way()
        if id in self.on:
            self.world.violated(f"volume {id} is removed while it is attached to {self.on[id]}")
        self.ready_at.pop(id, None)
        self.removed.add(id)

    def _there(self, id: VolumeId) -> float:
        if id not in self.ready_at:
            raise Refused("the disk is not there")
        return self.ready_at[id]

    async def _way(self) -> None:
        await self.world.pause(0.01, 0.5)
        if self.world.chance("answer lost", 0.03):
            raise Unavailable("the provider's answer was lost")


def births(dice: random.Random, project: ProjectId, now: float) -> list[VolumeBirth]:
    found = []
    for number, kind in enumerate(KINDS):
        id = VolumeId(UUID(int=dice.getrandbits(128)))
        exclusive = kind is Kind.DUMMY or dice.random() < 0.3
        source = "nas:/x" if kind is Kind.NFS else ""
        volume = Volume(id, project, f"volume-{number}", kind, exclusive, source=source, entered_at=now)
        found.append(VolumeBirth(volume, "{}", "ann"))
    return found


def wanted(dice: random.Random, volumes: list[Volume], *, nodes: int) -> tuple[VolumeId, ...]:
    """Of several nodes only what many may have on many machines, as the server sees to it."""
    fitting = [one for one in volumes if nodes == 1 or not (one.exclusive or one.kind is Kind.LOCAL)]
    if not fitting or dice.random() >= WANTED:
        return ()
    return tuple(one.id for one in dice.sample(fitting, dice.randint(1, min(2, len(fitting)))))
