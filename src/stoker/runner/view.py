"""A view of the file system that only one job has: volumes at the places where it wants them.

A thread takes on a mount namespace of its own, mounts there, and starts the program, which inherits it. The namespace
is gone with the last process in it, and what was mounted there with it, so nobody has to undo anything. The volumes
of other jobs are taken out of it: a copy of their mounts would keep them busy as long as this job runs, and show them
to it.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Final

from stoker.wire.runner import Bind

_CLONE_NEWNS: Final = 0x0002_0000
_MS_RDONLY: Final = 1
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_SLAVE: Final = 1 << 19
_MNT_DETACH: Final = 2


class NoView(OSError):
    """A volume is not where the job wants it, so it does not begin."""


def take(binds: Sequence[Bind], volumes: str) -> None:
    """This thread only, for good, with what it starts. `volumes` is where this host keeps those of all jobs."""
    if not binds:
        return
    try:
        _checked(_libc().unshare(_CLONE_NEWNS), "a view of its own")
        # What is mounted on the host later may come in, and nothing of ours goes out.
        _mount("none", "/", _MS_REC | _MS_SLAVE)
        for bind in binds:
            _mount(bind.source, bind.inside, _MS_BIND)
            # Nobody becomes another user by a program that lies in a volume.
            flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if bind.read_only else 0)
            _mount("none", bind.inside, _MS_REMOUNT | _MS_BIND | flags)
        for place in reversed(mounted_below(volumes)):
            _libc().umount2(os.fsencode(place), _MNT_DETACH)
        # Nor is any found where the host keeps them: what is to be read only would be written there.
        _mount("none", volumes, _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "tmpfs", "size=4k,mode=0711")
    except OSError as error:
        raise NoView(error.errno, f"{error.filename}: {error.strerror}") from error


def mounted_below(directory: str, table: str = "/proc/thread-self/mountinfo") -> list[str]:
    """Mount points there, in the order in which they were mounted."""
    with open(table, encoding="utf-8", errors="surrogateescape") as lines:
        places = [_plain(line.split(" ")[4]) for line in lines]
    return [place for place in places if place.startswith(f"{directory}/")]


def _plain(escaped: str) -> str:
    """The kernel writes spaces and the like as octal numbers."""
    for number, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        escaped = escaped.replace(number, character)
    return escaped


def _mount(source: str, target: str, flags: int, kind: str = "none", options: str = "") -> None:
    told = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)
    _checked(_libc().mount(*told), target)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
