"""Very many tasks by their ids, passed from one statement to the next unread."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stoker.core.ids import TaskId


@dataclass(frozen=True, slots=True)
class Many:
    """A hundred thousand ids that are read, and written again for each statement, stop the loop for as long as that
    takes. As the text of an array PostgreSQL gives and takes them in no time.

    Statements read it as `ANY((SELECT $1::text::uuid[])::uuid[])`: an array that the planner can see it looks through
    id by id, to learn how many rows there may be, which takes longer than to find them.
    """

    text: str
    count: int
    first: TaskId | None

    @classmethod
    def of(cls, ids: Iterable[TaskId]) -> Self:
        some = list(dict.fromkeys(ids))
        return cls(f"{{{','.join(map(str, some))}}}", len(some), some[0] if some else None)
