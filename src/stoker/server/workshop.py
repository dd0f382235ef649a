"""Real machines of the dummy backend: each an agent with a directory of its own on this host.

All agents of a machine have its id in their environment, so whatever became of them they are found and killed; its jobs
are found by their control groups and by their own ids, as everywhere.
"""

import asyncio
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, ProjectId
from stoker.core.sight import Way
from stoker.runner import proc
from stoker.runner.reaper import kill_each, kill_leftovers
from stoker.server.local_host import find_shim, look
from stoker.shim import cgroup, refuge
from stoker.shim.disk import remove_tree
from stoker.shim.home import Home
from stoker.shim.shelf import Shelf
from stoker.shim.start import listening

MACHINE_VARIABLE: Final = "STOKER_MACHINE"
KILLED_S: Final = 10.0
LOOK_S: Final = 0.005
BIRTH_S: Final = 2.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KERNEL: Final = 2
"""The parent of the kernel's own threads, which have no environment."""


class Workshop:
    async def start(self, id: InstanceId, home: Path) -> Way:
        address, token = await find_shim(home, {MACHINE_VARIABLE: str(id)})
        info = await look(address, token)
        project_id = None if info.project_id is None else ProjectId(info.project_id)
        return Way(address, token, one_project=not info.root, project_id=project_id)

    def listening(self, home: Path) -> bool:
        return listening(home)

    async def pause(self, id: InstanceId, home: Path, *, on: bool) -> None:
        if (pid := _listener(home)) is not None:
            os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    async def end(self, id: InstanceId, home: Path) -> None:
        await asyncio.to_thread(_end, id, home)


def _end(id: InstanceId, home: Path) -> None:
    """Agents first: they would start again what is killed below them."""
    kill_agents(id)
    groups: set[str] = set()
    for task_id, cgroups in _tasks(home):
        kill_leftovers(task_id, cgroups)
        groups.update(cgroups)
    with suppress(OSError):
        # One that a process still leaves is nothing but a name.
        cgroup.remove(groups)
    for place in {Path(group).parent for group in groups}:
        with suppress(OSError):
            place.rmdir()
    # A machine that never had a task has its place all the same.
    cgroup.find(cgroup.name_of(home.absolute())).close()
    refuge.leave(home)
    remove_tree(home)


def kill_agents(id: InstanceId) -> None:
    variable, killed = f"{MACHINE_VARIABLE}={id}".encode(), set[int]()
    began_at = time.monotonic()
    while True:
        there = [pid for pid in proc.pids() if proc.alive(pid)]
        left = [pid for pid in there if proc.has_in_environment(pid, variable)]
        took_s = time.monotonic() - began_at
        if not left and (took_s > BIRTH_S or not any(map(_being_born, there))):
            break
        if took_s > KILLED_S:
            raise Unavailable(f"Processes {left} of machine {id} do not go away.")
        kill_each(left)
        killed.update(left)
        time.sleep(LOOK_S)
    for pid in killed:
        # Our own children are buried here: nobody else waits for them.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _being_born(pid: int) -> bool:
    """While a new program takes the place of the old one, a process has no environment to be known by."""
    if not _ours(pid) or proc.environment(pid) != b"":
        return False
    found = proc.stat(pid)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (found.start_ticks / _TICKS if found else 0.0)
    return found is not None and found.parent != _KERNEL and age_s < BIRTH_S


def _ours(pid: int) -> bool:
    """Of others nobody shows us the environment, and no agent of ours is among them."""
    with suppress(FileNotFoundError):
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    return False


def _tasks(home: Path) -> Iterator[tuple[UUID, tuple[str, ...]]]:
    place = Home(home)
    with suppress(FileNotFoundError):
        found = Shelf(place).find()
        yield from ((record.id, record.cgroups) for record in found.records)
        yield from ((id, ()) for id in found.unreadable)


def _listener(home: Path) -> int | None:
    """Who listens on the socket of the shim, also when it is paused."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1.0)
        line.connect((home / "address").read_text().strip())
        pid: int = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid
    return None
