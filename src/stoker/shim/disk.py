"""A disk that may be full, and deleting so that nothing else goes with it."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.core.errors import Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """A full disk is something that passes, and people are told."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable(
                f"There is no space left on the host's disk for {what}.",
                hint="Free some space; then the same request works.",
                code="disk_full",
                retry_after_s=5.0,
            ) from error
        raise


def remove_tree(path: Path) -> None:
    """Deletes what is there, whoever owns it and whatever it looks like; links are deleted and not followed."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # Directories that a job closed to itself, or nested deeper than Python goes: these two know how.
        if os.geteuid() != 0:
            subprocess.run(["chmod", "-R", "u+rwx", "--", str(path)], capture_output=True, check=False)
        done = subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(errno.EBUSY, done.stderr.strip() or "cannot be deleted", str(path)) from None
