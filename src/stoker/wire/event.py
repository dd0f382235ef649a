"""Entries of the journal: what changed, when, why and by whom."""

from uuid import UUID

from pydantic import Field

from stoker.wire.model import Answer
from stoker.wire.time import Time


class Event(Answer):
    seq: int = Field(examples=[117], description="Grows; gaps mean nothing.")
    at: Time
    run: str = Field(examples=["train"], description="The name of the run that it belongs to.")
    run_id: UUID
    kind: str = Field(examples=["job"], description="What changed: the run or one of its jobs.")
    id: UUID = Field(description="Of what changed.")
    event: str = Field(examples=["Placed"])
    source: str | None = Field(default=None, examples=["SUBMITTED"], description="The status before.")
    target: str = Field(examples=["PROVISIONING"], description="The status after.")
    message: str = ""
    by: str = Field(default="", examples=["ada"], description="The person who asked for it.")


class Trouble(Answer):
    """Something that failed and is tried again; it is no event before it has succeeded."""

    since: Time
    effect: str = Field(examples=["StartTask"], description="What is being tried.")
    message: str = Field(examples=["There is no space left on the disk."])
    tries: int = Field(examples=[3])
    next_at: Time


class EventPage(Answer):
    items: tuple[Event, ...]
    next_cursor: str | None = None
    troubles: tuple[Trouble, ...] = Field(default=(), description="With the last page of a run: what fails now.")
