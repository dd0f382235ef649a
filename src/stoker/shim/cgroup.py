"""Limits of memory and CPU, and a fence around a job's processes: control groups, version 1 or 2, where we may.

Theory of operation. At its start the shim looks for a place below which it can make groups. Version 1 has a tree for
each controller, and any group may hold both processes and groups: our place is below our own group, so that whatever
confines us confines our jobs too. In version 2 a group that hands controllers down may hold no processes: our
own group does, so our place is beside it, or beside the nearest group above it where that is allowed. Without such a
place there are no limits, and `HostInfo.cgroups` says so.

A task's groups are made before its runner and noted in its record, so they are found even when a later shim lives in
another place. The runner puts the job's processes into them; they are removed when the processes are gone.
"""

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

PERIOD_US: Final = 100_000
LEAST_QUOTA_US: Final = 1_000
"""The kernel refuses less."""
EMPTY_S: Final = 2.0
"""A killed process stays a member until its parent has taken note."""


@dataclass(frozen=True)
class Mount:
    kind: str
    """`cgroup` or `cgroup2`."""
    point: Path
    root: str
    """Which group of the tree is mounted there."""
    options: frozenset[str]


@dataclass(frozen=True)
class Cgroups:
    version: int = 0
    """Zero: there are none."""
    places: tuple[Path, ...] = ()
    """Where a task's groups are made; in version 1 one for memory and one for the CPU."""

    def directories(self, id: UUID) -> tuple[str, ...]:
        return tuple(str(place / str(id)) for place in self.places)

    def make(self, directories: Sequence[str], cpu: float | None, memory_mb: int | None) -> None:
        """May be repeated."""
        for directory in map(Path, directories):
            directory.mkdir(parents=True, exist_ok=True)
            if memory_mb is not None:
                _limit_memory(directory, memory_mb * 1024 * 1024)
            if cpu is not None:
                _limit_cpu(directory, max(int(cpu * PERIOD_US), LEAST_QUOTA_US))

    def close(self) -> None:
        """Removes our places, if no task has a group there."""
        for place in self.places:
            _rmdir(place)


def name_of(home: Path) -> str:
    """Of the place of the shim in this home."""
    return "stoker-" + hashlib.sha256(os.fsencode(home)).hexdigest()[:12]


def find(name: str, mountinfo: str | None = None, membership: str | None = None) -> Cgroups:
    """`name` is that of our place, and differs between two shims on one host."""
    mounts = read_mounts(Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo)
    ours = read_membership(Path("/proc/self/cgroup").read_text() if membership is None else membership)
    return _version_1(name, mounts, ours) or _version_2(name, mounts, ours) or Cgroups()


def remove(directories: Iterable[str]) -> None:
    """Waits a moment for processes that were just killed. Groups that a job made within are removed too."""
    deadline = time.monotonic() + EMPTY_S
    for directory in directories:
        while True:
            try:
                for place, _, _ in os.walk(directory, topdown=False):
                    os.rmdir(place)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.005)
                    continue
                raise
            break


def _version_1(name: str, mounts: Sequence[Mount], ours: dict[str, str]) -> Cgroups | None:
    places: list[Path] = []
    for controller in ("memory", "cpu"):
        mount = next((one for one in mounts if one.kind == "cgroup" and controller in one.options), None)
        group = None if mount is None else below(mount, ours.get(controller, "/"))
        if group is None:
            return None
        place = group / name
        # Both may be one tree.
        if place not in places:
            places.append(place)
    if all(_mkdir(place) for place in places):
        return Cgroups(1, tuple(places))
    return None


def _version_2(name: str, mounts: Sequence[Mount], ours: dict[str, str]) -> Cgroups | None:
    mount = next((one for one in mounts if one.kind == "cgroup2"), None)
    group = None if mount is None else below(mount, ours.get("", "/"))
    if mount is None or group is None:
        return None
    above_ours = [one for one in group.parents if one == mount.point or mount.point in one.parents]
    for above in above_ours or [group]:
        place = above / name
        if _hand_down(above) and os.access(above / "cgroup.procs", os.W_OK) and _mkdir(place):
            if _hand_down(place):
                return Cgroups(2, (place,))
            _rmdir(place)
    return None


def _hand_down(group: Path) -> bool:
    """Lets the groups below have limits of memory and CPU."""
    control = group / "cgroup.subtree_control"
    try:
        if {"memory", "cpu"} <= set(control.read_text().split()):
            return True
        control.write_text("+memory +cpu")
    except OSError:
        return False
    return True


def _limit_memory(directory: Path, limit: int) -> None:
    if (directory / "memory.max").exists():
        (directory / "memory.max").write_text(str(limit))
        _try_write(directory / "memory.swap.max", "0")
    elif (directory / "memory.limit_in_bytes").exists():
        (directory / "memory.limit_in_bytes").write_text(str(limit))
        # With swap; there only where the kernel counts it, and never lower than the one before.
        _try_write(directory / "memory.memsw.limit_in_bytes", str(limit))


def _limit_cpu(directory: Path, quota_us: int) -> None:
    if (directory / "cpu.max").exists():
        (directory / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    elif (directory / "cpu.cfs_quota_us").exists():
        (directory / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (directory / "cpu.cfs_quota_us").write_text(str(quota_us))


def _try_write(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return
    finally:
        os.close(descriptor)


def _mkdir(directory: Path) -> bool:
    try:
        directory.mkdir(exist_ok=True)
        # A tree that is mounted read-only, or a file system that only looks like one.
        return (directory / "cgroup.procs").exists()
    except OSError:
        return False


def _rmdir(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return


def below(mount: Mount, group: str) -> Path | None:
    """Where a group is seen under its mount; a container sees a part of the tree only."""
    if mount.root == "/":
        return mount.point / group.lstrip("/")
    if group == mount.root or group.startswith(mount.root + "/"):
        return mount.point / group[len(mount.root) :].lstrip("/")
    return None


def read_membership(text: str) -> dict[str, str]:
    """Our group in the tree of each controller; the empty name is version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = group
    return found


def read_mounts(text: str) -> list[Mount]:
    found: list[Mount] = []
    for line in text.splitlines():
        ours, _, theirs = line.partition(" - ")
        fields, rest = ours.split(), theirs.split()
        if len(fields) >= 5 and len(rest) >= 3 and rest[0] in ("cgroup", "cgroup2"):
            point = Path(fields[4].replace("\\040", " "))
            found.append(Mount(rest[0], point, fields[3], frozenset(rest[2].split(","))))
    return found
