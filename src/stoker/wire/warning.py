"""`warn_signal: USR1@120s`: which signal a program hears before it is ended, and how long before."""

from difflib import get_close_matches
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from stoker.core.warning import SIGNALS, UNHEARD, WarnSignal
from stoker.wire.duration import format_duration, parse_duration
from stoker.wire.problem import described
from stoker.wire.word import refused

HINT: Final = "Write a signal and how long before, as USR1@120s or TERM@2m."


def _read(value: Any) -> Any:
    if isinstance(value, WarnSignal):
        return value
    name, at, ahead = value.partition("@") if isinstance(value, str) else ("", "", "")
    if not at:
        raise refused(f"expected a signal and a length of time, got {described(value)}", HINT)
    return WarnSignal(_signal(name.strip()), _ahead(ahead.strip()))


def _signal(written: str) -> str:
    name = written.upper().removeprefix("SIG")
    if name in UNHEARD:
        raise refused(f"no program can hear {name}", "USR1, USR2, TERM and INT are usual.")
    if name not in SIGNALS:
        near = get_close_matches(name, sorted(SIGNALS), 1)
        hint = f"Did you mean {near[0]}?" if near else "USR1, USR2, TERM and INT are usual."
        raise refused(f"there is no signal {described(written)}", hint)
    return name


def _ahead(written: str) -> float:
    try:
        ahead_s = parse_duration(written)
    except ValueError as error:
        raise refused(f"expected a length of time behind the @: {error}", HINT) from None
    if not ahead_s:
        raise refused("expected a length of time behind the @", HINT)
    return ahead_s


def _write(warn: WarnSignal) -> str:
    return f"{warn.signal}@{format_duration(warn.ahead_s)}"


Warn = Annotated[
    WarnSignal,
    BeforeValidator(_read),
    PlainSerializer(_write, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[A-Za-z0-9+-]+\s*@\s*\S.*$", "description": HINT}),
]
