"""Rows on their way into set-based statements."""

from collections.abc import Sequence
from typing import Any

from stoker.core.errors import Broken


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into one array a column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]


def check(status: str, expected: int, what: str) -> None:
    """The rows were locked by us: another count means that somebody wrote past the engine."""
    if int(status.rpartition(" ")[2]) != expected:
        raise Broken(f"{what}: {status} where {expected} rows were locked and expected")
