"""Swarm tasks as the API takes and shows them: small durable commands with continuations, claimed by workers."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema

from stoker.core.errors import UserError
from stoker.core.fit import Amounts, parse_amounts
from stoker.core.limits import (
    LONGEST_GRACE_S,
    MOST_ARGUMENTS,
    MOST_COMMAND_CHARS,
    MOST_DURATION_S,
    MOST_EDGES_OF_A_TASK,
    MOST_ITEMS,
    MOST_LABELS,
    MOST_PATH_CHARS,
    MOST_RESULT_CHARS,
    MOST_TAG_CHARS,
    MOST_TASKS_IN_A_REQUEST,
)
from stoker.core.task import Outcome, State
from stoker.wire.env import Env
from stoker.wire.model import Answer, Flag, Model, Whole
from stoker.wire.time import Time
from stoker.wire.word import no_nul, refused

NO_NUL: Final = r"^[^\x00]*$"
LABEL: Final = r"^[A-Za-z0-9]([A-Za-z0-9_./-]{0,61}[A-Za-z0-9])?$"
"""Names of groups, labels and concurrency keys."""

Text = Annotated[str, AfterValidator(no_nul)]
Label = Annotated[str, Field(pattern=LABEL)]
Labels = Annotated[dict[Label, Annotated[Text, Field(max_length=MOST_TAG_CHARS)]], Field(max_length=MOST_LABELS)]
Ref = Annotated[str, Field(min_length=1, max_length=200)]
"""The id of a task, or the `ref` of another one in the same request."""
Edges = Annotated[tuple[Ref, ...], Field(max_length=MOST_EDGES_OF_A_TASK)]


def _amounts(value: Any) -> Amounts:
    try:
        return parse_amounts(value)
    except UserError as error:
        raise refused(error.sentence.rstrip("."), error.hint) from None


RequestedResources = Annotated[
    dict[str, Any],
    BeforeValidator(lambda value: dict(_amounts(value))),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]},
            "description": "`cpus` (1 unless said, also 0.5), `memory` (8GB, or a number of MB; who takes more "
            "is killed), `gpus` (2, or 0.5 of one), and any resource that workers are given by name.",
            "examples": [{"cpus": 2, "memory": "4GB", "gpus": 0.5, "licence": 1}],
        }
    ),
]


class Output(StrEnum):
    """Where stdout and stderr of an attempt go."""

    SERVER = "server"
    FILES = "files"
    NONE = "none"


Command = Annotated[
    Annotated[Text, Field(min_length=1, max_length=MOST_COMMAND_CHARS)]
    | Annotated[
        tuple[Annotated[Text, Field(max_length=MOST_COMMAND_CHARS)], ...],
        Field(min_length=1, max_length=MOST_ARGUMENTS),
    ]
    | None,
    Field(description="An argv, or a string for the shell; none: a barrier, which only passes on that it was reached."),
]


class NewTask(Model):
    """A task as it is wanted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "train", "command": ["python", "train.py", "--lr", "0.1"]}]}
    )

    id: UUID | None = Field(default=None, description="Chosen by the client; otherwise the server makes one.")
    ref: Ref | None = Field(default=None, description="A name by which other tasks of this request point here.")
    state: Literal["inactive", "available"] | None = Field(
        default=None, description="Available unless it waits for others; `inactive` waits for somebody to open it."
    )
    name: Annotated[Text, Field(max_length=200)] = ""
    command: Command = None
    env: Env = Field(default_factory=dict)
    working_dir: Annotated[Text, Field(min_length=1, max_length=MOST_PATH_CHARS)] | None = None
    stdin: Annotated[Text, Field(max_length=MOST_COMMAND_CHARS)] | None = Field(
        default=None, description="Text that it reads; otherwise it reads nothing."
    )
    requested_resources: RequestedResources = Field(default_factory=lambda: {"cpus": 1})
    alternatives: Annotated[tuple[RequestedResources, ...], Field(max_length=8)] = Field(
        default=(), description="What would do as well, in the order of preference."
    )
    estimated_runtime: Annotated[float, Strict(), Field(gt=0, le=MOST_DURATION_S)] | None = Field(
        default=None, description="In seconds. A worker with less time left does not take it."
    )
    max_termination_time: Annotated[float, Strict(), Field(ge=0, le=LONGEST_GRACE_S)] = Field(
        default=10.0, description="Seconds between SIGTERM and SIGKILL."
    )
    max_retry_count: Annotated[Whole, Field(ge=1, le=1_000_000)] = Field(
        default=1, description="How many attempts it may have: 1 means no second one."
    )
    crash_limit: Annotated[Whole, Field(ge=1, le=1_000)] = Field(
        default=5, description="How many workers may be lost while they run it before it is held as poison."
    )
    priority: Annotated[Whole, Field(ge=-1_000_000, le=1_000_000)] = Field(
        default=0, description="The highest is claimed first."
    )
    continuations: Edges = Field(default=(), description="Tasks that wait for this one: ids, or refs of this request.")
    depends_on: Edges = Field(default=(), description="The same edges from the other side.")
    group: Label | None = None
    labels: Labels = Field(default_factory=dict)
    concurrency_key: Label | None = Field(default=None, description="Of all tasks with this key, only so many run.")
    concurrency_limit: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="How many; 1 unless said. The latest task to say it says it for all."
    )
    deadline: Time | None = Field(default=None, description="What has not ended by then is cancelled.")
    start_after: Time | None = Field(default=None, description="Not claimed before.")
    exclusive: Flag = Field(
        default=False, description="Its worker stops it as soon as it could not renew its lease: never two at once."
    )
    output: Output = Field(
        default=Output.SERVER, description="`files`: kept on the worker's host, under `output_dir` where that is given."
    )
    output_dir: Annotated[Text, Field(min_length=1, max_length=MOST_PATH_CHARS)] | None = None


