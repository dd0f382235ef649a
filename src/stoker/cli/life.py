"""Which process is the server of a home: its pid together with the time it started, since pids are used again.

The server holds a lock on HOME/server.pid as long as it lives, so a file that a killed server left behind does not
count, and two that start at once cannot both believe they are alone.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.core.errors import Conflict, UserError

NAME: Final = "server.pid"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
LOOK_S: Final = 0.05


@dataclass(frozen=True)
class Life:
    """One life of a process; never another one with the same pid."""

    pid: int
    started: str
    """In ticks since the boot, then the id of the boot."""

    def alive(self) -> bool:
        return self.started != "" and started_of(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        try:
            # A descriptor names this process and no later one with its pid, so look after it is open.
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise UserError(
                f"Process {self.pid} belongs to another user.", hint="Stop it as the user who started it."
            ) from None
        finally:
            os.close(descriptor)

    def ended_within(self, patience_s: float) -> bool:
        give_up_at = time.monotonic() + patience_s
        while self.alive():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(LOOK_S)
        return True


def started_of(pid: int) -> str:
    """Empty when there is no such process, or it is only waiting to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else f"{fields[19]} {_BOOT.read_text().strip()}"
    except (OSError, IndexError):
        return ""


def mine() -> Life:
    return Life(os.getpid(), started_of(os.getpid()))


def found(home: Path) -> Life | None:
    """The server of this home, if it is alive."""
    try:
        pid, _, started = (home / NAME).read_text().strip().partition(" ")
        life = Life(int(pid), started)
    except PermissionError:
        raise UserError(
            f"{home / NAME} cannot be read: it belongs to another user.", hint="Choose another home with --home."
        ) from None
    except (OSError, ValueError):
        return None
    return life if life.alive() else None


@contextmanager
def held(home: Path) -> Iterator[None]:
    """For as long as this process is the server of the home."""
    path = home / NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise running(home) from None
    try:
        life = mine()
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{life.pid} {life.started}\n".encode())
        yield
    finally:
        # Not removed: somebody may hold the lock on the very file that would be unlinked.
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def running(home: Path) -> Conflict:
    life = found(home)
    who = f", process {life.pid}" if life else ""
    return Conflict(
        f"A server of {home} is already running{who}.",
        hint="`stoker down` stops it; for a second one choose another --home and --port.",
        code="running",
    )
