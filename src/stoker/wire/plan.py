"""What would happen if a configuration were applied now."""

from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.wire.configuration import TaskConfiguration
from stoker.wire.model import Answer, Model
from stoker.wire.revision import FieldChange
from stoker.wire.run import Expected, Run, Why


class PlanRequest(Model):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"configuration": {"type": "task", "name": "hello", "commands": ["echo hello"]}}]
        }
    )

    configuration: TaskConfiguration


class Action(StrEnum):
    CREATE = "create"
    """It starts at once."""
    QUEUE = "queue"
    """It is accepted and waits: for room, for its time, or for somebody to release it."""
    FAIL = "fail"
    """It is accepted and fails at once: there is no room, and it says not to wait."""
    REFUSE = "refuse"
    """It is not accepted: a run of that name is not finished, and differs in what cannot change while it lives."""
    UPDATE = "update"
    """The unfinished run of that name is changed in place, when it is sent with `expected`."""
    UNCHANGED = "unchanged"
    """The unfinished run of that name is this already."""


class Place(Answer):
    """Where one job would go."""

    replica: int
    node: int
    instance: UUID | None = Field(default=None, description="None: a new one would be launched.")
    name: str = Field(default="", examples=["local-9c41ab"], description="Of the instance.")
    offer: str = Field(default="", description="What would be launched.")
    blocks: int = Field(examples=[1])


class Plan(Answer):
    action: Action = Field(examples=["create"])
    sentence: str = Field(examples=["It would start at once on local-9c41ab."], description="For people.")
    name: str | None = Field(default=None, description="None: a name is made when it is submitted.")
    configuration: dict[str, Any] = Field(description="As it was understood.")
    changes: tuple[FieldChange, ...] = Field(default=(), description="What an update changes, field by field.")
    refused: tuple[str, ...] = Field(default=(), description="Keys that differ and may not.", examples=[["commands"]])
    places: tuple[Place, ...] = ()
    why: Why | None = Field(default=None, description="Why it would wait.")
    current: Run | None = Field(default=None, description="The latest run of that name.")
    expected: Expected | None = Field(default=None, description="To be sent with the submission.")
