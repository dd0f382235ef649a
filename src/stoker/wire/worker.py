"""What a worker of the swarm and the server say to each other. A worker only dials out.

Each request carries many tasks: `report` says what ended, began and was seen, and may claim in the same breath, so that
a short task costs one request. Times are ages by the worker's own clock, which need not agree with anybody's.
A worker numbers its claims from 1; with each heartbeat it says what it holds, and the last number whose answer it has
or does not wait for any more: what came with those and is not listed goes back.
"""

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, Strict

from stoker.core.fit import MOST_KINDS, MOST_NAME_CHARS, Room
from stoker.core.limits import (
    LONGEST_WAIT_S,
    MOST_CLAIMED,
    MOST_DURATION_S,
    MOST_GPUS,
    MOST_HELD,
    MOST_INLINE_CHARS,
    MOST_LABELS,
    MOST_REPORTED,
)
from stoker.core.quantity import whole
from stoker.core.task import State
from stoker.wire.model import Answer, Flag, Model, Whole
from stoker.wire.task import Label, Labels, ResultText, Text
from stoker.wire.time import Time

Age = Annotated[float, Strict(), Field(ge=0, le=MOST_DURATION_S)]
Attempt = Annotated[Whole, Field(ge=1, le=2**31 - 1)]
Shares = Annotated[tuple[Annotated[float, Strict(), Field(ge=0, le=1)], ...], Field(max_length=MOST_GPUS)]


class Free(Model):
    """Amounts that are free, and the free share of each GPU."""

    amounts: Annotated[
        dict[
            Annotated[str, Field(min_length=1, max_length=MOST_NAME_CHARS)],
            Annotated[float, Strict(), Field(ge=0, le=1e15)],
        ],
        Field(max_length=2 * MOST_KINDS),
    ] = Field(default_factory=dict, examples=[{"cpus": 2, "memory": 4096}])
    gpus: Shares = ()

    def to_room(self) -> Room:
        return Room({name: whole(amount) for name, amount in self.amounts.items()}, tuple(map(whole, self.gpus)))


class NewWorker(Model):
    id: UUID = Field(description="Chosen by the worker, a new one whenever it starts; said twice, it is one worker.")
    name: Annotated[Text, Field(min_length=1, max_length=200)] = Field(examples=["node-7"])
    total: Free
    group: Label | None = Field(default=None, description="It takes tasks of this group only.")
    labels: Labels = Field(default_factory=dict, max_length=MOST_LABELS)
    time_limit: Age | None = Field(default=None, description="Seconds until it ends.")
    version: Annotated[Text, Field(max_length=50)] = ""


class Registered(Answer):
    id: UUID
    token: str = Field(description="For this worker's routes, and for nothing else.")
    lease_s: float = Field(examples=[60.0], description="What it holds moves on when it is silent for so long.")
    heartbeat_s: float = Field(examples=[10.0], description="How often it should be heard.")


class Claim(Model):
    """As many tasks as fit, at most `most`; and `ahead` of the room, to be begun when others end."""

    number: Annotated[Whole, Field(ge=1, le=2**31 - 1)] = Field(description="One higher each time.")
    most: Annotated[Whole, Field(ge=1, le=MOST_CLAIMED)] = 1
    room: Free
    ahead: Annotated[Whole, Field(ge=0, le=MOST_CLAIMED)] = 0
    time_left: Age | None = Field(default=None, description="Seconds that this worker still has.")


class ClaimRequest(Claim):
    wait_s: Annotated[float, Strict(), Field(ge=0, le=LONGEST_WAIT_S)] = Field(
        default=0.0, description="How long to wait for a first task when there is none."
    )


class Work(Answer):
    """One attempt, and all that its worker needs."""

    id: UUID
    attempt: int
    name: str = ""
    command: str | tuple[str, ...]
    requested_resources: dict[str, Any]
    estimated_runtime: float | None = None
    max_termination_time: float = 10.0
    detail: dict[str, Any] = Field(
        default_factory=dict,
        description="What differs from its default: env, working_dir, stdin, alternatives, exclusive, output, "
        "output_dir, group.",
    )


