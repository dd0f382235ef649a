"""How a bundle lies on disk, and how a program of it is started. Small: agents import it.

lib/ld.so             the dynamic loader, which is what the kernel starts
lib/                  shared libraries, and the standard library
bin/python3           the interpreter
packages/             what the agents import of others
agents/stoker/        the agents
start.py              begins one of them
bundle.json           what this is
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Final

from stoker.core.errors import UserError

LOADER: Final = "lib/ld.so"
LIBRARIES: Final = "lib"
PYTHON: Final = "bin/python3"
PACKAGES: Final = "packages"
PACKAGE_LIBRARIES: Final = "packages/lib"
AGENTS: Final = "agents"
START: Final = "start.py"
VERSION: Final = "version"
MANIFEST: Final = "bundle.json"

LOADED_BY_NAME: Final = ("LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES")
"""Variables that reach into a program of a bundle: who starts one among those of a stranger clears them."""


def command(root: PurePath, module: str) -> list[str]:
    """Starts `python -m module` from a bundle at `root`.

    The loader is named, because the host may have none, and so is where it finds libraries, because the host's would be
    others. Nothing of this is said in the environment, which programs of jobs could inherit.
    """
    if ":" in str(root) or ";" in str(root):
        # The loader would take it for two places.
        raise UserError(f"The agents cannot be started from {root}: it has a colon or a semicolon.", code="bad_path")
    return [
        str(root / LOADER),
        "--library-path",
        f"{root / LIBRARIES}:{root / PACKAGE_LIBRARIES}",
        str(root / PYTHON),
        # Neither variables nor directories of users, no `site`; and UTF-8 where the host knows no locale.
        *("-I", "-S", "-X", "utf8"),
        str(root / START),
        module,
    ]


@dataclass(frozen=True)
class Tree:
    """One that is there, as far as it takes to start programs of it."""

    root: Path

    @staticmethod
    def command(root: PurePath, module: str) -> list[str]:
        return command(root, module)


@cache
def own_root() -> Path | None:
    """Of the bundle that this process runs from, if it does."""
    root = Path(sys.prefix)
    return root if (root / START).is_file() and (root / LOADER).is_file() else None
