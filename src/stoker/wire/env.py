"""Environment variables of a configuration: a map, or a list of `NAME=value` and bare names.

A bare name takes the value that it has where the person calls; the client fills it in, and the server never sees one.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stoker.core.errors import UserError
from stoker.core.limits import MOST_ENV, MOST_ENV_CHARS

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
HINT: Final = "Write it as {NAME: value}, or as a list of NAME=value and NAME."

OURS: Final = frozenset(
    {"STOKER_RUN_ID", "STOKER_RUN_NAME", "STOKER_JOB_ID", "STOKER_SUBMISSION", "STOKER_PROJECT", "STOKER_REPLICA"}
    | {"STOKER_REPLICAS_NUM", "STOKER_NODE_RANK", "STOKER_NODES_NUM", "STOKER_NODES_IPS", "STOKER_MASTER_NODE_IP"}
    | {"STOKER_NODE_GROUP"}
    | {"STOKER_GPUS_PER_NODE", "STOKER_GPUS_NUM", "STOKER_TASK_ID"}
)
"""What every job is given; its configuration cannot say otherwise."""


def _parsed(value: object) -> dict[str, str | None]:
    """None is a bare name."""
    if value is None:
        return {}
    found: dict[str, str | None] = {}
    if isinstance(value, Mapping):
        for name, given in value.items():
            found[_checked_name(name, str(name))] = _checked_value(name, given)
    elif isinstance(value, list | tuple):
        for place, one in enumerate(value):
            if not isinstance(one, str):
                raise _refused("expected NAME=value or NAME in the list", place)
            name, equals, given = one.partition("=")
            if _checked_name(name, place) in found:
                raise _refused(f"{name} is given twice", place)
            found[name] = _checked_value(place, given) if equals else None
    else:
        raise _refused("expected a map or a list")
    if len(found) > MOST_ENV:
        raise _refused(f"there are {len(found)} variables, at most {MOST_ENV} are taken")
    for name, text in found.items():
        if text is not None and len(name) + len(text) > MOST_ENV_CHARS:
            raise _refused(f"{name} has {len(text)} characters, at most {MOST_ENV_CHARS} are taken")
    return found


def _checked_name(name: object, at: str | int) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        shown = str(name)[:40]
        raise _refused(f"{shown!r} is no name of a variable (letters, digits and _, not first a digit)", at)
    if name in OURS:
        raise _refused(f"{name} is set by Stoker itself", at, "Choose another name.")
    return name


def _checked_value(at: Any, value: object) -> str | None:
    """Never shows the value: it may be a secret."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise _refused("expected text or a number as the value", at)
    if "\0" in value:
        raise _refused("a value cannot hold the character NUL", at)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise _refused("a value is not Unicode", at)
    return value


def _refused(what: str, at: object = None, hint: str = HINT) -> PydanticCustomError:
    place = () if at is None else (at,)
    return PydanticCustomError("env", "{what}", {"what": what, "hint": hint, "at": place})


Env = Annotated[
    dict[str, str | None],
    BeforeValidator(_parsed),
    Field(repr=False),
    WithJsonSchema(
        {
            "description": HINT + " A bare name takes the caller's value.",
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
                },
                {"type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*(=[\\s\\S]*)?$"}},
            ],
        }
    ),
]


def bare(env: Mapping[str, str | None]) -> list[str]:
    return [name for name, value in env.items() if value is None]


def filled(env: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """With the caller's values; a variable that the caller has not is refused rather than empty."""
    missing = [name for name in bare(env) if name not in environ]
    if missing:
        raise UserError(
            f"env: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set where you call.",
            hint=f"Set it (export {missing[0]}=…), or give its value in the configuration.",
            code="configuration",
        )
    return {name: environ[name] if value is None else value for name, value in env.items()}
