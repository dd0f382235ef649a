"""What a step leaves behind for the commit: who moved, what is wished for, whom to tell."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stoker.core.machine import Effect, Event, Machine, Row, Send, Step


class Moved(NamedTuple):
    """One record's change by one event; `before` is None when it was born, `row` when no table moved it."""

    kind: str
    before: Any
    after: Any
    event: Event | None
    row: Row | None
    note: str = ""


class Wish(NamedTuple):
    """An effect, and the record as it was when it wished for it."""

    kind: str
    record: Any
    effect: Effect


@dataclass(slots=True)
class Outcome:
    moved: list[Moved] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)

    def follow(self, kind: str, machine: Machine[Any], record: Any, event: Event, now: float) -> Step[Any]:
        """Step one record and note what it did."""
        step = machine.step(record, event, now)
        if step.row is not None:
            self.moved.append(Moved(kind, record, step.record, event, step.row, step.note))
            for effect in step.effects:
                self.wishes.append(Wish(kind, step.record, effect))
        return step
