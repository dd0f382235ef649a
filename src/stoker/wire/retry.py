"""`retry` of a configuration: what is tried again, and how often."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_serializer, model_validator

from stoker.core.reason import RetryEvent
from stoker.core.retry import Retry as CoreRetry
from stoker.wire.duration import Limit, format_duration
from stoker.wire.model import Model
from stoker.wire.word import refused

UNLESS_SAID_S: Final = 3600.0
"""How long it is tried again where neither a time nor a number of tries is given."""
MOST_TRIES: Final = 10_000
HINT: Final = "Write `retry: true`, or a map such as {on_events: [interruption], max_attempts: 5}."

Event = Literal["no-capacity", "interruption", "error"]
ExitCode = Annotated[int, Field(ge=1, le=255)]


class Retry(Model):
    """When a job that ended is tried again, and for how long."""

    model_config = ConfigDict(strict=True)

    on_events: Annotated[tuple[Event, ...], Field(strict=False, min_length=1)] = Field(
        default=(),
        description="What is tried again: no room, a machine that was taken away, an error. All three unless you say; "
        "none of them where only `on_exit_codes` is given.",
    )
    duration: Limit = Field(
        default=None,
        description="Not any more so long after its first failure in a row. 1h where neither this nor `max_attempts` "
        "is given; off: without end.",
    )
    max_attempts: int | None = Field(
        default=None, ge=1, le=MOST_TRIES, description="Tries in all: 1 means no second one."
    )
    on_exit_codes: Annotated[tuple[ExitCode, ...], Field(strict=False, min_length=1)] = Field(
        default=(), description="Programs that end with one of these begin again, and it counts as no try."
    )

    @model_serializer(mode="plain")
    def _as_said(self) -> dict[str, Any]:
        """A default depends on what else is said, so a value that was said is kept though it is the default."""
        said = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return said | ({"duration": format_duration(self.duration)} if "duration" in said else {})

    @model_validator(mode="after")
    def _something_to_limit(self) -> "Retry":
        only_codes = self.on_exit_codes and not self.on_events
        if only_codes and (self.max_attempts is not None or self.duration is not None):
            raise refused(
                "max_attempts and duration limit on_events, which is not given beside on_exit_codes",
                "Say on_events too: restarts by an exit code are not counted.",
            )
        return self


def _said(value: Any) -> Any:
    """`true` is a map without a word in it, and `false` is nothing."""
    if isinstance(value, bool):
        return {} if value else None
    if value is not None and not isinstance(value, dict | Retry):
        raise refused("expected true or a map", HINT)
    return value


def _or_true(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "boolean"}, *schema["anyOf"]]


Retries = Annotated[Retry | None, BeforeValidator(_said), Field(json_schema_extra=_or_true)]


def to_retry(retry: Retry) -> CoreRetry:
    """What was not said is said here, once: core knows no defaults of ours."""
    limited = "duration" in retry.model_fields_set or retry.max_attempts is not None
    events = retry.on_events or (() if retry.on_exit_codes else tuple(RetryEvent))
    return CoreRetry(
        on_events=frozenset(map(RetryEvent, events)),
        duration_s=retry.duration if limited else UNLESS_SAID_S,
        max_attempts=retry.max_attempts,
        on_exit_codes=frozenset(retry.on_exit_codes),
    )
