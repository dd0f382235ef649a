"""What our own control groups leave us of the machine: quotas of the CPU and limits of memory, of version 1 and 2.

A limit holds for everything below its group, so the tightest between our own and the top of what we can see counts.
Which CPUs we may use (`cpuset`, `taskset`) is no quota: the kernel says it in our affinity.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.shim import cgroup


@dataclass(frozen=True)
class Allowance:
    """None: no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None


def read(root: Path = Path("/")) -> Allowance:
    """Of the process that asks; `root` is where its `/proc` and `/sys` are."""
    mounts = cgroup.read_mounts(_text(root / "proc/self/mountinfo"))
    ours = cgroup.read_membership(_text(root / "proc/self/cgroup"))
    groups = [group for mount in mounts for group in _above(root, mount, ours)]
    cpus = [cpus for group in groups if (cpus := _cpus(group)) is not None]
    memory_bytes = [limit for group in groups if (limit := _memory_bytes(group)) is not None]
    return Allowance(min(cpus, default=None), min(memory_bytes, default=None))


def _above(root: Path, mount: cgroup.Mount, ours: dict[str, str]) -> Iterator[Path]:
    """Our group of this tree and those above it."""
    names = ("",) if mount.kind == "cgroup2" else tuple(name for name in ("cpu", "memory") if name in mount.options)
    for name in names:
        # A group that our container cannot see is above all that it can.
        group = cgroup.below(mount, ours.get(name, "/")) or mount.point
        for one in (group, *group.parents):
            if one == mount.point or mount.point in one.parents:
                yield root / one.relative_to("/")


def _cpus(group: Path) -> float | None:
    said = _text(group / "cpu.max") or f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    match [_number(word) for word in said.split()]:
        case [int(quota_us), int(period_us)] if quota_us > 0 and period_us > 0:
            return quota_us / period_us
    return None


def _memory_bytes(group: Path) -> int | None:
    limit = _number(_text(group / "memory.max") or _text(group / "memory.limit_in_bytes"))
    return limit if limit is not None and limit > 0 else None


def _number(word: str) -> int | None:
    """`max` and -1 are none."""
    return int(word) if word.isascii() and word.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        # A tree that has no such controller, or none at all.
        return ""
