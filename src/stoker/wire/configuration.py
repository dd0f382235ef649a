"""What a person writes to have something run: the configuration of a task (a fleet, a volume), as YAML or JSON.

The model is what crosses the border, the JSON Schema for editors is printed from it, and `load` reads a file: whatever
is wrong is refused with its line, its key, what was expected and the nearest valid name. What the engine needs of it is
`to_policy`, and `to_request` of its resources; what the runner needs is in the model itself.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from stoker.core.gang import OnNoCapacity
from stoker.core.limits import MOST_FLEETS_OF_A_RUN, MOST_JOBS_IN_A_RUN, MOST_NODES
from stoker.core.policy import Policy, StartupOrder, StopCriteria
from stoker.wire import container, yaml
from stoker.wire.container import Entrypoint, Image, Login, Ports, Python, User
from stoker.wire.disconnect import Disconnect, to_disconnect
from stoker.wire.duration import Grace, Limit
from stoker.wire.env import Env, bare, filled
from stoker.wire.fleet import FleetConfiguration
from stoker.wire.group import Groups, nodes_of
from stoker.wire.group import check as check_nodes
from stoker.wire.model import Flag, Invalid, Model, Problem, without_empty
from stoker.wire.mount import Mounts
from stoker.wire.problem import described, path_of, problems_of
from stoker.wire.resources import Resources
from stoker.wire.retry import Retries, to_retry
from stoker.wire.schedule import ScheduleOrNone, to_schedule
from stoker.wire.utilization import UtilizationPolicy, check_gpu, to_utilization
from stoker.wire.volume import VolumeConfiguration
from stoker.wire.warning import Warn
from stoker.wire.word import Commands, Name, Path, Shell

CODE: Final = "configuration"
AS_WRITTEN: Final = ("commands", "setup", "env", "python", "entrypoint")
"""Keys below which a number or `true` is the text that stands there: `- true` is a command, 3.10 is not 3.1."""
INSIDE: Final = "groups"
"""A list of maps in which the same keys are read so."""


FLEET: Final = "fleet"
VOLUME: Final = "volume"
PLANNED: Final = ("service", "dev-environment", "gateway", "secret")
"""Types that will come. Whoever writes one made no mistake in spelling, and nothing else in the file is judged."""


class TaskConfiguration(Model):
    """Commands that run to their end."""

    model_config = ConfigDict(
        strict=True,
        title="Stoker task",
        json_schema_extra={
            "anyOf": [{"required": [key]} for key in ("commands", "groups", "image", "entrypoint")],
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
            ],
        },
    )

    type: Literal["task"]
    name: Name | None = None
    commands: Annotated[
        Commands, Field(min_length=1, description="Run by one shell; the first that fails ends it.")
    ] = ()
    setup: Annotated[
        Commands, Field(description="Run before the commands; when it fails the run is SETUP_FAILED.")
    ] = ()
    env: Env = Field(default_factory=dict)
    working_dir: Path | None = Field(
        default=None, description="Where the commands run; relative paths begin in the job's own directory."
    )
    image: Image | None = Field(
        default=None, description="Run it in a container of this image.", examples=["python:3.12-slim"]
    )
    python: Python | None = Field(
        default=None, description="Run it in a container that has this Python; which image that is the server says.",
        examples=["3.12"],
    )  # fmt: skip
    registry_auth: Login | None = Field(default=None, description="Of the image's registry.", repr=False)
    entrypoint: Entrypoint | None = Field(
        default=None, description="What the commands are handed to; without commands it is run itself."
    )
    user: User | None = Field(default=None, description="Of the image; the one that it names unless it is said.")
    privileged: bool = Field(default=False, description="With all rights on the host, where the fleet allows it.")
    docker: bool = Field(
        default=False, description="With the host's container engine inside, where the fleet allows it."
    )
    ports: Ports | None = Field(default=None, description="Ports on which the container listens.", examples=[[8000]])
    shell: Shell | None = Field(
        default=None,
        description="sh unless it is said; none: the one command is a program with its arguments.",
        examples=["bash"],
    )
    tty: bool = Field(default=False, description="Give the commands a terminal.")
    resources: Resources = Field(default_factory=Resources)
    priority: int = Field(default=50, ge=0, le=100, description="Higher is placed first.")
    max_duration: Limit = Field(default=None, description="How long it may run; then it is stopped.")
    start_timeout: Limit = Field(default=None, description="How long it may wait for a machine.")
    stop_duration: Grace = Field(default=10.0, description="Between asking it to stop and killing it.")
    warn_signal: Warn | None = Field(
        default=None,
        description="Sent to the program so long before max_duration, a preemption or the end of a drain stops it.",
        examples=["USR1@120s"],
    )
    utilization_policy: UtilizationPolicy | None = None
    disconnect: Disconnect | None = None
    schedule: ScheduleOrNone = Field(default=None, description="Run it again and again, at these times.")
    hold: Flag = Field(default=False, description="Accept it, and place nothing of it until `stoker release`.")
    on_no_capacity: Literal["queue", "fail"] = Field(default="queue", description="Wait for room, or end at once.")
    nodes: int = Field(
        default=1, ge=1, le=MOST_NODES, description="Machines that do it together, whole ones: all begin or none."
    )
    groups: Groups = Field(default=(), description="Instead of `nodes`: nodes that do different things together.")
    replicas: int = Field(
        default=1, ge=1, le=MOST_JOBS_IN_A_RUN, description="So often, each with a number of its own, STOKER_REPLICA."
    )
    max_parallel: int | None = Field(
        default=None, ge=1, le=MOST_JOBS_IN_A_RUN, description="At most so many replicas are on machines at once."
    )
    stop_criteria: Literal["all-done", "master-done"] = Field(
        default="all-done", description="It is done when all nodes are, or when the first one is."
    )
    startup_order: Literal["any", "master-first", "workers-first"] = Field(
        default="any", description="Which nodes begin first; the others wait until those run."
    )
    retry: Retries = Field(default=None, description="Try again what failed: true, or a map.")
    fleets: Annotated[
        tuple[Name, ...] | None,
        Field(strict=False, min_length=1, max_length=MOST_FLEETS_OF_A_RUN, description="Those that it may use."),
    ] = None

    volumes: Annotated[
        Mounts, Field(description="What it finds where: `name:/path` of a volume, `/directory:/path` of its host.")
    ] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """A key without a value is not given."""
        if not isinstance(given, dict):
            return given
        if (type_ := given.get("type")) in PLANNED:
            hint = (
                "The types that work today are task, fleet and volume; the README says what is there and what is not."
            )
            told = {"what": f"{type_} is planned and not there yet", "hint": hint, "at": ("type",)}
            raise PydanticCustomError("refused", "{what}", told)
        if type_ == FLEET:
            told = {"what": "a fleet is not run", "hint": "`stoker apply` and /fleets take it.", "at": ("type",)}
            raise PydanticCustomError("refused", "{what}", told)
        if type_ == VOLUME:
            told = {"what": "a volume is not run", "hint": "`stoker apply` and /volumes take it.", "at": ("type",)}
            raise PydanticCustomError("refused", "{what}", told)
        near = get_close_matches(type_, ("task", FLEET, VOLUME), 1) if isinstance(type_, str) else []
        if near and near[0] != "task":
            what = f"expected 'task', 'fleet' or 'volume', got {described(type_)}"
            raise PydanticCustomError(
                "refused", "{what}", {"what": what, "hint": f"Did you mean {near[0]}?", "at": ("type",)}
            )
        return without_empty(cls, given)

    @model_validator(mode="after")
    def _together(self) -> Self:
        check_nodes(self)
        container.check(self)
        check_gpu(self.utilization_policy, self.resources.gpu)
        return self


Configuration = TaskConfiguration | FleetConfiguration | VolumeConfiguration
C = TypeVar("C", TaskConfiguration, FleetConfiguration, VolumeConfiguration)


def load_any(text: str | bytes) -> Configuration:
    """Reads a file by its `type`; what is not known is read as a task, which says what is wrong with it.

    Raises `Invalid` with every problem in it, or `BadYaml` when it is not even YAML.
    """
    pairs = _map_of(yaml.compose(text))
    kind = pairs.nodes.get("type")
    if kind is not None and yaml.plain(kind) == FLEET:
        return _loaded(pairs, FleetConfiguration)
    if kind is not None and yaml.plain(kind) == VOLUME:
        return _loaded(pairs, VolumeConfiguration)
    return _loaded(pairs, TaskConfiguration)


def load(text: str | bytes) -> TaskConfiguration:
    """The same of a file that has to be a task's."""
    return _loaded(_map_of(yaml.compose(text)), TaskConfiguration)


