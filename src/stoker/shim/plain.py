"""Reading what a runner wrote, where its job could have written too.

The first process of a container and the job in it are often the same user, and the directory of the task is mounted
into it. So whatever lies there may be a link to a file of the host, a pipe that nobody writes to, or a file without
end. Nothing is followed, nothing is waited for, and only plain files are read.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_PLAIN: Final = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Raises FileNotFoundError also where something else stands in its place."""
    descriptor = _open(str(path), _DIRECTORY, None)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened(path: Path | str, directory: int | None = None) -> Iterator[int]:
    descriptor = _open(str(path), _FILE, directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "is no plain file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: Path, most_bytes: int) -> bytes:
    """At most so much of it."""
    with opened(path) as descriptor:
        return os.read(descriptor, most_bytes)


def _open(path: str, flags: int, directory: int | None) -> int:
    try:
        return os.open(path, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise FileNotFoundError(errno.ENOENT, "is no plain file", path) from error
        raise
