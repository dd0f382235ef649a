"""Machines that could be launched, and those that are there, for a configuration or for anything."""

from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.wire.configuration import TaskConfiguration
from stoker.wire.instance import InstanceResources
from stoker.wire.model import Answer, Model


class OfferRequest(Model):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"configuration": {"type": "task", "name": "hello", "commands": ["echo hello"]}}]
        }
    )

    configuration: TaskConfiguration


class Offer(Answer):
    backend: str = Field(examples=["dummy"])
    name: str = Field(examples=["a100x8"])
    location: str = Field(examples=["eu-1"])
    resources: InstanceResources
    blocks: int = Field(examples=[1])
    spot: bool
    price: float = Field(examples=[2.5], description="An hour.")
    available: int | None = Field(default=None, description="None: the backend does not say.")
    penalty: float = Field(
        description="One for each launch that failed or machine that was taken away just now, half of that ten minutes "
        "later. Each doubles the price by which offers are ranked."
    )
    fleets: tuple[str, ...] = Field(description="Which of your fleets would launch it now.")
    fits: bool = Field(description="Whether it would be launched for this.")
    sentence: str = Field(default="", examples=["the fleet takes no spot machines"], description="Why not.")


class Candidate(Answer):
    """An instance that is there."""

    instance: UUID
    name: str = Field(examples=["local-9c41ab"])
    fits: bool
    sentence: str = Field(default="", examples=["needs 8 GB of memory, has 4 GB"], description="Why not.")


class OfferList(Answer):
    """Offers in the order in which they would be tried: those that fit, then the others, each cheapest first."""

    items: tuple[Offer, ...]
    more: int = Field(default=0, description="How many are not listed.")
    fitting: int = Field(default=0, description="How many of all would be launched for this.")
    instances: tuple[Candidate, ...] = Field(default=(), description="Without a configuration those that are open.")
    more_instances: int = 0
