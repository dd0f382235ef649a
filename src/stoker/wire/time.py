"""Moments as they cross a border: RFC 3339 in UTC. Inside, they are Unix seconds."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

Time = Annotated[datetime, Field(examples=["2025-11-16T10:31:07.204000Z"])]


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def seconds_of(moment: datetime) -> float:
    """Without a zone it is UTC, as everything is here."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def moment_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