def _map_of(root: yaml.Node) -> yaml.Pairs:
    if not isinstance(root, yaml.Pairs):
        problem = Problem(key="", message="expected a map with `type: task`, `commands` and so on", line=root.line)
        raise Invalid([problem], code=CODE)
    return root


def _loaded(root: yaml.Pairs, model: type[C]) -> C:
    given = yaml.keyed(root, AS_WRITTEN, INSIDE)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        lines = {".".join(map(str, path)): yaml.line_of(root, path) for path in map(path_of, errors)}
        found = [one.model_copy(update={"line": lines[one.key]}) for one in problems_of(errors, model)]
        raise Invalid(sorted(found, key=lambda one: one.line or 0), code=CODE) from None


def parse_any(value: Mapping[str, Any]) -> Configuration:
    """The same of values that are already read, where lines are not known."""
    if value.get("type") == FLEET:
        return _parsed(value, FleetConfiguration)
    if value.get("type") == VOLUME:
        return _parsed(value, VolumeConfiguration)
    return _parsed(value, TaskConfiguration)


def parse(value: Mapping[str, Any]) -> TaskConfiguration:
    return _parsed(value, TaskConfiguration)


def _parsed(value: Mapping[str, Any], model: type[C]) -> C:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid(problems_of(error.errors(include_url=False), model), code=CODE) from None


