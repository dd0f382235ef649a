"""The directory of one shim: what lies where, its token, its lock, and where its sockets are.

As root, jobs run as users of their projects and have to reach their working directories: then the directories above
those may be passed through, and each file in them is the shim's alone. Otherwise nobody else may enter.
"""

import fcntl
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final
from uuid import UUID

from stoker.core.errors import Conflict, UserError
from stoker.runner.place import write_file

LOCK: Final = "lock"
SOCKET_BYTES: Final = 90
"""A longer path goes to a short private directory: the kernel takes no more than 107."""


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.is_root = os.geteuid() == 0
        self.tasks = self.root / "tasks"
        self.shim_log = self.root / "shim.log"
        self.fork_log = self.root / "fork.log"
        self._private: Path | None = None

    def prepare(self) -> None:
        mode = 0o711 if self.is_root else 0o700
        self.root.mkdir(parents=True, exist_ok=True)
        for directory in (self.root, self.tasks):
            directory.mkdir(exist_ok=True)
            directory.chmod(mode)
        if self.is_root:
            _check_open(self.root)

    def lock(self) -> int:
        """One shim for one home. The descriptor is the lock, and dies with us."""
        descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Conflict(f"Another shim serves {self.root} already.", code="shim_running") from None
        return descriptor

    def token(self) -> str:
        """Made at the first start."""
        path = self.root / "token"
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            token = secrets.token_urlsafe(32)
            write_file(path, token.encode() + b"\n")
            return token

    def directory(self, id: UUID) -> Path:
        return self.tasks / str(id)

    def socket(self, name: str) -> Path:
        """`shim.sock`, `notify.sock`, `fork.sock`."""
        return self._short(self.root / name, name)

    def runner_socket(self, id: UUID) -> Path:
        return self._short(self.directory(id) / "runner.sock", f"{id.hex}.sock")

    def announce(self, address: Path) -> None:
        write_file(self.root / "address", f"{address}\n".encode())

    def _short(self, path: Path, name: str) -> Path:
        if len(os.fsencode(path)) <= SOCKET_BYTES:
            return path
        if self._private is None:
            self._private = self._private_directory()
        return self._private / name

    def _private_directory(self) -> Path:
        """The same after a restart, since runners listen there."""
        note = self.root / "sockets"
        try:
            directory = Path(note.read_text().strip())
            if _ours(directory):
                return directory
        except FileNotFoundError:
            pass
        directory = Path(tempfile.mkdtemp(prefix="stoker-", dir=_runtime_directory()))
        write_file(note, f"{directory}\n".encode())
        return directory


def _runtime_directory() -> str:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    short = len(os.fsencode(given)) <= SOCKET_BYTES - 60
    return given if given.startswith("/") and short and _ours(Path(given)) else "/tmp"


def _ours(directory: Path) -> bool:
    """A directory of ours that nobody else may enter: in /tmp anybody could have made it."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _check_open(root: Path) -> None:
    for above in root.parents:
        if not above.stat().st_mode & 0o001:
            raise UserError(
                f"Jobs run as users of their projects, and these cannot pass through {above}.",
                hint=f"Open it (chmod o+x {above}), choose another STOKER_HOME, or do not run as root.",
                code="home_closed",
            )
