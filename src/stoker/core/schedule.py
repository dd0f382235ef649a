"""When a scheduled run starts: cron lines in a time zone.

A line at fixed hours means the wall clock. On the night the clock jumps ahead, a time that does not exist
runs at the first minute that does; on the night it falls back, a time that exists twice runs the first
time only. A line for every hour or minute (`*` or `*/5`) follows real time: it neither pauses nor bunches up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from stoker.core.errors import UserError
from stoker.core.limits import MOST_CRON_CHARS, MOST_CRON_LINES

HINT = 'Write it as "30 2 * * *" (minute, hour, day of month, month, day of week).'
# Any day will do to see whether a line ever matches: cronsim looks fifty years ahead.
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


class Overlap(Enum):
    """What happens at a trigger while the last round still runs."""

    SKIP = "skip"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Made by `parse_schedule`, which refuses what could never trigger."""

    lines: tuple[str, ...]
    zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    """It triggers nothing until somebody resumes it; what would have come meanwhile is not made up for."""


def parse_schedule(cron: str | Sequence[str], zone: str = "UTC", overlap: str = "skip") -> Schedule:
    lines = (cron,) if isinstance(cron, str) else tuple(cron)
    if not 1 <= len(lines) <= MOST_CRON_LINES:
        raise UserError(f"schedule: expected 1 to {MOST_CRON_LINES} cron lines, got {len(lines)}.", hint=HINT)
    if overlap not in {one.value for one in Overlap}:
        raise UserError(f"schedule: overlap {overlap!r} is not known.", hint="Write overlap: skip or overlap: queue.")
    zone_of(zone)
    return Schedule(tuple(checked_line(line) for line in lines), zone, Overlap(overlap))


def checked_line(line: object) -> str:
    if not isinstance(line, str) or len(line) > MOST_CRON_CHARS or len(line.split()) != 5:
        raise UserError(f"schedule: expected a cron line of five fields, got {line!r}.", hint=HINT)
    try:
        next(CronSim(line, _SOME_DAY))
    except CronSimError as error:
        raise UserError(f"schedule: {line!r} is not a cron line that can match: {error}.", hint=HINT) from error
    except StopIteration:
        raise UserError(f"schedule: {line!r} does not match any day in fifty years.", hint=HINT) from None
    return " ".join(line.split())


def zone_of(name: object) -> ZoneInfo:
    hint = "Write a name such as Europe/Berlin, America/New_York or UTC."
    try:
        # Directories and paths out of the database raise ValueError or OSError, unknown names KeyError.
        return ZoneInfo(name if isinstance(name, str) else "")
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"schedule: {name!r} is not a time zone.", hint=hint) from error


def next_after(schedule: Schedule, after: float) -> float | None:
    """The first trigger of any line later than `after`; None when none ever comes again."""
    zone = zone_of(schedule.zone)
    return min((at for line in schedule.lines if (at := _next(line, zone, after)) is not None), default=None)


def _next(line: str, zone: ZoneInfo, after: float) -> float | None:
    # cronsim treats only `datetime.UTC` itself as a zone without jumps.
    start = datetime.fromtimestamp(after, UTC if zone.key == "UTC" else zone)
    try:
        for at in CronSim(line, start):
            # In the hour that comes twice, cronsim answers with the first one even when that is over.
            if at.timestamp() > after:
                return at.timestamp()
    except OverflowError:
        # It looks fifty years ahead, and the calendar ends before.
        return None
    return None


def triggers_after(schedule: Schedule, after: float, most: int) -> tuple[float, ...]:
    """The next triggers, for people."""
    found: list[float] = []
    while len(found) < most and (at := next_after(schedule, found[-1] if found else after)) is not None:
        found.append(at)
    return tuple(found)


def due(schedule: Schedule, last_trigger: float, now: float) -> bool:
    """Whether to start a round now. Triggers that were missed since `last_trigger` are one round: the next
    question is asked with this `now` as the last trigger."""
    at = next_after(schedule, last_trigger)
    return at is not None and at <= now
