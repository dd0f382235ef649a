"""Times as people say them."""

import re
from datetime import UTC, datetime, timezone
from typing import Final

from stoker.core.errors import UserError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?[smhdw])+")


def parse(text: str) -> float:
    """An RFC 3339 time of the server as Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


def span(seconds: float) -> str:
    """About how long: `40ms`, `0.4s`, `42s`, `3m 5s`, `2h 10m`, `4d 3h`."""
    if seconds < 0.0005:
        return "0s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for large, small, limit in (("m", "s", 3600), ("h", "m", 86400), ("d", "h", 1 << 62)):
        if whole < 60:
            return f"{whole}s"
        if whole < limit:
            many, rest = divmod(whole, _UNITS[large])
            rest //= _UNITS[small]
            return f"{many}{large} {rest}{small}" if rest else f"{many}{large}"
    return f"{whole}s"


def ago(text: str | None, now: float) -> str:
    """`2m ago`, of one unit: a list is looked at, not calculated with."""
    if not text:
        return ""
    seconds = max(0, int(now - parse(text)))
    for unit, limit in (("s", 60), ("m", 3600), ("h", 86400), ("d", 1 << 62)):
        if seconds < limit:
            return f"{seconds // _UNITS[unit]}{unit} ago" if seconds else "now"
    return ""


def clock(text: str | None) -> str:
    """In the reader's own time zone: `2026-05-01 14:00:00 CEST`."""
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S %Z}" if text else ""


def fine_clock(text: str) -> str:
    """With milliseconds, in a table whose header names the zone: `2026-05-01 14:00:00.123`."""
    return datetime.fromisoformat(text).astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds")


def zone() -> str:
    """What the reader's own is called."""
    return f"{datetime.now().astimezone():%Z}"


def seconds_of(text: str) -> float:
    """A length of time that a person typed: `90`, `90s`, `1h30m`."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not _SPAN.fullmatch(text):
        raise UserError(f"{text!r} is no length of time.", hint="For example: 30s, 10m, 1h30m, 2d.")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhdw])", text))


def since(text: str, now: float) -> float:
    """A moment that a person typed: how long ago, or a time."""
    try:
        return now - seconds_of(text)
    except UserError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{text!r} is neither a length of time nor a moment.", hint="For example: 10m, or 2026-05-01T12:00:00Z."
        ) from None
    return moment.timestamp()


def stamp(time_us: int) -> str:
    """Of a line in a log, in the reader's own time zone and with its offset; always of the same length."""
    return _moment(time_us, None).astimezone().isoformat(timespec="microseconds")


def utc(time_us: int) -> str:
    """The same for programs."""
    return _moment(time_us, UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _moment(time_us: int, zone: timezone | None) -> datetime:
    return datetime.fromtimestamp(time_us // 1_000_000, zone).replace(microsecond=time_us % 1_000_000)
