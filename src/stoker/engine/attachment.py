"""What is done for volumes outside of the database: made, attached to machines, detached, removed."""

from collections.abc import Mapping
from typing import Final

from stoker.backends.base import Refused
from stoker.backends.disk import Disks
from stoker.core.errors import Broken, NotFound, Unavailable, UserError
from stoker.core.ids import InstanceId, JobId, VolumeId
from stoker.core.machine import Effect
from stoker.core.volume_facts import (
    Accepted,
    AwaitVolume,
    Kind,
    MakeVolume,
    Provisioned,
    ProvisionFailed,
    Removed,
    RemoveVolume,
    Volume,
)
from stoker.engine.agent import NO_WAY, Agents
from stoker.engine.change import Change, of_volume
from stoker.engine.errand import Performer
from stoker.store import instance as instance_store
from stoker.store import order as order_store
from stoker.store import volume as store
from stoker.store.database import Database
from stoker.store.outbox import Errand
from stoker.wire.shim import Mount, Source, TaskOrder, VolumeOrder

VOLUME: Final = "volume"
"""The code of an error that ends a job for its volume."""
LOOK_S: Final = 0.5


class VolumePerformers:
    def __init__(self, database: Database, agents: Agents, disks: Mapping[Kind, Disks]) -> None:
        self._database, self._agents, self._disks = database, agents, disks

    def performers(self) -> dict[type[Effect], Performer]:
        return {MakeVolume: self.make, AwaitVolume: self.wait, RemoveVolume: self.remove}

    # For the volume itself.

    async def make(self, errand: Errand, effect: MakeVolume) -> Change:
        """A local one that was not told where waits for its first job; what an nfs server has is there."""
        volume = await self._volume(errand)
        try:
            if (disks := self._disks.get(volume.kind)) is not None:
                return _said(volume, Accepted(await disks.make(volume.id, volume.size_mb)))
            if volume.kind is Kind.LOCAL and volume.instance_id is not None:
                shim = await self._agents.shim(volume.instance_id)
                await shim.make_volume(
                    VolumeOrder(
                        id=volume.id, fence=errand.fence, name=volume.name, project_id=volume.project_id,
                        size_mb=volume.size_mb,
                    )
                )  # fmt: skip
        except (UserError, Refused) as error:
            return _said(volume, ProvisionFailed(str(error)))
        return _said(volume, Provisioned())

    async def wait(self, errand: Errand, effect: AwaitVolume) -> Change:
        volume = await self._volume(errand)
        try:
            if not await self._disks_of(volume).ready(volume.id):
                raise Unavailable("Its provider is still making it.", retry_after_s=LOOK_S)
        except Refused as error:
            return _said(volume, ProvisionFailed(str(error)))
        return _said(volume, Provisioned())

    async def remove(self, errand: Errand, effect: RemoveVolume) -> Change:
        """Also one that was never made: it may be on its way, and then its order comes too late."""
        volume = await self._volume(errand)
        if (disks := self._disks.get(volume.kind)) is not None:
            await disks.remove(volume.id)
        elif volume.kind is Kind.LOCAL and volume.instance_id is not None:
            await self._remove_from(volume.instance_id, volume, errand)
        return _said(volume, Removed())

    async def _remove_from(self, instance_id: InstanceId, volume: Volume, errand: Errand) -> None:
        async with self._database.connection() as connection:
            if await instance_store.ended(connection, instance_id):
                return
        try:
            await (await self._agents.shim(instance_id)).remove_volume(volume.id, errand.fence)
        except Unavailable as error:
            # A machine that is still on its way has nothing of it.
            if error.code != NO_WAY:
                raise

    # For a job.

    async def attached(self, instance_id: InstanceId, order: TaskOrder) -> TaskOrder:
        """With the places of those that a provider attaches; attached when this returns."""
        if not any(_provided(one) for one in order.mounts):
            return order
        mounts = []
        for one in order.mounts:
            if _provided(one) and one.id is not None:
                volume = await self._get(VolumeId(one.id))
                try:
                    place = await self._disks_of(volume).attach(volume.id, instance_id)
                except Refused as error:
                    raise UserError(f"Volume {volume.name}: {error.sentence}.", code=VOLUME) from None
                one = one.model_copy(update={"place": place})
            mounts.append(one)
        # On a machine that is simulated there is nothing to be mounted.
        return order.model_copy(update={"mounts": tuple(one for one in mounts if one.place or not _provided(one))})

    async def detach(self, job_id: JobId, *, force: bool) -> None:
        """Of hosts and their own volumes nothing is left to do: the task gave them back before it was removed."""
        async with self._database.connection() as connection:
            held = await order_store.volumes(connection, job_id)
            volumes = await store.some(connection, held.volumes) if held is not None else {}
        if held is None or held.instance_id is None:
            return
        for volume in volumes.values():
            if (disks := self._disks.get(volume.kind)) is not None:
                await disks.detach(volume.id, held.instance_id, force=force)

    async def _volume(self, errand: Errand) -> Volume:
        return await self._get(VolumeId(errand.target))

    async def _get(self, id: VolumeId) -> Volume:
        async with self._database.connection() as connection:
            found = await store.some(connection, [id])
        if id not in found:
            raise NotFound(f"There is no volume {id}.")
        return found[id]

    def _disks_of(self, volume: Volume) -> Disks:
        if (disks := self._disks.get(volume.kind)) is None:
            raise Broken(f"A volume of kind {volume.kind} has no provider.")
        return disks


def _provided(mount: Mount) -> bool:
    """By a provider, which says where it is."""
    return mount.source is Source.PATH and mount.id is not None


def _said(volume: Volume, *events: Accepted | Provisioned | ProvisionFailed | Removed) -> Change:
    return Change(facts=tuple(of_volume(volume.id, event) for event in events))
