"""The dummy backend as people set it up in `backends.yml`, steer it while it runs, and see it."""

from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from stoker.core.errors import UserError
from stoker.core.gpu import Gpu, parse_gpu
from stoker.core.quantity import size_mb
from stoker.core.resources import Capacity
from stoker.wire.duration import Limit, Span
from stoker.wire.instance import InstanceResources
from stoker.wire.model import Answer, Flag, Model
from stoker.wire.time import Time
from stoker.wire.word import Name, refused

MOST_OFFERS: Final = 100
MOST_LOCATIONS: Final = 20
MOST_GPUS: Final = 1_024
GPU_MEMORY_MB: Final = 80 * 1024


class Lie(StrEnum):
    """What its provider does otherwise than it says."""

    NONE = "none"
    FORGET = "forget"
    """A launch is said to be accepted, and nothing is made."""
    FAIL = "fail"
    """A launch is said to be refused, and the machine is made all the same."""
    STILLBORN = "stillborn"
    """A machine is made and never comes up."""


def _size(value: Any) -> int:
    found = size_mb(value.strip()) if isinstance(value, str) else None
    if not found:
        raise refused("expected a size", "Write it as 512MB, 8GB or 1TB.")
    return found


Size = Annotated[int, BeforeValidator(_size), WithJsonSchema({"type": "string", "examples": ["8GB"]})]


def _gpus(value: Any) -> tuple[Gpu, ...]:
    hint = "Write it as A100:8 or A100:80GB:8."
    try:
        wanted = parse_gpu(value)
    except UserError as error:
        raise refused(error.sentence.rstrip(".").removeprefix("gpu: "), hint) from None
    if wanted is None:
        return ()
    count = wanted.count.lo
    if len(wanted.names) != 1 or count != wanted.count.hi or not 1 <= count <= MOST_GPUS:
        raise refused(f"expected one name and 1 to {MOST_GPUS} of it", hint)
    memory_mb = int(wanted.memory_mb.lo) or GPU_MEMORY_MB
    return tuple(Gpu(index, wanted.names[0], memory_mb, wanted.vendor or "nvidia") for index in range(int(count)))


Gpus = Annotated[tuple[Gpu, ...], BeforeValidator(_gpus), WithJsonSchema({"type": "string", "examples": ["A100:8"]})]
Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, description="An hour.")]
Room = Annotated[int, Field(ge=0, le=1_000_000, description="How many machines there are at once.")]


class Behaviour(Model):
    """What may be changed while it runs; what is not given stays as it is."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"capacity": 0}, {"launch_delay": "30s", "lie": "stillborn"}]}
    )

    capacity: Room | None = Field(default=None, description="How many machines there are at once; null without end.")
    price: Price | None = Field(default=None, description="An hour.")
    launch_delay: Span | None = Field(default=None, description="From the accepted launch until the machine is up.")
    answer_delay: Span | None = Field(default=None, description="Until the provider answers a launch.")
    destroy_delay: Span | None = Field(default=None, description="Until a destroyed machine is gone.")
    preempt_after: Limit = Field(default=None, description="How long a spot machine is left; off for ever.")
    preempt_notice: Span | None = Field(default=None, description="How long before that it is said.")
    lie: Annotated[Lie, Field(strict=False)] | None = None

    @field_validator("price", "launch_delay", "answer_delay", "destroy_delay", "preempt_notice", "lie", mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if value is None:
            raise refused("expected a value, got nothing", "Leave the key out to leave it as it is.")
        return value


class DiskBehaviour(Model):
    """How its disks behave; what is not given stays as it is."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"provision_delay": "30s"}, {"stuck": True}]}
    )

    provision_delay: Span = Field(default=0.0, description="From the accepted order until a new disk is there.")
    detach_delay: Span = Field(default=0.0, description="Until one is detached that is asked to be.")
    stuck: Flag = Field(default=False, description="Only force detaches one.")
    refuse: Flag = Field(default=False, description="No new disk is made.")


class Disk(Answer):
    id: UUID
    name: str = Field(examples=["disk-9c41ab"])
    status: str = Field(examples=["ready"], description="coming, ready, attached or detaching.")
    machine: str = Field(default="", examples=["dummy-9c41ab"], description="Which has it.")


