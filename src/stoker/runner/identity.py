"""Who a process is, in a file: a pid alone is given to another process some day, and after a reboot at once."""

import os
from dataclasses import dataclass
from pathlib import Path

from stoker.runner import proc
from stoker.runner.place import write_file


@dataclass(frozen=True)
class Identity:
    """Of one process; its file says `pid start_ticks boot_id`."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def mine(cls) -> "Identity":
        me = proc.stat(os.getpid())
        return cls(os.getpid(), me.start_ticks if me else 0, proc.boot_id())

    @classmethod
    def read(cls, path: Path) -> "Identity | None":
        """None when there is no such file, or nothing sensible in it."""
        try:
            pid, start_ticks, boot_id = path.read_text().split()
            return cls(int(pid), int(start_ticks), boot_id)
        except (FileNotFoundError, ValueError):
            return None

    def write(self, path: Path) -> None:
        write_file(path, f"{self.pid} {self.start_ticks} {self.boot_id}\n".encode(), durable=False)

    def alive(self) -> bool:
        """This very process runs; one that only waits to be reaped does not."""
        found = proc.stat(self.pid)
        return (
            found is not None
            and found.state not in "ZX"
            and found.start_ticks == self.start_ticks
            and self.boot_id == proc.boot_id()
        )
