"""Where the sockets of a shim are when the path of its home is too long for them: a short directory that is private.

Theory of operation. The kernel takes no path of a socket beyond 107 bytes. The home's note `sockets` names the
directory, so that it is the same after a restart: runners listen there. In the directory, the link `home` says whose it
is. A shim that leaves removes its own. One that was killed and whose home was deleted cannot, so every shim that starts
removes those that no home names any more and in which nobody listens.
"""

import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.errors import Broken
from stoker.runner.listening import held
from stoker.runner.place import write_file

SOCKET_BYTES: Final = 90
"""A longer path goes to the refuge."""
PREFIX: Final = "stoker-sock-"
_NAME: Final = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
_NOT_AT_WORK: Final = ("fork.sock", "notify.sock")
_TRIES: Final = 10


def find(root: Path) -> Path:
    """That of the home, which is made where there is none."""
    if (noted := _noted(root)) is not None and ours(noted):
        return noted
    for _ in range(_TRIES):
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=runtime_directory()))
        # In this order: one that says whose it is must already be named by its home.
        write_file(root / "sockets", f"{made}\n".encode())
        # Until it says so, another shim may sweep it away.
        with suppress(FileNotFoundError):
            (made / "home").symlink_to(root)
            return made
    raise Broken(f"No directory for sockets stays in {runtime_directory()}.", code="no_refuge")


def leave(root: Path) -> None:
    """Nobody listens there any more."""
    if (noted := _noted(root)) is not None and ours(noted):
        (root / "sockets").unlink()
        shutil.rmtree(noted, ignore_errors=True)


def sweep(base: Path) -> None:
    """Removes what shims that were killed have left behind. It may be done by several at once."""
    # A host that has nothing may have no /tmp.
    for directory in base.iterdir() if base.is_dir() else ():
        with suppress(FileNotFoundError):
            if _NAME.fullmatch(directory.name) and ours(directory) and _forsaken(directory):
                # First the link: were we killed now, the rest would be swept as what never said whose it is.
                (directory / "home").unlink(missing_ok=True)
                shutil.rmtree(directory, ignore_errors=True)


def runtime_directory() -> Path:
    given = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    short = len(os.fsencode(given)) <= SOCKET_BYTES - 60
    return given if given.is_absolute() and short and ours(given) else Path("/tmp")


def ours(directory: Path) -> bool:
    """A directory of ours that nobody else may enter: in /tmp anybody could have made it."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _forsaken(directory: Path) -> bool:
    try:
        home = Path(os.readlink(directory / "home"))
    except OSError:
        home = None
    if home is not None and _noted(home) == directory:
        return False
    # Its home may be on a disk that is away for a while, and its runners at work. A fork server is at nobody's work.
    return not any(held(str(one)) for one in directory.glob("*.sock") if one.name not in _NOT_AT_WORK)


def _noted(root: Path) -> Path | None:
    try:
        return Path((root / "sockets").read_text().strip())
    except OSError:
        return None
