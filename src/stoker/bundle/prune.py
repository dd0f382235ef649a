"""What of bundles is removed: what was never finished, and old ones that nobody runs from."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.bundle import tree

UNFINISHED: Final = ".making-"
KEPT: Final = 3
"""Of the newest, whoever runs from them: a task may be on its way."""
KEPT_S: Final = 24 * 3600.0
LONGEST_KEPT_S: Final = 90 * KEPT_S


def remove_unfinished(place: Path) -> None:
    """Under the lock: whoever made these is gone."""
    for left in place.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


def remove_old(place: Path, current: Path) -> None:
    """Bundles that have been replaced for a day and that no process runs from; then layers that are of none."""
    trees = sorted((one.parent for one in place.glob(f"*/{tree.MANIFEST}")), key=_made_at, reverse=True)
    old = [one for one in trees[KEPT:] if one != current and time.time() - _made_at(one) > KEPT_S]
    used = _running() if old else set()
    for one in old:
        if _inode(one / tree.LOADER) not in used:
            shutil.rmtree(one, ignore_errors=True)
    wanted = "".join(one.read_text() for one in place.glob(f"*/{tree.MANIFEST}"))
    for file in place.glob("layers/*.tar.gz"):
        if file.name.partition(".")[0] not in wanted and time.time() - file.stat().st_mtime > KEPT_S:
            file.unlink(missing_ok=True)
    for record in place.glob("known/*.json"):
        if time.time() - record.stat().st_mtime > LONGEST_KEPT_S:
            record.unlink(missing_ok=True)


def _running() -> set[tuple[int, int]]:
    """The loaders that processes run by, also those in containers: they see the same file under another name."""
    return {_inode(Path("/proc", pid, "exe")) for pid in os.listdir("/proc") if pid.isdigit()}


def _inode(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        stat = os.stat(path)
        return stat.st_dev, stat.st_ino
    return 0, 0


def _made_at(root: Path) -> float:
    with suppress(OSError):
        return (root / tree.MANIFEST).stat().st_mtime
    return 0.0