class Created(Answer):
    """In the order of the request."""

    ids: tuple[UUID, ...] = Field(description="Of the tasks; left out where there are more than a thousand.")
    count: int = Field(examples=[3])
    edges: int = Field(examples=[2])
    available: int = Field(examples=[1], description="How many can be claimed at once because of this.")


class NewGraph(Model):
    """Tasks that are stored together or not at all."""

    tasks: Annotated[tuple[NewTask, ...], Field(min_length=1, max_length=MOST_TASKS_IN_A_REQUEST)]


class Samples(Answer):
    """Seconds since the attempt was claimed, and what was seen. Of a long series every second one is kept, then every
    fourth, and so on: it covers the whole life of the attempt, and the figures are of all that was seen."""

    at: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    count: int = Field(default=0, description="How many there were.")
    mean: float | None = None
    most: float | None = None


class ExecutionInfo(Answer):
    """One attempt."""

    attempt: int = Field(examples=[1])
    worker: UUID | None = None
    claimed_at: Time
    time_started: Time | None = None
    time_terminated: Time | None = None
    exit_status: int | None = Field(default=None, description="0 to 255; minus the number of the signal that ended it.")
    outcome: Outcome | None = Field(default=None, description="None while it runs.")
    message: str = Field(default="", description="Where its worker has something to say.")
    result: str | None = Field(default=None, description="What it wrote into the file $STOKER_RESULT.")
    memory_usage: Samples = Field(default_factory=Samples, description="Of its processes, in bytes.")
    cpu_utilization: Samples = Field(default_factory=Samples, description="Of its processes, in CPUs.")
    gpu_usage: Samples = Field(default_factory=Samples, description="Of its GPUs, 0 to 1 each, summed.")


class Task(Answer):
    id: UUID
    name: str = ""
    user: str = Field(default="", examples=["ada"], description="Who submitted it.")
    state: State = Field(examples=["available"])
    held: str = Field(
        default="",
        examples=["poison"],
        description="Why nobody may claim it, though it is available: `poison`, or `clock` before its `start_after`.",
    )
    command: str | tuple[str, ...] | None = None
    env: dict[str, str] = Field(default_factory=dict, description="Its values: to its user and to managers.")
    working_dir: str | None = None
    stdin: str | None = None
    requested_resources: dict[str, Any] = Field(default_factory=dict)
    alternatives: tuple[dict[str, Any], ...] = ()
    estimated_runtime: float | None = None
    max_termination_time: float = 10.0
    max_retry_count: int = 1
    retry_count: int = Field(default=0, description="Attempts that were begun.")
    crash_limit: int = 5
    crash_count: int = 0
    priority: int = 0
    pending_dependency_count: int = 0
    continuations: tuple[UUID, ...] = Field(default=(), description="Of a task that has very many the first thousand.")
    depends_on: tuple[UUID, ...] = ()
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    concurrency_key: str | None = None
    deadline: Time | None = None
    start_after: Time | None = None
    exclusive: bool = False
    output: Output = Output.SERVER
    output_dir: str | None = None
    worker: UUID | None = Field(default=None, description="Who holds it now.")
    exit_status: int | None = Field(default=None, description="Of the last attempt that ended.")
    created_at: Time
    entered_at: Time = Field(description="Since when it is in its state.")
    retry_of: UUID | None = Field(default=None, description="The task that it does again.")
    execution_info: ExecutionInfo | None = Field(default=None, description="The latest attempt.")


