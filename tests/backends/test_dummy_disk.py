"""Disks of the dummy provider keep the contract of `backends/disk.py`, and break what they are told to break."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.backends.base import Refused
from stoker.backends.dummy.disk import DummyDisks
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, VolumeId
from stoker.wire.dummy import DiskBehaviour

HERE, THERE = InstanceId(uuid4()), InstanceId(uuid4())


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def opened(tmp_path: Path, now: list[float]) -> Callable[[], DummyDisks]:
    """As a server that starts finds them."""

    def open() -> DummyDisks:
        disks = DummyDisks(tmp_path, {HERE: True, THERE: False}.get, lambda: now[0])
        disks.open()
        return disks

    return open


Opened = Callable[[], DummyDisks]


def disks_of(disks: DummyDisks) -> Iterator[Path]:
    return (disks._root / "disks").iterdir()


async def test_a_disk_from_its_order_to_its_end_each_step_said_twice(opened: Opened) -> None:
    disks, id = opened(), VolumeId(uuid4())
    for _ in range(2):
        assert await disks.make(id, 1024) == f"disk-{id.hex[-6:]}"
        assert await disks.ready(id)
    for _ in range(2):
        place = Path(await disks.attach(id, HERE))
    (place / "x").write_text("kept")
    with pytest.raises(Unavailable, match="still attached to dummy-"):
        await disks.attach(id, THERE)
    with pytest.raises(Unavailable, match="still attached"):
        await disks.remove(id)
    for _ in range(2):
        await disks.detach(id, HERE, force=False)
    assert await disks.attach(id, THERE) == "", "a simulated machine has no directories"
    await disks.detach(id, HERE, force=True)
    assert disks.disks[id].machine == str(THERE), "of another one it is not taken"
    await disks.detach(id, THERE, force=False)
    assert (Path(await disks.attach(id, HERE)) / "x").read_text() == "kept"
    await disks.detach(id, HERE, force=False)
    for _ in range(2):
        await disks.remove(id)
    assert list(disks_of(disks)) == []


async def test_a_slow_one_is_there_in_its_time(opened: Opened, now: list[float]) -> None:
    disks, id = opened(), VolumeId(uuid4())
    disks.steer(DiskBehaviour(provision_delay=30.0))
    await disks.make(id, None)
    assert not await disks.ready(id)
    now[0] += 30.0
    assert await opened().ready(id)


async def test_one_that_is_stuck_is_detached_by_force_alone(opened: Opened) -> None:
    disks, id = opened(), VolumeId(uuid4())
    await disks.make(id, None)
    await disks.attach(id, HERE)
    disks.steer(DiskBehaviour(stuck=True))
    for _ in range(3):
        with pytest.raises(Unavailable, match="not detached yet"):
            await opened().detach(id, HERE, force=False)
    again = opened()
    assert again.status(again.disks[id]) == "detaching", "also after a restart"
    await again.detach(id, HERE, force=True)
    assert again.status(again.disks[id]) == "ready"


async def test_what_is_on_a_machine_that_is_gone_is_detached(opened: Opened) -> None:
    disks, id, gone = opened(), VolumeId(uuid4()), InstanceId(uuid4())
    await disks.make(id, None)
    await disks.attach(id, gone)
    disks.steer(DiskBehaviour(stuck=True))
    await disks.detach(id, gone, force=False)
    assert disks.status(disks.disks[id]) == "ready"


async def test_detaching_takes_its_time(opened: Opened, now: list[float]) -> None:
    disks, id = opened(), VolumeId(uuid4())
    disks.steer(DiskBehaviour(detach_delay=10.0))
    await disks.make(id, None)
    await disks.attach(id, HERE)
    with pytest.raises(Unavailable):
        await disks.detach(id, HERE, force=False)
    now[0] += 10.0
    await disks.detach(id, HERE, force=False)


async def test_an_order_that_comes_after_its_removal_makes_nothing(opened: Opened) -> None:
    """The volume was deleted while the order was on its way: nobody would ever remove what it makes."""
    disks, id = opened(), VolumeId(uuid4())
    await disks.remove(id)
    with pytest.raises(Refused):
        await opened().make(id, None)


async def test_a_provider_without_disks_says_so(opened: Opened) -> None:
    disks = opened()
    disks.steer(DiskBehaviour(refuse=True))
    with pytest.raises(Refused, match="no more disks"):
        await disks.make(VolumeId(uuid4()), None)
    disks.reset()
    await disks.make(VolumeId(uuid4()), None)
