"""Fleets as the API shows them."""

from typing import Any
from uuid import UUID

from pydantic import Field

from stoker.wire.model import Answer
from stoker.wire.time import Time


class Fleet(Answer):
    id: UUID
    name: str = Field(examples=["local"])
    project: str | None = Field(default=None, description="None: every project may use it.")
    spec: dict[str, Any] = Field(examples=[{"backend": "local", "blocks": "auto"}])
    instances: int = Field(examples=[1], description="How many are not gone.")
    created_at: Time


class FleetPage(Answer):
    items: tuple[Fleet, ...]
    next_cursor: str | None = None
