"""What people do to the dummy backend while it runs."""

from collections.abc import Sequence
from typing import Any

from stoker.backends.dummy.backend import Dummy
from stoker.backends.dummy.kind import Key, Kind, steered
from stoker.backends.dummy.machine import Machine
from stoker.core.errors import Conflict, NotFound
from stoker.wire.dummy import Behaviour


class Steering:
    """Changes of offers are kept in a file, so that a restart does not forget them; `reset` does."""

    def __init__(self, dummy: Dummy) -> None:
        self.dummy = dummy
        self._file_says = dict(dummy.kinds)
        self._changes = dummy.shelf.steering()
        for key, kind in self._file_says.items():
            if (change := self._changes.get(str(key))) is not None:
                dummy.kinds[key] = steered(kind, Behaviour.model_validate(change))

    def change(self, name: str, location: str | None, spot: bool | None, behaviour: Behaviour) -> list[Kind]:
        """Of all offers of that name, or only of some; those that were changed."""
        keys = [
            key
            for key in self.dummy.kinds
            if key.name == name and location in (None, key.location) and spot in (None, key.spot)
        ]
        if not keys:
            raise self._unknown(name)
        given: dict[str, Any] = behaviour.model_dump(mode="json", include=behaviour.model_fields_set)
        for key in keys:
            self.dummy.kinds[key] = steered(self.dummy.kinds[key], behaviour)
            self._changes[str(key)] = self._changes.get(str(key), {}) | given
        self.dummy.shelf.steer(self._changes)
        self.dummy.stirred()
        return [self.dummy.kinds[key] for key in keys]

    def reset(self) -> None:
        """All offers are again what the file says."""
        self._changes = {}
        self.dummy.shelf.steer(self._changes)
        self.dummy.disks.reset()
        self.dummy.kinds.update(self._file_says)
        self.dummy.stirred()

    def machine(self, text: str) -> Machine:
        """By its name or its id."""
        found = [one for one in self.dummy.machines.values() if text in (one.name, str(one.id))]
        if not found:
            raise NotFound(f"There is no machine {text[:63]}.", hint="`stoker dummy machines` lists them.")
        if len(found) > 1:
            raise Conflict(
                f"{text} is the name of {len(found)} machines.",
                hint=f"Say which: {', '.join(str(one.id) for one in found)}.",
                code="ambiguous",
            )
        return found[0]

    def preempt(self, machine: Machine, notice_s: float) -> None:
        if machine.taken_at is not None:
            raise Conflict(f"{machine.name} is being taken back already.", code="preempted")
        self.dummy.notice(machine, notice_s)

    async def vanish(self, machine: Machine) -> None:
        await self.dummy.end(machine, "it vanished")

    async def hang(self, machine: Machine, *, on: bool) -> None:
        await self.dummy.hang(machine, on=on)

    def status(self, machine: Machine) -> str:
        if machine.gone_at is not None:
            return "leaving"
        if machine.taken_at is not None:
            return "preempted"
        if machine.hanging:
            return "hanging"
        return "up" if self.dummy.is_up(machine) else "coming"

    def offers(self) -> Sequence[tuple[Key, Kind, int]]:
        return [(key, kind, self.dummy.count(key)) for key, kind in self.dummy.kinds.items()]

    def _unknown(self, name: str) -> NotFound:
        known = ", ".join(dict.fromkeys(key.name for key in self.dummy.kinds))
        return NotFound(f"There is no such offer of {name[:63]}.", hint=f"Offers are {known or 'none'}.")
