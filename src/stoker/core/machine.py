"""A life is a table: one row a line, and one function that follows it.

Theory of operation. A `Machine` holds every row of one kind of life. `step` finds the first row of
(state, type of event) whose guard holds and returns the changed record, the effects it asks for and the
messages it sends to other records in the same commit. Nothing here reads a clock, a random number or a
store, so a step can be repeated, printed and tested.

Each pair (state, event) is decided in one of three ways: it has a row; it is declared *stale* (late or
repeated news, dropped without a trace); or it is *refused* (somebody asks for what cannot be). Guarded
rows without an unguarded last one fall through to the pair's declaration.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from stoker.core.evolve import evolve


@dataclass(frozen=True, slots=True)
class Event:
    """A fact that reached us.

    `attempt` names the try it tells of (None: it is not about one try), `by` the person who acted.
    """

    attempt: int | None = field(default=None, kw_only=True)
    by: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class TimeUp(Event):
    """The record's deadline column has passed. The table decides which limit it was."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A wish for the outside world, stored in the outbox by the same commit."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message to another record, delivered in the same commit: a send never waits in the outbox."""

    kind: str
    id: UUID
    event: Event


class Then(NamedTuple):
    """What a row does besides moving: fields it sets, effects it asks for, messages, a note for people."""

    fields: dict[str, Any]
    effects: tuple[Effect, ...] = ()
    sends: tuple[Send, ...] = ()
    note: str = ""


def ask(*effects: Effect, sends: tuple[Send, ...] = (), note: str = "", **fields: Any) -> Then:
    """`ask(Start(), host=h)`: one line for the usual row."""
    return Then(fields, effects, sends, note)


class Record(Protocol):
    """What every living thing has, whatever else it carries."""

    @property
    def state(self) -> Any: ...
    @property
    def attempt(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def entered_at(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Row:
    source: Enum
    event: type[Event]
    target: Enum
    then: Callable[[Any, Any, float], Then]
    when: Callable[[Any, Any, float], bool] | None = None

    @property
    def label(self) -> str:
        return self.event.__name__ + (f" [{self.when.__name__}]" if self.when else "")

    @property
    def name(self) -> str:
        """Says the row in one line; campaigns count visits by it."""
        return f"{self.source.name} --{self.label}--> {self.target.name} ({self.then.__name__})"


def rows(
    sources: Iterable[Enum],
    event: type[Event],
    target: Enum,
    then: Callable[[Any, Any, float], Then],
    when: Callable[[Any, Any, float], bool] | None = None,
) -> tuple[Row, ...]:
    """The same row for several states."""
    return tuple(Row(source, event, target, then, when) for source in sources)


def stay(
    sources: Iterable[Enum],
    event: type[Event],
    then: Callable[[Any, Any, float], Then],
    when: Callable[[Any, Any, float], bool] | None = None,
) -> tuple[Row, ...]:
    """A row that changes fields and leaves each state as it is."""
    return tuple(Row(source, event, source, then, when) for source in sources)


def nothing(record: Any, event: Any, now: float) -> Then:
    return ask()


def pairs(states: Iterable[Enum], *events: type[Event]) -> frozenset[tuple[Enum, type[Event]]]:
    """Every (state, event) of the two lists: how a table declares what is stale."""
    return frozenset((state, event) for state in states for event in events)


class Refused(Exception):
    """The event is known, but this state has no answer to it. Nothing was changed."""

    def __init__(self, machine: str, state: Enum, event: Event) -> None:
        super().__init__(f"{machine} is {state.name}: {type(event).__name__} is not possible now")
        self.machine, self.state, self.event = machine, state, event


R = TypeVar("R", bound=Any)


class Step(NamedTuple, Generic[R]):
    """The outcome of one event. `row` is None when it was stale and nothing changed."""

    record: R
    effects: tuple[Effect, ...] = ()
    sends: tuple[Send, ...] = ()
    row: Row | None = None
    note: str = ""


@dataclass(frozen=True)
class Machine(Generic[R]):
    name: str
    initial: tuple[Enum, ...]
    rows: tuple[Row, ...]
    stale: frozenset[tuple[Enum, type[Event]]]
    _index: dict[tuple[Enum, type[Event]], tuple[Row, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[tuple[Enum, type[Event]], tuple[Row, ...]] = {}
        for row in self.rows:
            pair = (row.source, row.event)
            index[pair] = (*index.get(pair, ()), row)
        object.__setattr__(self, "_index", index)

    @property
    def states(self) -> tuple[Enum, ...]:
        return tuple(type(self.initial[0]))

    @property
    def events(self) -> frozenset[type[Event]]:
        return frozenset({row.event for row in self.rows} | {event for _, event in self.stale})

    @property
    def finished(self) -> frozenset[Enum]:
        """States that nothing leaves."""
        left = {row.source for row in self.rows if row.target is not row.source}
        return frozenset(state for state in self.states if state not in left)

    def step(self, record: R, event: Event, now: float) -> Step[R]:
        """The only way a record changes."""
        if event.attempt is not None and event.attempt != record.attempt:
            return Step(record)
        pair = (record.state, type(event))
        for row in self._index.get(pair, ()):
            if row.when is None or row.when(record, event, now):
                then = row.then(record, event, now)
                entered_at = record.entered_at if row.target is record.state else now
                moved = {"state": row.target, "entered_at": entered_at, "version": record.version + 1, **then.fields}
                changed = evolve(record, moved)
                return Step(changed, then.effects, then.sends, row, then.note)
        if pair in self.stale:
            return Step(record)
        raise Refused(self.name, record.state, event)

    def refused(self) -> set[tuple[str, str]]:
        """Pairs that may end in `Refused`; a test compares them with the written list."""
        return {
            (state.name, event.__name__)
            for state in self.states
            for event in self.events
            if (state, event) not in self.stale
            and not any(row.when is None for row in self._index.get((state, event), ()))
        }

    def shadowed(self) -> list[Row]:
        """Rows that can never be reached, because an unguarded row of the pair stands before them."""
        return [
            row
            for chain in self._index.values()
            for place, row in enumerate(chain)
            if any(earlier.when is None for earlier in chain[:place])
        ]

    def mermaid(self) -> Iterator[str]:
        yield "stateDiagram-v2"
        for state in self.initial:
            yield f"    [*] --> {state.name}"
        for row in self.rows:
            if row.target is not row.source:
                yield f"    {row.source.name} --> {row.target.name}: {row.label}"
        for state in self.states:
            if state in self.finished:
                yield f"    {state.name} --> [*]"
