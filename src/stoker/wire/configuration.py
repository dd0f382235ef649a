"""What a person writes to have something run: the configuration of a task, as YAML or JSON.

The model is what crosses the border, the JSON Schema for editors is printed from it, and `load` reads a file: whatever
is wrong is refused with its line, its key, what was expected and the nearest valid name. What the engine needs of it is
`to_policy` and `to_request`; what the runner needs is in the model itself.
"""

import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stoker.core.errors import UserError
from stoker.core.gang import OnNoCapacity
from stoker.core.gpu import KEYS as GPU_KEYS
from stoker.core.gpu import VENDORS, parse_gpu
from stoker.core.limits import MOST_COMMAND_CHARS, MOST_COMMANDS, MOST_PATH_CHARS
from stoker.core.policy import Policy
from stoker.core.quantity import parse_number, parse_size
from stoker.core.resources import Request, parse_request
from stoker.wire import yaml
from stoker.wire.duration import Limit, Span
from stoker.wire.env import Env, bare, filled
from stoker.wire.model import Invalid, Model, Problem
from stoker.wire.name import EXPECTED as EXPECTED_NAME
from stoker.wire.name import is_name
from stoker.wire.problem import described, path_of, problems_of

CODE: Final = "configuration"
AS_WRITTEN: Final = ("commands", "setup", "env")
"""Keys below which a number or `true` is the text that stands there: `- true` is a command."""


PLANNED: Final = ("service", "dev-environment", "fleet", "volume", "gateway", "secret")
"""Types that will come. Whoever writes one made no mistake in spelling, and nothing else in the file is judged."""


def _refused(what: str, hint: str = "") -> PydanticCustomError:
    return PydanticCustomError("refused", "{what}", {"what": what, "hint": hint})


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise _refused("the character NUL cannot be in it")
    return text


def _command(text: str) -> str:
    if not text.strip():
        raise _refused("expected a command, got nothing")
    return _no_nul(text)


def _name(text: str) -> str:
    if not is_name(text):
        like = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") if text.isascii() else ""
        hint = f"Did you mean {like}?" if is_name(like) else ""
        raise _refused(f"expected {EXPECTED_NAME}, got {described(text)}", hint)
    return text


def _shell(text: str) -> str:
    if not text or text != text.strip() or any(character.isspace() for character in text):
        raise _refused("expected the name or the path of a shell", "For example bash, or /bin/zsh.")
    return _no_nul(text)


def _checked(parse: Callable[[Any], object], name: str) -> Callable[[Any], Any]:
    """By core's own reader; what was written is kept as it is."""

    def check(value: Any) -> Any:
        try:
            parse(value)
        except UserError as error:
            what = error.sentence.rstrip(".").removeprefix(f"{name}: ")
            raise _refused(what, error.hint) from None
        return value

    return check


def _gpu(value: Any) -> object:
    if isinstance(value, Mapping):
        for key in value:
            if key not in GPU_KEYS and (near := get_close_matches(str(key), GPU_KEYS, 1)):
                raise UserError(f"there is no key {str(key)[:40]!r}.", hint=f"Did you mean {near[0]}?")
    return parse_gpu(value)


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


Command = Annotated[str, Strict(), Field(max_length=MOST_COMMAND_CHARS), AfterValidator(_command)]
Commands = Annotated[tuple[Command, ...], Field(strict=False, max_length=MOST_COMMANDS)]
WorkingDir = Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARS), AfterValidator(_no_nul)]


