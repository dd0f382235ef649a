"""What swarm tasks need, what workers have left, and who gets what.

Amounts are rounded to thousandths. GPUs have indices: a part of one is taken from a single GPU, several are whole ones.
A worker says how much room it has now, and how many tasks it would take `ahead`, to begin them as soon as others end:
it knows how short they are. A task that fits no room, though it would fit an empty worker, is passed over in favour of
smaller ones behind it until it has waited for `PATIENCE_S`; then it takes a place of those ahead, and its worker makes
room for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, TypeVar

from stoker.core.errors import UserError
from stoker.core.quantity import MAX_AMOUNT, size_mb, whole

Amounts = Mapping[str, float]
"""By name: `cpus`, `memory` in MB, `gpus`, and whatever workers are given. What is not named is not needed."""

CPUS: Final = "cpus"
MEMORY: Final = "memory"
GPUS: Final = "gpus"
PATIENCE_S: Final = 10.0
MOST_KINDS: Final = 16
MOST_NAME_CHARS: Final = 63

T = TypeVar("T")


def parse_amounts(value: object) -> dict[str, float]:
    """As people write them: `{"cpus": 0.5, "memory": "4GB", "gpus": 1, "licence": 2}`."""
    if not isinstance(value, Mapping):
        raise UserError("expected amounts by name.", hint="For example {cpus: 2, memory: 4GB}.")
    if len(value) > MOST_KINDS:
        raise UserError(f"there are {len(value)} kinds of resources, at most {MOST_KINDS} are taken.")
    found = {name: _amount(name, given) for name, given in value.items()}
    gpus = found.get(GPUS, 0)
    if gpus > 1 and gpus != int(gpus):
        raise UserError(f"gpus: {gpus} is neither a part of one GPU nor a whole number.", hint="Write 0.5, or 2.")
    found.setdefault(CPUS, 1)
    return {name: amount for name, amount in sorted(found.items()) if amount}


def _amount(name: Any, given: Any) -> float:
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME_CHARS or not name.replace("_", "a").isalnum():
        raise UserError(f"{str(name)[:40]!r} is no name of a resource.", hint="Letters, digits and _ are taken.")
    if name == MEMORY and isinstance(given, str) and (mb := size_mb(given.strip())) is not None:
        given = mb
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MAX_AMOUNT:
        hint = "Write it as 4GB, or as a number of MB." if name == MEMORY else "Write a number, such as 2 or 0.5."
        raise UserError(f"{name}: {str(given)[:40]!r} is no amount.", hint=hint)
    return whole(given)


@dataclass(frozen=True, slots=True)
class Room:
    """What is free. `gpus`: the share of each GPU that is free, by index."""

    amounts: Amounts = field(default_factory=dict)
    gpus: tuple[float, ...] = ()

    def fits(self, wanted: Amounts) -> bool:
        return all(
            amount <= self.amounts.get(name, 0) if name != GPUS else bool(self.gpus_for(amount))
            for name, amount in wanted.items()
        )

    def first_fit(self, options: Sequence[Amounts]) -> int | None:
        """Which of these alternatives fits; None: none does."""
        return next((place for place, wanted in enumerate(options) if self.fits(wanted)), None)

    def gpus_for(self, amount: float) -> tuple[int, ...]:
        """The indices of the GPUs that would be taken; of a part the fullest one that has it."""
        if amount < 1:
            shares = [(share, index) for index, share in enumerate(self.gpus) if share >= amount]
            return (min(shares)[1],) if shares else ()
        free = [index for index, share in enumerate(self.gpus) if share == 1]
        return tuple(free[: int(amount)]) if len(free) >= amount else ()

    def without(self, wanted: Amounts) -> "Room":
        """After somebody took this; it has to fit."""
        return self._changed(wanted, self.gpus_for(wanted[GPUS]) if GPUS in wanted else (), -1)

    def taken(self, wanted: Amounts, gpus: Sequence[int]) -> "Room":
        """After somebody took this, with these GPUs."""
        return self._changed(wanted, gpus, -1)

    def given_back(self, wanted: Amounts, gpus: Sequence[int]) -> "Room":
        return self._changed(wanted, gpus, 1)

    def _changed(self, wanted: Amounts, gpus: Sequence[int], sign: int) -> "Room":
        amounts = dict(self.amounts)
        for name, amount in wanted.items():
            if name != GPUS:
                amounts[name] = whole(amounts.get(name, 0) + sign * amount)
        shares = list(self.gpus)
        part = min(wanted.get(GPUS, 0), 1)
        for index in gpus:
            shares[index] = whole(shares[index] + sign * part)
        return Room(amounts, tuple(shares))


@dataclass(frozen=True, slots=True)
class Kind:
    """What many tasks have in common when they are handed out."""

    options: tuple[Amounts, ...]
    group: str | None = None
    key: str | None = None
    """Of all tasks with it, only so many may run."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A worker that asks for tasks. `total` is what it has when nothing runs there."""

    total: Room
    room: Room
    most: int
    ahead: int = 0
    group: str | None = None
    time_left_s: float | None = None

    def could(self, kind: Kind) -> bool:
        """Whether it would ever take such a task."""
        return (self.group is None or self.group == kind.group) and self.total.first_fit(kind.options) is not None


