"""Lengths of time as people write them: 90, "90s", "1h30m", "2d", "off"."""

import math
import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from stoker.core.limits import LONGEST_GRACE_S, MOST_DURATION_S

OFF: Final = "off"
_UNITS_S: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([wdhms])\s*")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,6})?")
HINT: Final = "Write it as 90, 90s, 15m, 1h30m or 2d."
HINT_OFF: Final = "Write it as 90, 90s, 15m, 1h30m or 2d, or off for no limit."


def parse_duration(value: object) -> float | None:
    """In seconds; None for `off`. Raises ValueError for what is none."""
    if value is None or (isinstance(value, str) and value.strip().lower() == OFF):
        return None
    if isinstance(value, bool):
        # Also false: who means no limit writes `off`, which our YAML keeps as text.
        raise ValueError(f"it is {'true' if value else 'false'}")
    if not isinstance(value, int | float | str):
        raise ValueError("it is none")
    seconds = _seconds(value) if isinstance(value, str) else float(value)
    if not 0 <= seconds <= MOST_DURATION_S:
        raise ValueError("it is longer than ten years" if seconds > 0 else "it is negative")
    return seconds


def _seconds(text: str) -> float:
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ValueError("it is none")
    return math.fsum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))


def format_duration(seconds: float | None) -> str:
    """`parse_duration` reads it back as the same."""
    if seconds is None:
        return OFF
    left, parts = seconds, []
    for unit, size in _UNITS_S.items():
        if unit != "w" and unit != "s" and left >= size:
            parts.append(f"{int(left // size)}{unit}")
            left -= left // size * size
    left = round(left, 6)
    if left or not parts:
        parts.append(f"{left:f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def _limit(value: object) -> float | None:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise _refused(error, HINT_OFF) from None
    if seconds == 0:
        raise _refused(ValueError("a limit of nothing is none that could be kept"), HINT_OFF)
    return seconds


def _span(value: object) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise _refused(error, HINT) from None
    if seconds is None:
        raise _refused(ValueError("it cannot be off"), HINT)
    return seconds


def _refused(error: ValueError, hint: str) -> PydanticCustomError:
    return PydanticCustomError("duration", "expected a length of time: {what}", {"what": str(error), "hint": hint})


def _grace(value: object) -> float:
    seconds = _span(value)
    if seconds > LONGEST_GRACE_S:
        raise _refused(ValueError(f"a grace is at most {format_duration(LONGEST_GRACE_S)}"), HINT)
    return seconds


_FORMS: Final[list[dict[str, Any]]] = [
    {"type": "number", "minimum": 0, "maximum": MOST_DURATION_S},
    {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?|(\d+(\.\d+)?\s*[wdhms]\s*)+)\s*$"},
]

Limit = Annotated[
    float | None,
    BeforeValidator(_limit),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"anyOf": [*_FORMS, {"const": OFF}], "description": HINT_OFF}),
]
"""How long something may take; None without end."""

Span = Annotated[
    float,
    BeforeValidator(_span),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"anyOf": _FORMS, "description": HINT}),
]
"""How long something takes."""

Grace = Annotated[
    float,
    BeforeValidator(_grace),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"anyOf": _FORMS, "description": HINT}),
]
"""How long something that is asked to end may take."""
