"""The directory of one shim: what lies where, its token, its lock, and where its sockets are.

As root, jobs run as users of their projects and have to reach their working directories: then the directories above
those may be passed through, and each file in them is the shim's alone. Otherwise nobody else may enter.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from stoker.core.errors import Conflict, UserError
from stoker.runner.place import write_file
from stoker.shim import refuge

LOCK: Final = "lock"
BOX: Final = "box"
SOCKET: Final = "runner.sock"


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.is_root = os.geteuid() == 0
        self._mode = 0o711 if self.is_root else 0o700
        self.tasks = self.root / "tasks"
        self.volumes = self.root / "volumes"
        self.shim_log = self.root / "shim.log"
        self.fork_log = self.root / "fork.log"
        self._refuge: Path | None = None

    def prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(self._mode)
        self.make_tasks()
        if self.is_root:
            _check_open(self.root)
        refuge.sweep(refuge.runtime_directory())

    def make_tasks(self) -> None:
        self.tasks.mkdir(exist_ok=True)
        self.tasks.chmod(self._mode)

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

    def id(self) -> str:
        """Made at the first start: containers carry it, so that two shims with one engine know their own."""
        path = self.root / "id"
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            made = secrets.token_hex(6)
            write_file(path, made.encode() + b"\n")
            return made

    def directory(self, id: UUID) -> Path:
        return self.tasks / str(id)

    def box(self, id: UUID) -> Path:
        """What of a task's directory is mounted into its container: nothing else of ours can be reached from there."""
        return self.directory(id) / BOX

    def socket(self, name: str) -> Path:
        """`shim.sock`, `notify.sock`, `fork.sock`."""
        return self._short(self.root / name, name)

    def runner_socket(self, id: UUID) -> Path:
        return self._short(self.directory(id) / "runner.sock", f"{id.hex}.sock")

    def box_socket(self, id: UUID) -> Path:
        """Where the runner of a container is reached. It makes the socket itself, within its box: where the path of
        that is too long, a link of ours is short."""
        return self._short(self.box(id) / SOCKET, f"{id.hex}.sock")

    def announce(self, address: Path) -> None:
        write_file(self.root / "address", f"{address}\n".encode())

    def admit(self, socket: Path) -> None:
        """Also for the user that the note `door` names, who logs in to reach us. They need the token too."""
        with suppress(FileNotFoundError, ValueError):
            os.chown(socket, int((self.root / "door").read_text()), -1)

    def leave(self) -> None:
        """What we have outside of the home goes with us."""
        refuge.leave(self.root)

    def _short(self, path: Path, name: str) -> Path:
        if len(os.fsencode(path)) <= refuge.SOCKET_BYTES:
            return path
        if self._refuge is None or not refuge.ours(self._refuge):
            self._refuge = refuge.find(self.root)
        return self._refuge / name


def _check_open(root: Path) -> None:
    for above in root.parents:
        if not above.stat().st_mode & 0o001:
            raise UserError(
                f"Jobs run as users of their projects, and these cannot pass through {above}.",
                hint=f"Open it (chmod o+x {above}), choose another STOKER_HOME, or do not run as root.",
                code="home_closed",
            )
