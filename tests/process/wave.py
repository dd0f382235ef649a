"""Graphs of swarm tasks for the campaign: what each task does is planned, so that what became of it can be judged.

A wave is one request. It is made of small graphs: layers, diamonds, chains, a fan that a barrier gathers, and tasks
alone. Of its tasks some fail at first, a few always, some have one attempt only, some last long, some are exclusive.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from tests.api.conftest import Json
from tests.process.trail import ALWAYS, FAILED, Trail


@dataclass(frozen=True)
class Planned:
    id: str
    after: tuple[str, ...] = ()
    barrier: bool = False
    lasts_s: float = 0.0
    fails: int = 0
    """So many of its attempts fail."""
    most: int = 1
    """So many it may have."""
    exclusive: bool = False

    def code(self, attempt: int) -> int:
        return FAILED if attempt <= self.fails else 0

    def body(self, trail: Trail, group: str) -> Json:
        told: Json = {"id": self.id, "group": group, "depends_on": list(self.after)}
        if self.barrier:
            return told
        told["command"] = trail.command(lasts_s=self.lasts_s, fails=self.fails)
        # Workers are lost all the time here: none of these tasks is poison.
        return told | {"max_retry_count": self.most, "crash_limit": 1000, "exclusive": self.exclusive}


class Wave:
    """At least so many tasks, of which the longest last `longest_s`; their ids are in the order of their making."""

    def __init__(self, number: int, size: int, dice: random.Random, longest_s: float) -> None:
        self.number, self._dice, self._longest_s = number, dice, longest_s
        self.tasks: list[Planned] = []
        shapes = [self._layers, self._diamond, self._chain, self._fan, self._alone]
        while len(self.tasks) < size:
            dice.choice(shapes)()

    def bodies(self, trail: Trail, group: str) -> Iterator[Json]:
        return (task.body(trail, group) for task in self.tasks)

    def _add(self, *after: str, barrier: bool = False) -> str:
        id = str(UUID(int=(self.number + 1) << 64 | len(self.tasks)))
        dice = self._dice
        lasts_s = dice.choices(
            (0.0, dice.uniform(0.002, 0.02), dice.uniform(0.02, 0.13), dice.uniform(0.17, 0.4), dice.uniform(0.5, 1)),
            weights=(10, 30, 40, 17, 3),
        )[0]
        fails = dice.choices((0, 1, 2, ALWAYS), weights=(90, 6, 2, 2))[0]
        most = 1 if dice.random() < 0.05 else 6
        exclusive = dice.random() < 0.05
        if barrier:
            self.tasks.append(Planned(id, after, barrier=True))
        else:
            self.tasks.append(Planned(id, after, False, round(lasts_s * self._longest_s, 2), fails, most, exclusive))
        return id

    def _layers(self) -> None:
        above = [self._add() for _ in range(8)]
        for _ in range(3):
            above = [self._add(*self._dice.sample(above, self._dice.randint(1, 3))) for _ in range(8)]

    def _diamond(self) -> None:
        first = self._add()
        self._add(self._add(first), self._add(first))

    def _chain(self) -> None:
        last = self._add()
        for _ in range(7):
            last = self._add(last)

    def _fan(self) -> None:
        first = self._add()
        gathered = self._add(*[self._add(first) for _ in range(12)], barrier=True)
        for _ in range(4):
            self._add(gathered)

    def _alone(self) -> None:
        for _ in range(4):
            self._add()
