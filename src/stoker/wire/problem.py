"""What is wrong with something that a person wrote: where, what was expected, and the nearest valid name."""

import json
import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from stoker.wire.model import Problem

SHOWN: Final = 40
"""Characters of a value that a message repeats."""
SECRET: Final = frozenset({"env", "token", "password", "registry_auth", "keys"})
"""Below these keys no value is repeated."""
MOST: Final = 20


def problems_of(errors: Iterable[Mapping[str, Any]], model: type[BaseModel] | None) -> list[Problem]:
    """Of pydantic's errors, in their order; those that only repeat another are left out."""
    errors = list(errors)
    misspelt = {_near(path_of(error), model) for error in errors if error["type"] == "extra_forbidden"}
    found = []
    for error in errors:
        path = path_of(error)
        # Entries that are wrong do not count, and a key that is misspelt is missing: neither says anything new.
        if error["type"] == "too_short" and any(_below(path, path_of(other)) for other in errors):
            continue
        if error["type"] == "missing" and path in misspelt:
            continue
        message, hint = _told(error, path, model)
        found.append(Problem(key=".".join(map(str, path)), message=message, hint=hint))
    return found[:MOST]


def _below(upper: Sequence[str | int], lower: Sequence[str | int]) -> bool:
    return len(lower) > len(upper) and tuple(lower[: len(upper)]) == tuple(upper)


def path_of(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    return (*error["loc"], *(error.get("ctx") or {}).get("at", ()))


def _told(error: Mapping[str, Any], path: Sequence[str | int], model: type[BaseModel] | None) -> tuple[str, str]:
    kind, context, given = error["type"], error.get("ctx") or {}, error.get("input")
    got = f", got {described(given)}" if SECRET.isdisjoint(map(str, path)) else ""
    if kind == "extra_forbidden":
        near_key, known = _near(path, model), _fields(model, path[:-1])
        known_keys = f"Known are {', '.join(known)}." if known else ""
        return "there is no such key here", f"Did you mean {near_key[-1]}?" if near_key else known_keys
    if kind == "missing":
        return "it is missing", ""
    if kind in ("literal_error", "enum"):
        expected = str(context.get("expected", ""))
        near = get_close_matches(str(given), [word.strip("' ") for word in expected.replace(" or ", ",").split(",")], 1)
        return f"expected {expected}{got}", f"Did you mean {near[0]}?" if near else ""
    if "hint" in context:
        return str(error["msg"]), str(context["hint"])
    if kind in _EXPECTED:
        hint = _COLON if kind == "string_type" and isinstance(given, Mapping) else ""
        if kind in ("list_type", "tuple_type") and got and isinstance(given, str | int):
            # One thing alone, where there may be several.
            hint = f"Write [{json.dumps(given, ensure_ascii=False)}]." if len(str(given)) <= SHOWN else ""
        return f"expected {_EXPECTED[kind].format(**context)}{got}", hint
    message = str(error["msg"])
    return message[:1].lower() + message[1:], ""


def _near(path: Sequence[str | int], model: type[BaseModel] | None) -> tuple[str | int, ...]:
    """The path that was probably meant."""
    near = get_close_matches(str(path[-1]), _fields(model, path[:-1]), 1)
    return (*path[:-1], near[0]) if near else ()


_COLON: Final = "A colon followed by a space makes a map of it: put the whole text into quotes."
_EXPECTED: Final = {
    "string_type": "text",
    "string_unicode": "Unicode text",
    "string_pattern_mismatch": "text like {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "uuid_type": "an id",
    "uuid_parsing": "an id",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
}


def described(value: object) -> str:
    """A value in a message: short, and never the inside of something large."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)[:SHOWN]
        case str():
            return repr(value if len(value) <= SHOWN else value[:SHOWN] + "…")
        case Mapping():
            return "a map"
        case list() | tuple():
            return f"a list of {len(value)}"
    return "something else"


def _fields(model: type[BaseModel] | None, path: Sequence[str | int]) -> list[str]:
    """The keys that the model knows at this path."""
    found = model
    for step in path:
        if found is None or isinstance(step, int):
            continue
        inner = found.model_fields.get(step)
        found = _model_in(inner.annotation) if inner else None
    return list(found.model_fields) if found else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple, list):
        for part in get_args(annotation):
            if inner := _model_in(part):
                return inner
    return None