class Claimed(Answer):
    tasks: tuple[Work, ...] = ()


class Held(Model):
    id: UUID
    attempt: Attempt


class Started(Held):
    ago_s: Age


class Ended(Held):
    """`stopped`: by the worker, because it was asked to; otherwise the process ended by itself."""

    exit_status: Annotated[Whole, Field(ge=-255, le=255)] | None = Field(
        default=None, description="Minus the number of the signal that ended it; none: it could not be learnt."
    )
    stopped: Flag = False
    ago_s: Age = 0.0
    ran_s: Age | None = None
    cpu_s: Annotated[float, Strict(), Field(ge=0, le=1e12)] | None = None
    memory_bytes: Annotated[float, Strict(), Field(ge=0, le=1e18)] | None = Field(
        default=None, description="The most it had; none: it ended before anybody looked, and had less than its worker."
    )
    message: Annotated[Text, Field(max_length=1000)] = ""
    result: ResultText | None = None
    stdout: Annotated[str, Field(max_length=MOST_INLINE_CHARS)] | None = Field(
        default=None, description="All of it, in base64, where it is short; what is longer was sent before."
    )
    stderr: Annotated[str, Field(max_length=MOST_INLINE_CHARS)] | None = None


class Sampled(Held):
    """Appended to the series of the attempt."""

    ago_s: Age = 0.0
    memory_bytes: Annotated[float, Strict(), Field(ge=0, le=1e18)] | None = None
    cpus: Annotated[float, Strict(), Field(ge=0, le=1e6)] | None = None
    gpu: Annotated[float, Strict(), Field(ge=0, le=MOST_GPUS)] | None = None


class WorkerReport(Model):
    """Each part may be said again: what is not this worker's any more is refused by name, and the rest is done."""

    ended: Annotated[tuple[Ended, ...], Field(max_length=MOST_REPORTED)] = ()
    started: Annotated[tuple[Started, ...], Field(max_length=MOST_REPORTED)] = ()
    given_back: Annotated[tuple[Held, ...], Field(max_length=MOST_REPORTED)] = Field(
        default=(), description="Never started: they cost no attempt and leave no record."
    )
    sampled: Annotated[tuple[Sampled, ...], Field(max_length=MOST_REPORTED)] = ()
    claim: Claim | None = Field(default=None, description="In the same transaction; does not wait.")


class Refused(Answer):
    """Not this worker's any more; with the state it is in now, where there is such a task."""

    id: UUID
    attempt: int
    state: State | None


class Reported(Answer):
    refused: tuple[Refused, ...] = ()
    tasks: tuple[Work, ...] = ()


class Heartbeat(Model):
    """Up the socket, or by POST where there is none."""

    held: Annotated[tuple[Held, ...], Field(max_length=MOST_HELD)] = ()
    number: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 0


class Beat(Answer):
    """Down the socket: the answer to a heartbeat, and at once whenever somebody cancels."""

    cancelled: tuple[Held, ...] = Field(default=(), description="To be stopped and reported with `stopped`.")
    gone: tuple[Held, ...] = Field(
        default=(), description="Not this worker's any more: to be stopped, and not reported."
    )
    renewed: bool = Field(default=False, description="The lease was renewed: this answers a heartbeat.")


class Kept(Answer):
    """How much of a stream of output is kept: the offset from which to go on. `full`: nothing more is taken."""

    size: int
    full: bool = False


class WorkerState(StrEnum):
    ACTIVE = "active"
    LEFT = "left"
    LOST = "lost"


class Worker(Answer):
    id: UUID
    name: str
    state: WorkerState
    total: dict[str, Any] = Field(default_factory=dict)
    gpus: int = 0
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    running: int = Field(default=0, description="Tasks in its hands.")
    version: str = ""
    created_at: Time
    seen_at: Time
    ends_at: Time | None = Field(default=None, description="When its own time is over.")


class WorkerPage(Answer):
    items: tuple[Worker, ...]
    next_cursor: str | None = None
