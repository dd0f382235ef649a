"""What each job needs, as people write it; core's own readers check it, and what was written is kept."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from stoker.core.errors import UserError
from stoker.core.gpu import KEYS as GPU_KEYS
from stoker.core.gpu import VENDORS, parse_gpu
from stoker.core.quantity import parse_number, parse_size
from stoker.core.resources import Request, parse_request
from stoker.wire.model import Model
from stoker.wire.problem import described
from stoker.wire.word import refused


def _checked(parse: Callable[[Any], object], name: str) -> Callable[[Any], Any]:
    """By core's own reader; what was written is kept as it is."""

    def check(value: Any) -> Any:
        try:
            parse(value)
        except UserError as error:
            what = error.sentence.rstrip(".").removeprefix(f"{name}: ")
            raise refused(what, error.hint) from None
        return value

    return check


def _gpu(value: Any) -> object:
    if isinstance(value, Mapping):
        for key in value:
            if key not in GPU_KEYS and (near := get_close_matches(str(key), GPU_KEYS, 1)):
                raise UserError(f"there is no key {str(key)[:40]!r}.", hint=f"Did you mean {near[0]}?")
    return parse_gpu(value)


def _one_size(value: Any) -> object:
    """Not a range: nothing chooses."""
    hint = "Write it as 512MB or 8GB."
    try:
        size = parse_size(value, "shm_size")
    except UserError:
        raise UserError(f"{described(value)} is no size.", hint=hint) from None
    if not isinstance(value, str) or ".." in value or size.lo <= 0:
        raise UserError("expected one size.", hint=hint)
    return size


def _amount(parse: Callable[[Any, str], object], name: str, schema: dict[str, Any]) -> Any:
    return Annotated[Any, BeforeValidator(_checked(lambda value: parse(value, name), name)), WithJsonSchema(schema)]


_NUMBER_SCHEMA: Final = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^[\d. ]*(\.\.)?[\d. ]*$"}],
    "description": "4, 0.5, 2..8, 4.. or ..8; a bare number is the least.",
}
_SIZE_SCHEMA: Final = {
    "type": "string",
    "pattern": r"^\s*([\d.]+\s*[MGTmgt][Bb])?\s*(\.\.)?\s*([\d.]+\s*[MGTmgt][Bb])?\s*$",
    "description": "8GB, 512MB, 8GB..16GB, 8GB.. or ..1TB; a bare size is the least.",
}
_GPU_SCHEMA: Final = {
    "description": "2, A100:2, A100:40GB..:2, 24GB.. or a map of name, count, memory and vendor.",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string"},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "name": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                "count": {"anyOf": [{"type": "number"}, {"type": "string"}]},
                "memory": {"type": "string"},
                "vendor": {"enum": list(VENDORS)},
            },
        },
    ],
}


class Resources(Model):
    """What each job needs."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"cpu": 2, "memory": "8GB", "gpu": "A100:1"}]})

    cpu: _amount(parse_number, "cpu", _NUMBER_SCHEMA) = None  # type: ignore[valid-type]
    memory: _amount(parse_size, "memory", _SIZE_SCHEMA) = None  # type: ignore[valid-type]
    disk: _amount(parse_size, "disk", _SIZE_SCHEMA) = None  # type: ignore[valid-type]
    gpu: Annotated[Any, BeforeValidator(_checked(_gpu, "gpu")), WithJsonSchema(_GPU_SCHEMA)] = None
    shm_size: Annotated[
        Any,
        BeforeValidator(_checked(_one_size, "shm_size")),
        WithJsonSchema({"type": "string", "pattern": r"^\s*[\d.]+\s*[MGTmgt][Bb]\s*$"}),
        Field(description="Of /dev/shm in its container, such as 8GB."),
    ] = None
    named: Annotated[
        Any,
        BeforeValidator(_checked(lambda value: parse_request({"named": value}), "named")),
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": {"type": "integer", "minimum": 0},
                "description": "Resources of your own, such as licenses: {license: 2}.",
            }
        ),
    ] = None


def to_request(resources: Resources) -> Request:
    return parse_request(resources.model_dump(exclude_none=True, exclude={"shm_size"}))
