"""How the host is: what would fail the jobs that come next, said before they come.

Only what the host itself can see and what stays until somebody mends it: a job that fails may have itself to blame.
"""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.core.phrase import bare, joined
from stoker.shim.limits import GPUS_EXAMINED_S, LEAST_FREE_BYTES, LEAST_FREE_SHARE
from stoker.wire.shim import HostGpu

MB = 1024 * 1024

Ailing = Callable[[Sequence[HostGpu]], list[str]]


class Checkup:
    """`look` says what is wrong, in words that stay the same while it is; nothing when all is well. `ailing` asks the
    driver of the GPUs, which takes a while."""

    def __init__(self, home: Path, gpus: Sequence[HostGpu], ailing: Ailing, clock: Callable[[], float]) -> None:
        self._home, self._gpus, self._ailing, self._clock = home, gpus, ailing, clock
        self._full = False
        self._of_gpus: list[str] = []
        self._gpus_at = float("-inf")

    def look(self) -> str:
        return joined([*self._disk(), *self._devices()])

    def _disk(self) -> list[str]:
        seen = os.statvfs(self._home)
        if seen.f_flag & os.ST_RDONLY:
            return ["its disk is read-only"]
        total, free = seen.f_blocks * seen.f_frsize, seen.f_bavail * seen.f_frsize
        least = min(LEAST_FREE_BYTES, total * LEAST_FREE_SHARE)
        amount = bare("disk", math.ceil(least / MB))
        # Well again only when there is some more, so that it does not change with every file.
        self._full = free < (2 * least if self._full else least)
        return [f"its disk is nearly full (less than {amount} are free)"] if self._full else []

    def _devices(self) -> list[str]:
        if self._gpus and self._clock() - self._gpus_at >= GPUS_EXAMINED_S:
            self._of_gpus, self._gpus_at = self._ailing(self._gpus), self._clock()
        return self._of_gpus