class TaskPage(Answer):
    """`items` have the fields that were asked for, and `id`."""

    items: tuple[dict[str, Any], ...]
    next_cursor: str | None = None


class History(Answer):
    """Every attempt, the first one first."""

    items: tuple[ExecutionInfo, ...]


class Node(Answer):
    """One task of a graph."""

    id: UUID
    name: str = ""
    state: State
    held: str = ""
    barrier: bool = Field(default=False, description="It has nothing to run.")
    exit_status: int | None = None
    continuations: tuple[UUID, ...] = ()


class Tree(Answer):
    """What can be reached from a task along its continuations; the first one is the task itself."""

    items: tuple[Node, ...]
    complete: bool = Field(description="Otherwise there is more than is shown.")


class Continuations(Model):
    continuations: Annotated[tuple[UUID, ...], Field(min_length=1, max_length=MOST_EDGES_OF_A_TASK)]


class ExecutionPatch(Model):
    """What a worker says of its attempt."""

    worker: UUID | None = None
    time_started: Time | None = None
    time_terminated: Time | None = None
    exit_status: Annotated[Whole, Field(ge=-255, le=255)] | None = None


class TaskPatch(Model):
    """A change of state, by a person or by a worker. What the current state does not allow is answered 409."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"state": "cancelled"}]})

    state: State | None = None
    priority: Annotated[Whole, Field(ge=-1_000_000, le=1_000_000)] | None = None
    execution_info: ExecutionPatch | None = None


class Selection(Model):
    """Which tasks are meant: all that match everything that is said."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"group": "sweep-7"}]})

    ids: Annotated[tuple[UUID, ...], Field(max_length=MOST_TASKS_IN_A_REQUEST)] | None = None
    group: Label | None = None
    labels: Labels = Field(default_factory=dict)
    state: tuple[State, ...] | None = None
    name: Annotated[Text, Field(max_length=200)] | None = None
    all: Flag = Field(default=False, description="Every task of the project, where nothing else is said.")


class CancelledTasks(Answer):
    cancelled: int = Field(description="Ended by this.")
    pending: int = Field(description="Running: their workers are being told.")


class Retried(Answer):
    """Ended tasks stay as they are; what did not succeed is done again by new ones."""

    ids: dict[UUID, UUID] = Field(default_factory=dict, description="The new task for each; at most a thousand.")
    count: int
    released: int = Field(default=0, description="Held ones that may be claimed again.")


class Report(Model):
    """Appended to a series of the attempt that is running."""

    values: Annotated[
        tuple[Annotated[float, Strict(), Field(ge=0, le=1e18)], ...], Field(min_length=1, max_length=MOST_ITEMS)
    ]


class Measure(Answer):
    """Of all attempts that ended. Percentiles are right within five percent."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None
    histogram: tuple[tuple[float, int], ...] = Field(default=(), description="Upper end of a bucket, and how many.")


class Statistics(Answer):
    """Of a project, a group, a label, or one task."""

    total: int = 0
    states: dict[str, int] = Field(default_factory=dict, examples=[{"available": 12, "running": 4, "terminated": 984}])
    succeeded: int = 0
    failed: int = Field(default=0, description="Terminated without success.")
    held: int = 0
    retries: int = Field(default=0, description="Attempts beyond the first.")
    lost: int = Field(default=0, description="Attempts whose worker vanished.")
    exit_codes: dict[int, int] = Field(default_factory=dict)
    throughput: float = Field(default=0.0, description="Tasks that ended in a second, over the last minute.")
    seconds_left: float | None = Field(default=None, description="Until all have ended, at this rate.")
    wait: Measure = Field(default_factory=Measure, description="Seconds from available to claimed.")
    run_time: Measure = Field(default_factory=Measure, description="Seconds from started to ended.")
    memory: Measure = Field(
        default_factory=Measure,
        description="The most that an attempt had, in bytes; of short and small ones it is not known.",
    )
    cpu: Measure = Field(default_factory=Measure, description="CPU seconds of an attempt.")
    gpu: Measure = Field(default_factory=Measure, description="Mean use of its GPUs.")


ResultText = Annotated[Text, Field(max_length=MOST_RESULT_CHARS)]
