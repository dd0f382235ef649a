"""Ids are UUIDv7: they sort by the time they were made."""

from typing import NewType
from uuid import UUID, uuid5

RunId = NewType("RunId", UUID)
JobId = NewType("JobId", UUID)
InstanceId = NewType("InstanceId", UUID)
FleetId = NewType("FleetId", UUID)
VolumeId = NewType("VolumeId", UUID)
ManagedJobId = NewType("ManagedJobId", UUID)
TaskId = NewType("TaskId", UUID)
WorkerId = NewType("WorkerId", UUID)
ProjectId = NewType("ProjectId", UUID)

_VERSION_7 = 7 << 76
_VARIANT = 2 << 62
_RANDOM = ~((0xF << 76) | (3 << 62)) & ((1 << 80) - 1)


def uuid7(now: float, random_bits: int) -> UUID:
    """The id made at `now` (Unix seconds); the caller brings 80 random bits, since nothing here is random."""
    return UUID(int=(int(now * 1000) & ((1 << 48) - 1)) << 80 | random_bits & _RANDOM | _VERSION_7 | _VARIANT)


def derived(parent: UUID, *parts: object) -> UUID:
    """The same parts under the same parent give the same id, so that making it twice makes one thing."""
    return uuid5(parent, "/".join(map(str, parts)))


def instance_name(backend: str, id: UUID) -> str:
    """What people call an instance: `local-9c41ab`. It follows from what never changes, so it is kept nowhere.

    The end of the id, since its beginning is a time, which machines that were launched together share.
    """
    return f"{backend}-{id.hex[-6:]}"