def with_env(configuration: TaskConfiguration, environ: Mapping[str, str]) -> TaskConfiguration:
    """With bare names filled in by the caller's environment: what the client sends."""
    if any(bare(group.env) for group in configuration.groups):
        groups = [one.model_copy(update={"env": filled(one.env, environ)}) for one in configuration.groups]
        configuration = configuration.model_copy(update={"groups": tuple(groups)})
    if not bare(configuration.env):
        return configuration
    return configuration.model_copy(update={"env": filled(configuration.env, environ)})


def complete(configuration: TaskConfiguration) -> TaskConfiguration:
    """Refuses what only a client can fill in."""
    missing = [f"env.{name}" for name in bare(configuration.env)]
    missing += [f"groups.{at}.env.{name}" for at, one in enumerate(configuration.groups) for name in bare(one.env)]
    if missing:
        hint = "The caller's value is filled in by the client."
        raise Invalid([Problem(key=key, message="it has no value", hint=hint) for key in missing], code=CODE)
    return configuration


def to_policy(configuration: TaskConfiguration) -> Policy:
    return Policy(
        priority=configuration.priority,
        on_no_capacity=OnNoCapacity(configuration.on_no_capacity),
        stop_duration_s=configuration.stop_duration,
        max_duration_s=configuration.max_duration,
        start_timeout_s=configuration.start_timeout,
        warn_signal=configuration.warn_signal,
        utilization=to_utilization(configuration.utilization_policy),
        disconnect=to_disconnect(configuration.disconnect),
        nodes=nodes_of(configuration),
        replicas=configuration.replicas,
        max_parallel=configuration.max_parallel,
        stop_criteria=StopCriteria(configuration.stop_criteria),
        startup_order=StartupOrder(configuration.startup_order),
        retry=None if configuration.retry is None else to_retry(configuration.retry),
        fleets=configuration.fleets,
        schedule=to_schedule(configuration.schedule),
        hold=configuration.hold,
        privileged=container.needs_permission(configuration),
        waiting_runner_s=container.waiting_runner_s(configuration),
    )


def to_json(configuration: TaskConfiguration) -> dict[str, Any]:
    """What was said and differs from the defaults; `parse` reads it back as the same."""
    plain = configuration.model_dump(mode="json", exclude_defaults=True)
    return {"type": configuration.type} | plain


def stored(configuration: TaskConfiguration) -> str:
    return json.dumps(to_json(configuration), ensure_ascii=False, separators=(",", ":"))


def restored(text: str) -> TaskConfiguration:
    return parse(json.loads(text))


def json_schema(model: type[Configuration] = TaskConfiguration) -> dict[str, Any]:
    """For editors."""
    schema = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
