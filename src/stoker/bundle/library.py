"""Which shared libraries a program needs, and where they are here: asked of the loader itself, who must know."""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from stoker.core.errors import Unavailable

_FOUND: Final = re.compile(r"^\s*(\S+) => (/.*) \(0x[0-9a-f]+\)$")
_MISSING: Final = re.compile(r"^\s*(\S+) => not found")
_LISTING_S: Final = 60.0

BY_NAME: Final = ("libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
"""What the C library opens by name when it is wanted: to end a thread, and to find hosts, where that is not in it."""


class Missing(Exception):
    """A library is needed that is not here."""


def needed(loader: Path, file: Path, also: Iterable[str] = ()) -> Mapping[str, Path]:
    """By the name that it is asked for by; the loader itself is not among them. `also`: those of them that are here."""
    environment = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
    if also:
        environment["LD_PRELOAD"] = " ".join(also)
    try:
        told = subprocess.run(
            [str(loader), "--list", str(file)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LISTING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"The loader {loader} does not say what {file} needs: {error}.", code="bundle") from error
    found: dict[str, Path] = {}
    for line in told.stdout.decode(errors="surrogateescape").splitlines():
        if missing := _MISSING.match(line):
            raise Missing(f"{file} needs {missing[1]}, which is not here")
        if (match := _FOUND.match(line)) and "/" not in match[1]:
            found[match[1]] = Path(match[2])
        elif (path := Path(line.strip().partition(" (0x")[0])).name in also:
            # One that was asked for beside, by its path.
            found[path.name] = path
    return found
