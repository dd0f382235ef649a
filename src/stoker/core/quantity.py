"""Amounts as people write them: numbers, sizes in MB, GB or TB, and ranges of both.

A bare value (`4`, `8GB`) is a least amount, the same as `4..`; an upper bound has to be written.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from stoker.core.errors import UserError

SIZE_UNITS_MB = {"MB": 1, "GB": 1024, "TB": 1024 * 1024}
MAX_AMOUNT = 2**53  # whole numbers up to here survive JSON and floats
_NUMBER = re.compile(r"\d+(\.\d+)?|\.\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([MGT]B)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Range:
    """From `lo` to `hi`, both included; no `hi`: without end. Sizes are whole MB."""

    lo: float = 0
    hi: float | None = None

    def holds(self, amount: float) -> bool:
        return self.lo <= amount and (self.hi is None or amount <= self.hi)


ANY = Range()


def whole(amount: float) -> float:
    """Thousandths are the finest amount there is; whole amounts are ints, so that they print without a point."""
    rounded = round(amount, 3)
    return int(rounded) if rounded == int(rounded) else rounded


def parse_number(value: object, field: str) -> Range:
    """`4`, `0.5`, `"2..8"`, `"4.."`, `"..8"`."""
    return parse_range(value, field, number, "4, 0.5, 2..8, 4.. or ..8")


def parse_size(value: object, field: str) -> Range:
    """`"8GB"`, `"8GB..16GB"`, `"512MB.."`, in MB."""
    return parse_range(value, field, size_mb, "8GB, 512MB, 8GB..16GB, 8GB.. or ..1TB")


def parse_range(value: object, field: str, one: Callable[[str], float | None], example: str) -> Range:
    """Reads both ends with `one`, which answers None to what it cannot read."""
    hint = f"Write it as {example}."
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UserError(f"{field}: expected an amount or a range, got {value!r}.", hint=hint)
    text = str(whole(value)) if isinstance(value, int | float) and math.isfinite(value) else str(value).strip()
    first, last = (end.strip() for end in (text.split("..", 1) if ".." in text else (text, "")))
    lo = one(first) if first else 0
    hi = one(last) if last else None
    if lo is None or (hi is None and last) or not (first or last):
        raise UserError(f"{field}: {text!r} is not an amount or a range.", hint=hint)
    if max(lo, hi or 0) > MAX_AMOUNT:
        raise UserError(f"{field}: {text!r} is more than any machine has.", hint=hint)
    if hi is not None and hi < lo:
        raise UserError(f"{field}: the range {text!r} ends before it begins.", hint=hint)
    return Range(lo, hi)


def number(text: str) -> float | None:
    return whole(float(text)) if _NUMBER.fullmatch(text) else None


def size_mb(text: str) -> int | None:
    """Rounded up to whole MB: nobody gets less than was written."""
    found = _SIZE.fullmatch(text)
    return math.ceil(float(found[1]) * SIZE_UNITS_MB[found[2].upper()]) if found else None


def format_number(amount: float) -> str:
    """Never in the form 1e+16, which would not be read back."""
    amount = whole(amount)
    return str(amount) if isinstance(amount, int) else f"{amount:.3f}".rstrip("0")


def format_size(amount_mb: float) -> str:
    """In the largest unit that leaves a whole number."""
    mb = int(amount_mb)
    for unit in ("TB", "GB"):
        if mb and mb % SIZE_UNITS_MB[unit] == 0:
            return f"{mb // SIZE_UNITS_MB[unit]}{unit}"
    return f"{mb}MB"


def format_range(range_: Range, one: Callable[[float], str]) -> str:
    """`parse_range` reads it back."""
    if range_.hi is None:
        return f"{one(range_.lo)}.."
    return f"{one(range_.lo) if range_.lo else ''}..{one(range_.hi)}"
