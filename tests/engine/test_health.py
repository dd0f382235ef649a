"""How a host is: what its shim finds wrong, and that it is found before the next job would fail of it."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.shim import host
from stoker.shim.health import Checkup
from stoker.wire.shim import HostGpu

GB = 1024**3
CARDS = tuple(HostGpu(index=n, id=f"GPU-{n}", name="A100", memory_mb=81920, vendor="nvidia") for n in (0, 1))


class Disk:
    """As the kernel tells of it."""

    def __init__(self, patch: pytest.MonkeyPatch, total_gb: float) -> None:
        self.total, self.free, self.flags = total_gb * GB, total_gb * GB, 0
        patch.setattr(os, "statvfs", lambda path: self)

    f_frsize = 1

    @property
    def f_blocks(self) -> int:
        return int(self.total)

    @property
    def f_bavail(self) -> int:
        return int(self.free)

    @property
    def f_flag(self) -> int:
        return self.flags


def checkup(gpus: Sequence[HostGpu] = (), ailing: Any = None, clock: Any = float) -> Checkup:
    return Checkup(Path("/"), gpus, ailing, clock)


@pytest.mark.parametrize(("total_gb", "least_gb", "said"), [(2000, 1.0, "1 GB"), (20, 0.2, "205 MB")])
def test_a_disk_that_is_nearly_full_is_told_in_words_that_stay_the_same(
    monkeypatch: pytest.MonkeyPatch, total_gb: float, least_gb: float, said: str
) -> None:
    """Each other word would be news, once a second. It is well when there is some room, not with one file less."""
    disk, one = Disk(monkeypatch, total_gb), checkup()
    assert one.look() == ""
    for free_gb in (least_gb * 0.9, least_gb * 0.1, least_gb * 1.5):
        disk.free = free_gb * GB
        assert one.look() == f"its disk is nearly full (less than {said} are free)"
    disk.free = least_gb * 2.1 * GB
    assert one.look() == ""


def test_a_disk_that_the_kernel_made_read_only_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so when the disk fails: every task would fail there."""
    disk, one = Disk(monkeypatch, 100), checkup()
    disk.flags = os.ST_RDONLY
    assert one.look() == "its disk is read-only"


def test_the_driver_is_asked_now_and_then_and_what_it_said_stands_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, 100)
    asked, now = list[float](), [0.0]

    def ailing(gpus: Sequence[HostGpu]) -> list[str]:
        asked.append(now[0])
        return ["GPU 1 (A100) is gone"]

    one = checkup(CARDS, ailing, lambda: now[0])
    for now[0] in (0.0, 15.0, 45.0, 61.0):
        assert one.look() == "GPU 1 (A100) is gone"
    assert asked == [0.0, 61.0]
    disk.free = 0
    assert one.look().endswith("are free) and GPU 1 (A100) is gone")


class Driver:
    """NVML of a host; `gone` and `broken` are ids of cards."""

    NVMLError = RuntimeError

    def __init__(self, gone: str = "", broken: str = "", away: bool = False) -> None:
        self.gone, self.broken, self.away = gone, broken, away
        self.open = 0

    def nvmlInit(self) -> None:
        if self.away:
            raise RuntimeError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, id: str) -> str:
        return id

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:
        if device == self.gone:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(total=1)

    def nvmlDeviceGetRemappedRows(self, device: str) -> tuple[int, int, bool, bool]:
        if not self.broken:
            raise RuntimeError("not supported")
        return 1, 1, False, device == self.broken


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Driver(), []),
        (Driver(gone="GPU-1"), ["GPU 1 (A100) is gone"]),
        (Driver(broken="GPU-0"), ["GPU 0 (A100) has memory that could not be repaired"]),
        (Driver(away=True), ["the driver of its GPUs does not answer"]),
    ],
)
def test_a_card_that_fell_off_its_bus_or_cannot_be_repaired_is_told(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, said: list[str]
) -> None:
    monkeypatch.setattr(host, "pynvml", driver)
    assert host.ailing(CARDS) == said
    assert driver.open == 0