@dataclass(frozen=True, slots=True)
class Candidate:
    task: Any
    kind: int
    waited_s: float = 0.0
    lasts_s: float = 0.0
    """As somebody believes; 0: nobody knows. A worker that has less time left does not take it."""


def plan_claims(
    askers: Sequence[Asker],
    candidates: Iterable[Candidate],
    kinds: Mapping[int, Kind],
    left: Mapping[str, int] | None = None,
) -> list[list[Candidate]]:
    """What each asker gets, of candidates in the order in which they are to be begun. `left`: what keys still allow."""
    given: list[list[Candidate]] = [[] for _ in askers]
    state = list(askers)
    open_keys = dict(left or {})
    could = {(place, kind): asker.could(kinds[kind]) for place, asker in enumerate(askers) for kind in kinds}
    turn = 0
    # Room only shrinks, so what fitted nobody fits nobody later: of thousands alike one is held against each worker.
    too_long: dict[tuple[int, bool], float] = {}
    for candidate in candidates:
        kind = kinds[candidate.kind]
        if kind.key is not None and open_keys.get(kind.key, 0) <= 0:
            continue
        alike = candidate.kind, candidate.waited_s >= PATIENCE_S
        if candidate.lasts_s >= too_long.get(alike, inf):
            continue
        found = _taker(state, turn, candidate, kind, could)
        if found is None:
            too_long[alike] = candidate.lasts_s
            if not any(asker.most for asker in state):
                break
            continue
        place, asker = found
        state[place], turn = asker, place + 1
        given[place].append(candidate)
        if kind.key is not None:
            open_keys[kind.key] -= 1
    return given


def _taker(
    askers: Sequence[Asker], turn: int, candidate: Candidate, kind: Kind, could: Mapping[tuple[int, int], bool]
) -> tuple[int, Asker] | None:
    """Who takes it, and what that one is afterwards: in turn, room before places ahead."""
    ahead: tuple[int, Asker] | None = None
    for step in range(len(askers)):
        place = (turn + step) % len(askers)
        asker = askers[place]
        if not asker.most or not could[place, candidate.kind]:
            continue
        if asker.time_left_s is not None and candidate.lasts_s > asker.time_left_s:
            continue
        option = asker.room.first_fit(kind.options)
        if option is not None:
            return place, replace(asker, room=asker.room.without(kind.options[option]), most=asker.most - 1)
        if ahead is None and (asker.ahead > 0 or (asker.ahead == 0 and candidate.waited_s >= PATIENCE_S)):
            ahead = place, replace(asker, ahead=asker.ahead - 1, most=asker.most - 1)
    return ahead