class DiskList(Answer):
    behaviour: DiskBehaviour
    items: tuple[Disk, ...]


class DummyOffer(Model):
    """One kind of machine, at each of its locations, on demand and where it has a `spot_price` also as spot."""

    model_config = ConfigDict(strict=True)

    name: Name
    cpu: float = Field(gt=0, le=100_000)
    memory: Size
    disk: Size = 100 * 1024
    gpu: Gpus = ()
    price: Price = 0.0
    spot_price: Price | None = None
    locations: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=MOST_LOCATIONS)] = ("here",)
    capacity: Room | None = None
    real: bool = Field(default=False, description="Machines are agents of this host that run real processes.")
    launch_delay: Span = 0.0
    answer_delay: Span = 0.0
    destroy_delay: Span = 0.0
    preempt_after: Limit = None
    preempt_notice: Span = 0.0
    lie: Annotated[Lie, Field(strict=False)] = Lie.NONE

    @model_validator(mode="after")
    def _whole(self) -> "DummyOffer":
        if len(set(self.locations)) < len(self.locations):
            raise _at("locations", "one of them is named twice")
        if self.real and self.gpu:
            raise _at("gpu", "a real machine has no GPUs of its own", "Leave out gpu, or real.")
        return self

    @property
    def resources(self) -> Capacity:
        return Capacity(self.cpu, self.memory, self.disk, self.gpu, docker=True)


def _at(key: str, what: str, hint: str = "") -> Exception:
    error = refused(what, hint)
    context = dict(error.context or {}) | {"at": (key,)}
    return type(error)("refused", "{what}", context)


class DummyConfiguration(Model):
    model_config = ConfigDict(strict=True)

    offers: Annotated[tuple[DummyOffer, ...], Field(strict=False, max_length=MOST_OFFERS)] = ()

    @field_validator("offers")
    @classmethod
    def _once(cls, offers: tuple[DummyOffer, ...]) -> tuple[DummyOffer, ...]:
        names = [one.name for one in offers]
        for name in names:
            if names.count(name) > 1:
                raise refused(f"there are two offers {name}", "Give each kind of machine a name of its own.")
        return offers


def default_offers() -> tuple[DummyOffer, ...]:
    """Where no file says otherwise: simulated, so they cost nothing and need nothing."""
    both = ["here", "there"]
    said: list[dict[str, Any]] = [
        {"name": "small", "cpu": 2, "memory": "8GB", "price": 0.1, "spot_price": 0.03},
        {"name": "large", "cpu": 32, "memory": "128GB", "price": 1.6, "spot_price": 0.5},
        {
            "name": "gpu8",
            "cpu": 96,
            "memory": "1TB",
            "gpu": "A100:80GB:8",
            "price": 24,
            "spot_price": 8,
        },
    ]
    return tuple(DummyOffer.model_validate(one | {"locations": both}) for one in said)


# What is seen through the API.


class Offer(Answer):
    name: str = Field(examples=["small"])
    location: str = Field(examples=["here"])
    spot: bool
    resources: InstanceResources
    price: float
    capacity: int | None = Field(default=None, description="None: without end.")
    machines: int = Field(description="That there are now.")
    real: bool
    launch_delay: Span
    answer_delay: Span
    destroy_delay: Span
    preempt_after: Limit = None
    preempt_notice: Span
    lie: Lie


class OfferList(Answer):
    items: tuple[Offer, ...]


class Machine(Answer):
    id: UUID
    name: str = Field(examples=["dummy-9c41ab"], description="As the instance is called; accepted instead of the id.")
    offer: str
    location: str
    spot: bool
    real: bool
    status: str = Field(examples=["up"], description="coming, up, hanging, preempted or leaving.")
    ip: str = Field(examples=["127.77.0.1"])
    tasks: int | None = Field(default=None, description="On a simulated machine.")
    created_at: Time
    taken_at: Time | None = Field(default=None, description="When the provider takes it back, once that is said.")


class MachineList(Answer):
    items: tuple[Machine, ...]


class Preempt(Model):
    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"notice": "30s"}]})

    notice: Span = Field(default=0.0, description="How long before it is said; at once when it is nothing.")
