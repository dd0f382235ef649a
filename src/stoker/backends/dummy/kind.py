"""What the dummy provider sells: one kind of machine at one location, on demand or as spot, and how it behaves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from stoker.core.offer import Offer
from stoker.core.resources import Capacity
from stoker.wire.dummy import Behaviour, DummyOffer, Lie

BACKEND = "dummy"


class Key(NamedTuple):
    name: str
    location: str
    spot: bool

    def __str__(self) -> str:
        return f"{self.name}/{self.location}/{'spot' if self.spot else 'on-demand'}"


@dataclass(frozen=True, slots=True)
class Kind:
    key: Key
    capacity: Capacity
    price: float = 0.0
    room: int | None = None
    """How many machines there are at once; None: without end."""
    real: bool = False
    launch_delay_s: float = 0.0
    answer_delay_s: float = 0.0
    destroy_delay_s: float = 0.0
    preempt_after_s: float | None = None
    preempt_notice_s: float = 0.0
    lie: Lie = Lie.NONE

    def offer(self, machines: int) -> Offer:
        available = None if self.room is None else max(0, self.room - machines)
        return Offer(BACKEND, self.key.name, self.key.location, self.capacity, self.price, self.key.spot, available)


def kinds_of(offers: Iterable[DummyOffer]) -> dict[Key, Kind]:
    found: dict[Key, Kind] = {}
    for one in offers:
        for location in one.locations:
            prices = [(False, one.price)] + ([] if one.spot_price is None else [(True, one.spot_price)])
            for spot, price in prices:
                key = Key(one.name, location, spot)
                found[key] = Kind(
                    key, one.resources, price, one.capacity, one.real,
                    one.launch_delay, one.answer_delay, one.destroy_delay, one.preempt_after if spot else None,
                    one.preempt_notice, one.lie,
                )  # fmt: skip
    return found


_FIELDS: Mapping[str, str] = {
    "capacity": "room", "price": "price", "launch_delay": "launch_delay_s", "answer_delay": "answer_delay_s",
    "destroy_delay": "destroy_delay_s", "preempt_after": "preempt_after_s", "preempt_notice": "preempt_notice_s",
    "lie": "lie",
}  # fmt: skip


def steered(kind: Kind, behaviour: Behaviour) -> Kind:
    """With what was given; the rest stays."""
    given: dict[str, Any] = {_FIELDS[name]: getattr(behaviour, name) for name in behaviour.model_fields_set}
    return replace(kind, **given)
