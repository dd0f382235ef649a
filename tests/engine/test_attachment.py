"""Disks of providers are attached before a job starts and detached before it is released, by force after a limit."""

from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from stoker.backends.base import Refused
from stoker.core.errors import Unavailable, UserError
from stoker.core.ids import InstanceId, JobId, ProjectId, VolumeId
from stoker.core.job_facts import CleanedUp, Cleanup, DetachVolumes
from stoker.core.machine import Event
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
from stoker.engine.agent import Agents
from stoker.engine.attachment import VOLUME, VolumePerformers
from stoker.engine.change import Change
from stoker.engine.perform import JobPerformers
from stoker.store import order as order_store
from stoker.store import volume as volume_store
from stoker.store.database import Database
from stoker.store.order import Holding
from stoker.store.outbox import Errand
from stoker.wire.shim import Mount, Source, TaskOrder

HERE = InstanceId(uuid4())
DISK = Volume(VolumeId(uuid4()), ProjectId(uuid4()), "disk", Kind.DUMMY, exclusive=True)


class Provider:
    """Says what it is told to say, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.is_ready = True

    def _heard(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error

    async def make(self, id: VolumeId, size_mb: int | None) -> str:
        self._heard("make", id, size_mb)
        return "disk-1"

    async def ready(self, id: VolumeId) -> bool:
        self._heard("ready", id)
        return self.is_ready

    async def attach(self, id: VolumeId, instance_id: InstanceId) -> str:
        self._heard("attach", id, instance_id)
        return "/disks/1"

    async def detach(self, id: VolumeId, instance_id: InstanceId, *, force: bool) -> None:
        self._heard("detach", id, instance_id, force)

    async def remove(self, id: VolumeId) -> None:
        self._heard("remove", id)


class NoDatabase:
    def connection(self) -> Any:
        class Lent:
            async def __aenter__(self) -> None: ...
            async def __aexit__(self, *_: object) -> None: ...

        return Lent()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    async def some(tx: object, ids: object) -> dict[VolumeId, Volume]:
        return {DISK.id: DISK}

    async def held(tx: object, job_id: JobId) -> Holding:
        return Holding(HERE, [DISK.id])

    monkeypatch.setattr(volume_store, "some", some)
    monkeypatch.setattr(order_store, "volumes", held)
    return Provider()


def performers(provider: Provider) -> VolumePerformers:
    return VolumePerformers(cast(Database, NoDatabase()), cast(Agents, None), {Kind.DUMMY: provider})


def errand(target: UUID = DISK.id) -> Errand:
    return Errand(uuid4(), 7, "volume", target, target, 0, "", "", "{}", 0)


def said(change: Change) -> list[Event]:
    return [fact.event for fact in change.facts]


async def test_what_a_provider_accepted_is_waited_for(provider: Provider) -> None:
    ours = performers(provider)
    assert said(await ours.make(errand(), MakeVolume())) == [Accepted("disk-1")]
    provider.is_ready = False
    with pytest.raises(Unavailable, match="still making it"):
        await ours.wait(errand(), AwaitVolume())
    provider.is_ready = True
    assert said(await ours.wait(errand(), AwaitVolume())) == [Provisioned()]


async def test_what_a_provider_refuses_has_failed(provider: Provider) -> None:
    provider.error = Refused("no more disks")
    for answer in (
        await performers(provider).make(errand(), MakeVolume()),
        await performers(provider).wait(errand(), AwaitVolume()),
    ):
        assert said(answer) == [ProvisionFailed("no more disks")]


async def test_one_is_removed_when_its_provider_says_so(provider: Provider) -> None:
    provider.error = Unavailable("The disk is still attached.")
    with pytest.raises(Unavailable):
        await performers(provider).remove(errand(), RemoveVolume())
    provider.error = None
    assert said(await performers(provider).remove(errand(), RemoveVolume())) == [Removed()]


def order(*mounts: Mount) -> TaskOrder:
    return TaskOrder(id=uuid4(), fence=1, name="r", project_id=uuid4(), token="x" * 16, mounts=mounts)


async def test_a_job_is_given_to_its_host_with_the_places_of_its_disks(provider: Provider) -> None:
    host = Mount(source=Source.PATH, place="/srv", inside="/srv")
    disk = Mount(source=Source.PATH, id=DISK.id, name="disk", inside="/disk")
    made = await performers(provider).attached(HERE, order(host, disk))
    assert [(one.place, one.inside) for one in made.mounts] == [("/srv", "/srv"), ("/disks/1", "/disk")]
    assert provider.asked == [("attach", DISK.id, HERE)]
    provider.error = Refused("the disk is not there any more")
    with pytest.raises(UserError) as refused:
        await performers(provider).attached(HERE, order(disk))
    assert refused.value.code == VOLUME


@pytest.mark.parametrize(("now", "force"), [(99.0, False), (100.0, True)])
async def test_one_that_will_not_be_detached_is_forced_after_the_limit(
    provider: Provider, now: float, force: bool
) -> None:
    job = JobId(uuid4())
    unused = cast(Any, None)
    ours = JobPerformers(unused, unused, unused, unused, lambda: now, performers(provider))
    answer = await ours.detach_volumes(errand(job), DetachVolumes(force_at=100.0))
    assert [type(event) for event in said(answer)] == [CleanedUp]
    assert said(answer) == [CleanedUp(Cleanup.DETACH, attempt=0)]
    assert provider.asked == [("detach", DISK.id, HERE, force)]
    provider.error = Unavailable("The disk is not detached yet.")
    with pytest.raises(Unavailable):
        await ours.detach_volumes(errand(job), DetachVolumes(force_at=100.0))
