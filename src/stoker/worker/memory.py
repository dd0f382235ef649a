"""No task takes more memory than it asked for: its worker looks, and what is over is killed.

Control groups would do it to the byte, but few workers may make them, least of all in a batch system, and to begin a
task in one costs more than a short task does. So a task can be over for a moment; if the host runs out of memory by
that, the kernel takes it before anything else.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.fit import MEMORY
from stoker.runner import proc
from stoker.worker.attempt import Attempt
from stoker.worker.host import MB
from stoker.worker.limits import MEMORY_S
from stoker.worker.sample import PAGE_BYTES, family, processes

_BIAS: Final = "300"


class MemoryWatch:
    def __init__(self) -> None:
        self._next_at = 0.0

    def look(self, running: Iterable[Attempt], now: float) -> list[tuple[Attempt, float]]:
        """Those that have more than they asked for, and how many bytes; nothing when it was looked a moment ago."""
        if now < self._next_at:
            return []
        asked = [one for one in running if MEMORY in one.wanted and now - one.began_at >= MEMORY_S]
        if not asked:
            return []
        self._next_at = now + MEMORY_S
        stats, children = processes()
        found = []
        for attempt in asked:
            pids = [pid for pid in family(attempt.pid, children) if pid in stats]
            limit = attempt.wanted[MEMORY] * MB
            if sum(stats[pid].memory_pages for pid in pids) * PAGE_BYTES <= limit:
                continue
            # What several of them share was counted for each, and files with it. To know better costs more.
            exact = sum(_exactly(pid, stats[pid]) for pid in pids)
            if exact > limit:
                found.append((attempt, exact))
        return found


def _exactly(pid: int, told: proc.Stat) -> float:
    taken = proc.taken_bytes(pid)
    return told.memory_pages * PAGE_BYTES if taken is None else taken


def offer_to_memory_killer() -> None:
    """What this process starts inherits it: a task goes before a server on the same host, and the largest one first."""
    with suppress(OSError):
        Path(f"/proc/{os.getpid()}/oom_score_adj").write_text(_BIAS)
