"""How a shim comes to life: in a session of its own and alone in its home.

Light on purpose: the home is taken before the rest is imported, and a server starts the shim before it imports its own
rest, so that both get ready side by side.
"""

import fcntl
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.runner.listening import held
from stoker.runner.place import write_file
from stoker.runner.program import module_command
from stoker.runner.tenant import name_process
from stoker.shim.home import LOCK, Home

if TYPE_CHECKING:
    from stoker.wire.shim import HostGpu


def serve(home: Path, gpus: "Sequence[HostGpu] | None" = None) -> None:
    """Is the shim of this home until SIGTERM or `/leave`."""
    os.umask(0o077)
    # From a bundle it would be called like its loader.
    name_process("stoker-shim")
    place = Home(home)
    place.prepare()
    lock = place.lock()
    # For scripts, which can take no lock: it says who has it.
    write_file(place.root / "pid", f"{os.getpid()}\n".encode(), durable=False)
    try:
        from stoker.shim.main import run

        run(place, gpus)
    finally:
        os.close(lock)


def start(home: Path, variables: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes] | None":
    """Unless one is there or is coming. Neither Ctrl-C nor the end of the server reaches it.

    `variables` are in its environment and in that of all agents below it.
    """
    if listening(home) or _taken(home):
        return None
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(home / "shim.log", "ab") as log:
        return subprocess.Popen(
            [*module_command("stoker.shim"), "--home", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **(variables or {})},
        )


def listening(home: Path) -> bool:
    """Whether a shim is there."""
    try:
        return held((home / "address").read_text().strip())
    except OSError:
        return False


def _taken(home: Path) -> bool:
    try:
        with open(home / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
