"""What tasks use while they run: memory and CPUs of their processes, and how busy their GPUs are.

One pass over all processes of the host serves all tasks; it is made only when there is a task that runs for a while.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NamedTuple

from stoker.runner import proc
from stoker.worker.attempt import Attempt
from stoker.worker.limits import SAMPLE_S

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


class Sample(NamedTuple):
    attempt: Attempt
    at: float
    memory_bytes: float
    cpus: float | None
    gpu: float | None


class Sampler:
    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = gpus
        self._next_at = 0.0
        self._before: dict[Attempt, tuple[float, float]] = {}

    def look(self, running: Iterable[Attempt], now: float) -> list[Sample]:
        """Of those that run long enough; nothing when it was looked a moment ago."""
        if now < self._next_at:
            return []
        self._next_at = now + SAMPLE_S
        seen = [attempt for attempt in running if now - attempt.began_at >= SAMPLE_S]
        if not seen:
            self._before.clear()
            return []
        stats, children = processes()
        before, self._before = self._before, {}
        samples = []
        for attempt in seen:
            members = [stats[pid] for pid in family(attempt.pid, children) if pid in stats]
            memory = float(sum(one.memory_pages for one in members) * PAGE_BYTES)
            cpu_s = sum(one.cpu_ticks for one in members) / _TICKS_PER_S
            attempt.memory_bytes = max(attempt.memory_bytes or 0.0, memory)
            since, cpu_before = before.get(attempt, (attempt.began_at, 0.0))
            cpus = max(0.0, cpu_s - cpu_before) / max(now - since, 0.001)
            self._before[attempt] = (now, cpu_s)
            gpu = _busy([self._gpus[index] for index in attempt.gpus]) if attempt.gpus else None
            samples.append(Sample(attempt, now, memory, round(cpus, 3), gpu))
        return samples


def processes() -> tuple[dict[int, proc.Stat], dict[int, list[int]]]:
    """All of the host, and the children of each."""
    stats = {pid: told for pid in proc.pids() if (told := proc.stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, told in stats.items():
        children.setdefault(told.parent, []).append(pid)
        if told.session != pid:
            # An orphan of the task is our child, but still of its session.
            children.setdefault(told.session, []).append(pid)
    return stats, children


def family(root: int, children: dict[int, list[int]]) -> set[int]:
    """A process and all that descend from it."""
    found, waiting = {root}, [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _busy(names: Sequence[str]) -> float | None:
    """How busy these GPUs are, one being 1 at most, summed; None where nobody can tell."""
    # Loaded only where a task has GPUs: the vendor's library takes more memory than we do.
    nvml: Any = import_module("pynvml")
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]
        return float(sum(nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles)) / 100
    return None
