"""Several writes in one statement: a round trip costs more than most of the rows it carries.

Each part is a statement of its own, with its own `$1`, and becomes a CTE. PostgreSQL gives no order among
them and none sees what another writes, so parts of a bundle never touch the same row or unique key.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stoker.core.errors import Broken
from stoker.store.database import Connection

_PARAMETER = re.compile(r"\$(\d+)")


class Part(NamedTuple):
    """`sql` ends in RETURNING; `answer` is what is asked of the rows it returns."""

    name: str
    sql: str
    parameters: int
    answer: str = "count(*)"


class Bundle:
    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._arguments: list[Any] = []
        self._expected: dict[str, int] = {}

    def add(self, part: Part, arguments: Sequence[Any], expected: int | None = None) -> None:
        """`expected`: how many rows it must touch; they were locked, so another number is a bug of ours."""
        self._parts.append(part)
        self._arguments += arguments
        if expected is not None:
            self._expected[part.name] = expected

    async def write(self, tx: Connection) -> dict[str, Any]:
        if not self._parts:
            return {}
        row = await tx.fetchrow(_render(tuple(self._parts)), *self._arguments)
        assert row is not None
        for name, expected in self._expected.items():
            if row[name] != expected:
                raise Broken(f"{name} touched {row[name]} rows where {expected} were locked and expected")
        return dict(row)


@lru_cache(maxsize=512)
def _render(parts: tuple[Part, ...]) -> str:
    bodies, offset = [], 0
    for part in parts:
        shifted = _PARAMETER.sub(lambda found, by=offset: f"${int(found[1]) + by}", part.sql)  # type: ignore[misc]
        bodies.append(f"{part.name} AS ({shifted})")
        offset += part.parameters
    answers = ", ".join(f"(SELECT {part.answer} FROM {part.name}) AS {part.name}" for part in parts)
    return f"WITH {', '.join(bodies)} SELECT {answers}"


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into one array a column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]
