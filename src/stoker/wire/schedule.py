"""When a task is run again and again: cron lines, their time zone, and what happens while the last round runs."""

from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal
from zoneinfo import available_timezones

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stoker.core import schedule as core
from stoker.core.errors import UserError
from stoker.core.limits import MOST_CRON_CHARS, MOST_CRON_LINES
from stoker.core.reason import RunReason
from stoker.core.run_facts import S as RunStatus
from stoker.wire.model import Answer, Model
from stoker.wire.time import Time

HINT: Final = 'Write it as "0 3 * * *", as a list of such lines, or as a map of cron, timezone and overlap.'


def _lines(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (_line(given),)
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_CRON_LINES:
        raise _refused(f"expected 1 to {MOST_CRON_LINES} cron lines", core.HINT)
    return tuple(_line(line, place) for place, line in enumerate(given))


def _line(given: object, *at: int) -> str:
    try:
        return core.checked_line(given)
    except UserError as error:
        raise _refused(_told(error), error.hint, *at) from None


def _zone(given: object) -> str:
    try:
        return core.zone_of(given).key
    except UserError as error:
        near = get_close_matches(str(given), available_timezones(), 1, 0.5)
        raise _refused(_told(error), f"Did you mean {near[0]}?" if near else error.hint) from None


def _told(error: UserError) -> str:
    return error.sentence.removeprefix("schedule: ").rstrip(".")


def _refused(what: str, hint: str, *at: int) -> PydanticCustomError:
    return PydanticCustomError("schedule", "{what}", {"what": what, "hint": hint, "at": at})


_LINE: Final = {"type": "string", "maxLength": MOST_CRON_CHARS, "examples": ["0 3 * * *"]}
_LINES: Final[list[dict[str, Any]]] = [
    _LINE,
    {"type": "array", "items": _LINE, "minItems": 1, "maxItems": MOST_CRON_LINES},
]


class ScheduleConfiguration(Model):
    model_config = ConfigDict(strict=True, title="Schedule")

    cron: Annotated[
        tuple[str, ...],
        BeforeValidator(_lines),
        WithJsonSchema({"anyOf": _LINES, "description": "One line of five fields, or several: each of them triggers."}),
    ]
    timezone: Annotated[str, BeforeValidator(_zone)] = Field(
        default="UTC", description="Whose clock the lines mean.", examples=["Europe/Berlin"]
    )
    overlap: Literal["skip", "queue"] = Field(
        default="skip", description="A trigger while the last round still runs is left out, or waits for its end."
    )


def _whole(given: object) -> object:
    """A line or a list of them is the short form."""
    if isinstance(given, str | list | tuple):
        return {"cron": given}
    if given is not None and not isinstance(given, dict | ScheduleConfiguration):
        raise _refused("expected a cron line", HINT)
    return given


ScheduleOrNone = Annotated[
    ScheduleConfiguration | None,
    BeforeValidator(_whole),
    WithJsonSchema(
        {
            "description": HINT,
            "anyOf": [
                *_LINES,
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["cron"],
                    "properties": {
                        "cron": {"anyOf": _LINES},
                        "timezone": {"type": "string", "default": "UTC", "examples": ["Europe/Berlin"]},
                        "overlap": {"enum": ["skip", "queue"], "default": "skip"},
                    },
                },
                {"type": "null"},
            ],
        }
    ),
]


def to_schedule(configuration: ScheduleConfiguration | None) -> core.Schedule | None:
    if configuration is None:
        return None
    return core.Schedule(configuration.cron, configuration.timezone, core.Overlap(configuration.overlap))


class Round(Answer):
    """How a round of a schedule ended."""

    status: RunStatus = Field(examples=["DONE"])
    reason: RunReason
    ended_at: Time | None = None


class Schedule(Answer):
    """The schedule of a run, as it is now."""

    cron: tuple[str, ...] = Field(examples=[["0 3 * * *"]])
    timezone: str = Field(examples=["Europe/Berlin"])
    overlap: Literal["skip", "queue"]
    paused: bool
    next: tuple[Time, ...] = Field(description="The next triggers; in lists the first one. None while it is paused.")
    rounds: int = Field(examples=[12], description="How often it was triggered.")
    queued: bool = Field(description="A trigger waits for the last round.")
    last: Round | None = Field(default=None, description="The last round that has ended.")


class Triggered(Answer):
    """What came of a trigger by hand."""

    outcome: Literal["started", "queued", "skipped"]
    sentence: str = Field(examples=["A round of nightly starts now."], description="For people.")
