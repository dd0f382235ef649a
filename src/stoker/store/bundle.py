"""Several writes in one statement: a round trip costs more than most of the rows it carries.

Each part is a statement of its own, with its own `$1`, and becomes a CTE. PostgreSQL gives no order among
them and none sees what another writes, so parts of a bundle never touch the same row or unique key. One part may
go `first`: every UPDATE then asks for its answer before it looks at a row.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stoker.store.database import Connection

_PARAMETER = re.compile(r"\$(\d+)")


class Part(NamedTuple):
    """`sql` ends in RETURNING; `answer` is what is asked of the rows it returns."""

    name: str
    sql: str
    parameters: int
    answer: str = "count(*)"
    first: bool = False
    """It answers true, or fails; only then the updates of the bundle begin."""


class Bundle:
    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._arguments: list[Any] = []
        self._expected: list[int | None] = []

    def add(self, part: Part, arguments: Sequence[Any], expected: int | None = None) -> None:
        """`expected`: how many rows it must touch; they were locked, so another number is a bug of ours."""
        self._parts.append(part)
        self._arguments += arguments
        self._expected.append(expected)

    async def write(self, tx: Connection) -> dict[str, Any]:
        if not self._parts:
            return {}
        checked = tuple(expected is not None for expected in self._expected)
        expected = [number for number in self._expected if number is not None]
        row = await tx.fetchrow(_render(tuple(self._parts), checked), *self._arguments, *expected)
        assert row is not None
        return dict(row)


@lru_cache(maxsize=512)
def _render(parts: tuple[Part, ...], checked: tuple[bool, ...]) -> str:
    bodies, offset = [], 0
    first = next((part.name for part in parts if part.first), None)
    for part in parts:
        shifted = _PARAMETER.sub(lambda found, by=offset: f"${int(found[1]) + by}", part.sql)  # type: ignore[misc]
        if first and shifted.lstrip().startswith("UPDATE"):
            where, _, returning = shifted.rpartition("RETURNING")
            shifted = f"{where}AND (SELECT so FROM {first}) RETURNING{returning}"
        bodies.append(f"{part.name} AS ({shifted})")
        offset += part.parameters
    answers = []
    for part, check in zip(parts, checked, strict=True):
        answer = f"(SELECT {part.answer} FROM {part.name})"
        if check:
            offset += 1
            answer = f"agreed('{part.name}', {answer}, ${offset})"
        answers.append(f"{answer} AS {part.name}")
    return f"WITH {', '.join(bodies)} SELECT {', '.join(answers)}"


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into one array a column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]
