"""Figures of the swarm, from the sums that its commits keep up."""

from collections.abc import Mapping
from typing import Final

from stoker.core.errors import UserError
from stoker.core.ids import ProjectId
from stoker.server.context import Context
from stoker.store import tally
from stoker.store.tally import Figure, Figures
from stoker.store.task_kind import GROUP, LABEL, PROJECT
from stoker.wire.task import Measure, Statistics

RATE_S: Final = 60
MOST_BUCKETS: Final = 400
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def scope_of(group: str | None, labels: list[str] | None) -> tuple[str, str]:
    if group is not None and labels:
        raise UserError("Figures are kept for a group, or for a label, not for both.", hint="Ask for one of them.")
    if labels and len(labels) > 1:
        raise UserError("Figures are kept for one label.", hint="Ask for one of them.")
    if labels and ("=" not in labels[0] or "\0" in labels[0]):
        raise UserError(f"{labels[0][:60]!r} is no label.", hint="Write it as key=value.")
    return (GROUP, group) if group is not None else (LABEL, labels[0]) if labels else (PROJECT, "")


async def of_scope(context: Context, project: ProjectId, sort: str, name: str) -> Statistics:
    async with context.database.connection() as connection:
        figures = await tally.figures(connection, project, sort, name)
    return statistics(figures, context.engine.clock.now())


def statistics(figures: Figures, now: float) -> Statistics:
    counts = {tally.STATES[bucket]: one.n for bucket, one in figures.get(tally.STATE, {}).items()}
    succeeded, failed, held = (counts.get(name, 0) for name in ("succeeded", "failed", "held"))
    states = {
        "inactive": counts.get("inactive", 0),
        "available": counts.get("available", 0) + held,
        "running": counts.get("running", 0),
        "pending_cancellation": counts.get("pending_cancellation", 0),
        "terminated": succeeded + failed,
        "cancelled": counts.get("cancelled", 0),
    }
    rate = _rate(figures.get(tally.ENDED, {}), now)
    left = sum(states.values()) - states["terminated"] - states["cancelled"] - held
    return Statistics(
        total=sum(states.values()),
        states=states,
        succeeded=succeeded,
        failed=failed,
        held=held,
        retries=_sum(figures, tally.RETRY),
        lost=_sum(figures, tally.LOST),
        exit_codes={bucket: one.n for bucket, one in sorted(figures.get(tally.EXIT, {}).items())},
        throughput=round(rate, 3),
        seconds_left=0.0 if not left else round(left / rate, 1) if rate else None,
        wait=measure(figures.get(tally.WAIT, {})),
        run_time=measure(figures.get(tally.RUN, {})),
        memory=measure(figures.get(tally.MEMORY, {})),
        cpu=measure(figures.get(tally.CPU, {})),
        gpu=measure(figures.get(tally.GPU, {})),
    )


def _sum(figures: Figures, which: int) -> int:
    return sum(one.n for one in figures.get(which, {}).values())


def _rate(slices: Mapping[int, Figure], now: float) -> float:
    """Over the last minute, or since the first one ended within it."""
    recent = {place: one.n for place, one in slices.items() if place * tally.SLICE_S > now - RATE_S}
    if not recent:
        return 0.0
    since_s = max(1.0, min(float(RATE_S), now - min(recent) * tally.SLICE_S))
    return sum(recent.values()) / since_s


def measure(buckets: Mapping[int, Figure]) -> Measure:
    count = sum(one.n for one in buckets.values())
    if count <= 0:
        return Measure()
    ordered = [(bucket, one) for bucket, one in sorted(buckets.items()) if one.n > 0]
    return Measure(
        count=count,
        mean=sum(one.total for one in buckets.values()) / count,
        least=_typical(ordered[0][1]),
        most=_typical(ordered[-1][1]),
        histogram=tuple((tally.upper(bucket), one.n) for bucket, one in ordered[:MOST_BUCKETS]),
        **{name: _percentile(ordered, count, part) for name, part in _PERCENTILES.items()},
    )


def _percentile(ordered: list[tuple[int, Figure]], count: int, part: float) -> float:
    seen = 0
    for _, one in ordered:
        seen += one.n
        if seen >= part * count:
            return _typical(one)
    return _typical(ordered[-1][1])


def _typical(one: Figure) -> float:
    """The mean of a bucket: unlike its middle, it is never more than the largest that was seen."""
    return one.total / one.n
