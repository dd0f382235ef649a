"""Entries of the journal: what changed, when, why and by whom."""

from uuid import UUID

from pydantic import Field

from stoker.wire.model import Answer
from stoker.wire.time import Time

GONE = "gone"
"""The event with which a stream ends whose place in the journal is older than what is kept."""
SERVER = "server"
"""Stands for who did what nobody asked for."""


class Event(Answer):
    seq: int = Field(examples=[117], description="Grows; gaps mean nothing.")
    at: Time
    kind: str = Field(examples=["job"], description="What changed: a run, a job, an instance, a fleet, or tasks.")
    id: UUID = Field(description="Of what changed.")
    name: str = Field(examples=["train/0-0"], description="What changed, as people call it; empty when it is deleted.")
    run: str | None = Field(default=None, examples=["train"], description="The run that it belongs to.")
    run_id: UUID | None = None
    fleet: str | None = Field(default=None, examples=["local"], description="Of an instance.")
    event: str = Field(examples=["Placed"])
    source: str | None = Field(default=None, examples=["SUBMITTED"], description="The status before.")
    target: str = Field(examples=["PROVISIONING"], description="The status after.")
    message: str = ""
    by: str = Field(default="", examples=["ada"], description="The person who asked for it; empty: the server itself.")


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
