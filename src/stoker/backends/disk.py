"""The contract between the engine and a provider of disks, which are attached to one of its machines at a time.

As with machines: everything is keyed by our own id, which is on disk with us before the provider hears of it, and
every call may be repeated, by several replicas at once. `Unavailable`: nobody knows, the caller asks again.
`Refused`: the provider said no, and asking again would be told the same.

- `make(id, size_mb)`: accepted; gives the provider's name of it.
- `ready(id)`: whether it is there. Raises `Refused` where it will never be.
- `attach(id, instance_id)`: returns when the machine has it, with the directory in which its agent finds it; empty
  for a machine that is simulated. Attached elsewhere it raises `Unavailable`.
- `detach(id, instance_id, force)`: returns when the machine does not have it any more, and raises `Unavailable` while
  it does. By force what the machine has not written is lost. Of a disk, or a machine, that is gone it succeeds.
- `remove(id)`: with all that is in it. Returns when nothing is left; also of one that was never made, and then a
  `make` that comes late is refused.
"""

from typing import Protocol

from stoker.core.ids import InstanceId, VolumeId


class Disks(Protocol):
    async def make(self, id: VolumeId, size_mb: int | None) -> str: ...

    async def ready(self, id: VolumeId) -> bool: ...

    async def attach(self, id: VolumeId, instance_id: InstanceId) -> str: ...

    async def detach(self, id: VolumeId, instance_id: InstanceId, *, force: bool) -> None: ...

    async def remove(self, id: VolumeId) -> None: ...
