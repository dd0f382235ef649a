"""A configuration beside the one that a run has: what differs, and whether that may change while the run lives."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic import Field

from stoker.wire.configuration import TaskConfiguration
from stoker.wire.model import Answer

HARMLESS: Final = (
    "priority",
    "max_duration",
    "start_timeout",
    "stop_duration",
    "on_no_capacity",
    "retry",
    "schedule",
    "hold",
)
"""What may change in place: only the server reads it, so it counts at once, also for jobs that wait or run. Everything
else is what the program is, or was placed by."""


class FieldChange(Answer):
    key: str = Field(examples=["priority"])
    old: Any = Field(examples=[50])
    new: Any = Field(examples=[80])

    def __str__(self) -> str:
        return f"{self.key} {shown(self.old)} -> {shown(self.new)}"


class Comparison(NamedTuple):
    changes: tuple[FieldChange, ...]
    refused: tuple[str, ...]
    """Keys that differ and may not. Without their values: one may be a secret."""

    @property
    def note(self) -> str:
        return ", ".join(map(str, self.changes))


def compared(old: TaskConfiguration, new: TaskConfiguration) -> Comparison:
    before, after = (one.model_dump(mode="json") for one in (old, new))
    keys = [key for key in TaskConfiguration.model_fields if before[key] != after[key]]
    refused = [key for key in keys if key not in HARMLESS]
    # One that comes or goes makes another kind of run of it.
    if "schedule" in keys and (old.schedule is None or new.schedule is None):
        refused.append("schedule")
    changes = (one for key in keys if key not in refused for one in _changes(key, before[key], after[key]))
    return Comparison(tuple(changes), tuple(refused))


def _changes(key: str, old: Any, new: Any) -> Iterator[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for inner in dict.fromkeys((*old, *new)):
            if old.get(inner) != new.get(inner):
                yield from _changes(f"{key}.{inner}", old.get(inner), new.get(inner))
    else:
        yield FieldChange(key=key, old=old, new=new)


def shown(value: Any) -> str:
    """As a person would write it."""
    match value:
        case None:
            return "off"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return ", ".join(map(shown, value))
    return str(value)
