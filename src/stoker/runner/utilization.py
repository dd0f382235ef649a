"""Whether a job uses what it was given: samples in, a sentence out when they were too low for a whole window."""

from collections.abc import Iterator
from dataclasses import dataclass

from stoker.wire.runner import ProcessMetrics, Utilization


def period_s(order: Utilization) -> float:
    """Between two looks: often enough to see a window pass, seldom enough not to be a load."""
    return min(30.0, max(2.0, order.window_s / 10))


@dataclass
class _Low:
    """A stretch of samples below the minimum."""

    since: float
    highest: float


class Meter:
    """Of one job. `at` is a clock that never jumps."""

    def __init__(self, order: Utilization) -> None:
        self._order = order
        self._before: tuple[float, float] | None = None
        self._low: dict[str, _Low] = {}

    def forget(self) -> None:
        """What was seen so far does not count."""
        self._before = None
        self._low.clear()

    def sample(self, at: float, seen: ProcessMetrics) -> str | None:
        """Says what was too low for the whole window, if something was."""
        begun = at if self._before is None else self._before[0]
        levels = {name: (percent, least, since) for name, percent, least, since in self._levels(at, begun, seen)}
        self._before = at, seen.cpu_s
        # What nobody can measure any more is not held against it.
        for gone in self._low.keys() - levels.keys():
            del self._low[gone]
        for name, (percent, least, since) in levels.items():
            if percent >= least:
                self._low.pop(name, None)
                continue
            low = self._low.setdefault(name, _Low(since, percent))
            low.highest = max(low.highest, percent)
            if at - low.since >= self._order.window_s:
                return (
                    f"{name} was used below {least:g} % for {at - low.since:.0f} s "
                    f"(its utilization_policy has a window of {self._order.window_s:g} s): at most {low.highest:.1f} %."
                )
        return None

    def _levels(self, at: float, begun: float, seen: ProcessMetrics) -> Iterator[tuple[str, float, float, float]]:
        """Of each thing that is measured: its name, how busy it is, the least, and since when it was so."""
        least = self._order.min_cpu_percent
        if least is not None and self._before is not None and at > begun:
            used_s = max(0.0, seen.cpu_s - self._before[1])
            yield "CPU", 100 * used_s / (at - begun) / self._order.cpus, least, begun
        if (least := self._order.min_gpu_percent) is not None:
            for number, percent in enumerate(seen.gpu_percent):
                yield f"GPU {number}", percent, least, at
