"""What the kernel tells of processes in /proc. A process may be gone at any moment; then it has nothing to tell."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True)
class Stat:
    """Of a process: what /proc/PID/stat says, as far as somebody here needs it."""

    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    """Its own, and of its children that it has waited for."""
    start_ticks: int
    memory_pages: int


def stat(pid: int) -> Stat | None:
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name in brackets may hold anything, also spaces and brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=sum(map(int, fields[11:15])),
        start_ticks=int(fields[19]),
        memory_pages=int(fields[21]),
    )


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_in_environment(pid: int, variable: bytes) -> bool:
    """Whether it was started with `NAME=value` in its environment."""
    return b"\0" + variable + b"\0" in b"\0" + environment(pid)


def environment(pid: int) -> bytes:
    """As it was started with; empty also while it is being started, or when it is gone."""
    return _read(f"/proc/{pid}/environ")


def listens(pid: int, number: int) -> bool:
    """Whether it does something about a signal: catches it, or holds it back to ask for it. Others would die of it."""
    masks = (b"SigCgt:", b"SigBlk:")
    told = (line.split() for line in _read(f"/proc/{pid}/status").splitlines() if line.startswith(masks))
    return any(int(mask, 16) >> (number - 1) & 1 for _, mask in told)


def taken_bytes(pid: int) -> int | None:
    """The memory that nobody could use if it did not; of what it shares, its part. Files that it has mapped are not
    counted: the kernel takes their pages back when it needs them. None where it does not tell."""
    told = dict(line.split()[:2] for line in _read(f"/proc/{pid}/smaps_rollup").splitlines() if line.endswith(b" kB"))
    if b"Pss_Anon:" not in told:
        return None
    return (int(told[b"Pss_Anon:"]) + int(told.get(b"Pss_Shmem:", 0))) * 1024


def alive(pid: int) -> bool:
    """It runs, and is not only waiting to be reaped."""
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def descendants(roots: Iterable[int]) -> set[int]:
    """Children, their children and so on; not the roots themselves."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in _children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except _GONE:
        return []
    found: list[int] = []
    for thread in threads:
        path = f"/proc/{pid}/task/{thread}/children"
        if not _knows_children():
            return [child for child in pids() if (told := stat(child)) is not None and told.parent == pid]
        found += map(int, _read(path).split())
    return found


@cache
def _knows_children() -> bool:
    """Some kernels are built without it."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


@cache
def boot_id() -> str:
    """Another one after each boot, so that a pid of before is not taken for one of now."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def _read(path: str) -> bytes:
    with suppress(*_GONE):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(descriptor, 65536):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    return b""
