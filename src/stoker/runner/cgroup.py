"""Control groups of a job, of either version: made and removed by the shim, filled and emptied here."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.runner.proc import alive

OF_A_CONTAINER: Final = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
"""Where a container sees its own group, of version 1 and of version 2."""


def enter(cgroups: Iterable[str]) -> list[str]:
    """Puts this thread into those of version 1, so that what it starts is born there; returns the others.

    A thread that moves itself makes the kernel wait for nobody. Moving a process takes it some ten milliseconds, and
    version 2 knows nothing else.
    """
    others = []
    for directory in cgroups:
        try:
            with open(Path(directory, "tasks"), "r+") as members:
                members.write("0")
        except FileNotFoundError:
            others.append(directory)
    return others


def join(cgroups: Iterable[str], pid: int) -> None:
    """Puts a process into each of them; what it forks from now on is born there."""
    for directory in cgroups:
        Path(directory, "cgroup.procs").write_text(str(pid))


def members(cgroups: Iterable[str]) -> set[int]:
    """Everything that runs in them and below: a job may make groups of its own where it is allowed to."""
    found: set[int] = set()
    for top in cgroups:
        for directory, _, files in os.walk(top):
            if "cgroup.procs" in files:
                found.update(map(int, _read(Path(directory, "cgroup.procs")).split()))
    return {pid for pid in found if alive(pid)}


def kill(cgroups: Iterable[str]) -> None:
    """Kills everything in groups of version 2 in one stroke, which no fork escapes; version 1 has no such thing."""
    for directory in cgroups:
        with suppress(OSError), open(Path(directory, "cgroup.kill"), "r+") as switch:
            switch.write("1")


def oom_kills(cgroups: Iterable[str]) -> int | None:
    """How many processes in them were killed for memory; None where nobody counts."""
    for directory in cgroups:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(Path(directory, name)).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def oom_kills_of_host() -> int:
    for line in _read(Path("/proc/vmstat")).splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        # Removed meanwhile, or a file that this version does not have.
        return ""