class TaskConfiguration(Model):
    """Commands that run to their end."""

    model_config = ConfigDict(
        strict=True,
        title="Stoker task",
        json_schema_extra={
            "examples": [
                {
                    "type": "task",
                    "name": "train",
                    "setup": ["pip install -r requirements.txt"],
                    "commands": ["python train.py"],
                    "env": {"EPOCHS": "3"},
                    "resources": {"cpu": 2, "memory": "4GB"},
                    "max_duration": "2h",
                }
            ]
        },
    )

    type: Literal["task"]
    name: Annotated[str, AfterValidator(_name), Field(description=EXPECTED_NAME)] | None = None
    commands: Annotated[Commands, Field(min_length=1, description="Run by one shell; the first that fails ends it.")]
    setup: Annotated[
        Commands, Field(description="Run before the commands; when it fails the run is SETUP_FAILED.")
    ] = ()
    env: Env = Field(default_factory=dict)
    working_dir: Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARS), AfterValidator(_no_nul)] | None = (
        Field(default=None, description="Where the commands run; relative paths begin in the job's own directory.")
    )
    shell: Annotated[str, Field(max_length=MOST_PATH_CHARS), AfterValidator(_shell)] | None = Field(
        default=None, description="sh unless it is said.", examples=["bash"]
    )
    tty: bool = Field(default=False, description="Give the commands a terminal.")
    resources: Resources = Field(default_factory=Resources)
    priority: int = Field(default=50, ge=0, le=100, description="Higher is placed first.")
    max_duration: Limit = Field(default=None, description="How long it may run; then it is stopped.")
    start_timeout: Limit = Field(default=None, description="How long it may wait for a machine.")
    stop_duration: Span = Field(default=10.0, description="Between asking it to stop and killing it.")
    on_no_capacity: Literal["queue", "fail"] = Field(default="queue", description="Wait for room, or end at once.")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """A key without a value is not given."""
        if not isinstance(given, dict):
            return given
        if (type_ := given.get("type")) in PLANNED:
            hint = "The type that works today is task; the README says what is there and what is not."
            told = {"what": f"{type_} is planned and not there yet", "hint": hint, "at": ("type",)}
            raise PydanticCustomError("refused", "{what}", told)
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}


def load(text: str | bytes) -> TaskConfiguration:
    """Reads a file. Raises `Invalid` with every problem in it, or `BadYaml` when it is not even YAML."""
    root = yaml.compose(text)
    if not isinstance(root, yaml.Pairs):
        problem = Problem(key="", message="expected a map with `type: task`, `commands` and so on", line=root.line)
        raise Invalid([problem], code=CODE)
    given = {key: yaml.as_written(node) if key in AS_WRITTEN else yaml.plain(node) for key, node in root.nodes.items()}
    try:
        return TaskConfiguration.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        lines = {".".join(map(str, path)): yaml.line_of(root, path) for path in map(path_of, errors)}
        found = [one.model_copy(update={"line": lines[one.key]}) for one in problems_of(errors, TaskConfiguration)]
        raise Invalid(sorted(found, key=lambda one: one.line or 0), code=CODE) from None


def parse(value: Mapping[str, Any]) -> TaskConfiguration:
    """The same of values that are already read, where lines are not known."""
    try:
        return TaskConfiguration.model_validate(value)
    except ValidationError as error:
        raise Invalid(problems_of(error.errors(include_url=False), TaskConfiguration), code=CODE) from None


def with_env(configuration: TaskConfiguration, environ: Mapping[str, str]) -> TaskConfiguration:
    """With bare names filled in by the caller's environment: what the client sends."""
    if not bare(configuration.env):
        return configuration
    return configuration.model_copy(update={"env": filled(configuration.env, environ)})


def complete(configuration: TaskConfiguration) -> TaskConfiguration:
    """Refuses what only a client can fill in."""
    if missing := bare(configuration.env):
        problems = [
            Problem(key=f"env.{name}", message="it has no value", hint="The caller's value is filled in by the client.")
            for name in missing
        ]
        raise Invalid(problems, code=CODE)
    return configuration


def to_policy(configuration: TaskConfiguration) -> Policy:
    return Policy(
        priority=configuration.priority,
        on_no_capacity=OnNoCapacity(configuration.on_no_capacity),
        stop_duration_s=configuration.stop_duration,
        max_duration_s=configuration.max_duration,
        start_timeout_s=configuration.start_timeout,
    )


def to_request(configuration: TaskConfiguration) -> Request:
    return parse_request(configuration.resources.model_dump(exclude_none=True))


def to_json(configuration: TaskConfiguration) -> dict[str, Any]:
    """What was said and differs from the defaults; `parse` reads it back as the same."""
    plain = configuration.model_dump(mode="json", exclude_defaults=True)
    return {"type": configuration.type} | plain


def stored(configuration: TaskConfiguration) -> str:
    return json.dumps(to_json(configuration), ensure_ascii=False, separators=(",", ":"))


def restored(text: str) -> TaskConfiguration:
    return parse(json.loads(text))


def json_schema() -> dict[str, Any]:
    """For editors."""
    schema = TaskConfiguration.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
