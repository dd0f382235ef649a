"""Which task has which CPU: whole ones are given to one task at a time."""

from collections.abc import Sequence

from stoker.core.fit import CPUS, Amounts


class Pins:
    def __init__(self, cpus: Sequence[int]) -> None:
        self._free = sorted(cpus)

    def take(self, wanted: Amounts) -> tuple[int, ...]:
        """None for who wants a part of one, or where they are not given out."""
        amount = wanted.get(CPUS, 0)
        if amount < 1 or amount != int(amount) or len(self._free) < amount:
            return ()
        taken, self._free = tuple(self._free[: int(amount)]), self._free[int(amount) :]
        return taken

    def give_back(self, cpus: Sequence[int]) -> None:
        self._free = sorted([*self._free, *cpus])
