"""A page that the worker shares with its keeper: which tasks must be dead by when.

A worker that is frozen cannot stop its exclusive tasks when its lease is over; its keeper can. The worker writes the
number of tasks last, so that its keeper never sees half a list.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_HEAD: Final = struct.Struct("<Id")
_PAGE: Final = mmap.PAGESIZE
MOST: Final = (_PAGE - 16) // 4


def boot_time() -> float:
    """A clock that goes on while the machine sleeps: a lease does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guard:
    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _PAGE)

    def set(self, groups: Sequence[int], deadline: float) -> None:
        """These process groups must not live beyond `deadline`, by `boot_time`."""
        known = groups[:MOST]
        _HEAD.pack_into(self._page, 0, 0, deadline)
        struct.pack_into(f"<{len(known)}I", self._page, 16, *known)
        _HEAD.pack_into(self._page, 0, len(known), deadline)

    @property
    def armed(self) -> bool:
        return bool(_HEAD.unpack_from(self._page, 0)[0])

    def enforce(self) -> None:
        """Called by the keeper."""
        count, deadline = _HEAD.unpack_from(self._page, 0)
        if not count or boot_time() < deadline:
            return
        for group in struct.unpack_from(f"<{count}I", self._page, 16):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
