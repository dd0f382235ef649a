"""Runs as the API takes and shows them."""

from typing import Any, Self
from uuid import UUID

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from stoker.core.limits import MOST_RUNS_AT_ONCE
from stoker.core.reason import RunReason
from stoker.core.run_facts import S as RunStatus
from stoker.wire.configuration import TaskConfiguration
from stoker.wire.job import Job
from stoker.wire.model import Answer, Flag, Model, Whole
from stoker.wire.schedule import Schedule
from stoker.wire.time import Time


class Counts(Answer):
    """Its jobs, each once: by its latest submission. One that is ending counts as what it will be."""

    total: int = Field(default=0, examples=[100])
    waiting: int = Field(default=0, examples=[51], description="For a machine.")
    starting: int = 0
    running: int = Field(default=0, examples=[10])
    done: int = Field(default=0, examples=[37])
    retrying: int = Field(default=0, description="Failed, and will be tried again.")
    failed: int = Field(default=0, examples=[2])
    stopped: int = Field(default=0, description="By a person, a limit, or because another failed.")


class Run(Answer):
    id: UUID
    name: str = Field(examples=["train"])
    project: str = Field(examples=["main"])
    user: str = Field(examples=["admin"], description="Who submitted it.")
    type: str = Field(examples=["task"])
    status: RunStatus = Field(examples=["RUNNING"])
    status_message: str = Field(default="", examples=["exited with 3"], description="For people.")
    termination_reason: RunReason | None = None
    exit_code: int | None = Field(default=None, description="Of the job that decided the outcome.")
    submitted_at: Time
    started_at: Time | None = Field(default=None, description="When its first job began to run.")
    finished_at: Time | None = Field(default=None, description="When the last of its programs ended.")
    held: bool = Field(default=False, description="Nothing of it is placed until it is released.")
    schedule: Schedule | None = Field(default=None, description="Where it has one.")
    version: int = Field(examples=[4], description="Grows with every change.")
    configuration: dict[str, Any] | None = Field(
        default=None, description="None in lists. Values of `env` are shown to its user and to managers of the project."
    )
    counts: Counts = Field(default_factory=Counts, description="Its jobs by what has become of them.")
    retry_of: UUID | None = Field(default=None, description="The run of which it does again what did not get done.")
    jobs: tuple[Job, ...] = Field(default=(), description="Empty in lists; of a large run the first hundred.")


class RunPage(Answer):
    items: tuple[Run, ...]
    next_cursor: str | None = None


class RunList(Answer):
    items: tuple[Run, ...]


class Expected(Model):
    """The run of that name that the person has seen."""

    id: UUID
    version: Whole


class Submit(Model):
    """One configuration, or many that are accepted all or none."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"configuration": {"type": "task", "name": "hello", "commands": ["echo hello"]}}],
            "anyOf": [{"required": ["configuration"]}, {"required": ["configurations"]}],
        }
    )

    configuration: TaskConfiguration | None = None
    configurations: tuple[TaskConfiguration, ...] | None = Field(
        default=None, min_length=1, max_length=MOST_RUNS_AT_ONCE
    )
    expected: Expected | None = Field(
        default=None,
        description="The latest run of that name, as it was seen: another one, or a later version, is refused. "
        "An unfinished one is changed in place where that may be.",
    )

    @model_validator(mode="after")
    def _one_or_many(self) -> Self:
        if (self.configuration is None) == (self.configurations is None):
            raise PydanticCustomError("submit", "expected either configuration or configurations", {"hint": ""})
        if self.expected is not None and (self.configuration is None or self.configuration.name is None):
            raise PydanticCustomError("submit", "expected is for a single configuration with a name", {"hint": ""})
        return self

    @property
    def all(self) -> tuple[TaskConfiguration, ...]:
        return self.configurations or ((self.configuration,) if self.configuration else ())


class Stop(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"abort": False}]})

    abort: Flag = Field(default=False, description="Without grace.")


class StopMany(Model):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"runs": ["train", "hello"]}],
            "anyOf": [{"required": ["runs"]}, {"required": ["all"], "properties": {"all": {"const": True}}}],
        }
    )

    runs: tuple[str, ...] = Field(
        default=(), max_length=MOST_RUNS_AT_ONCE, description="Names, or ids or their beginnings."
    )
    all: Flag = Field(default=False, description="Every unfinished run of the project that you may stop.")
    abort: Flag = False

    @model_validator(mode="after")
    def _some_or_all(self) -> Self:
        if bool(self.runs) == self.all:
            raise PydanticCustomError("stop", "expected either runs or all", {"hint": ""})
        return self


class Reason(Answer):
    """What one instance says."""

    instance: UUID
    name: str = Field(examples=["local-9c41ab"])
    sentence: str = Field(examples=["needs 8 GB of memory, has 4 GB"])


class OfferReason(Answer):
    """What stands against one machine that could be launched."""

    offer: str = Field(examples=["a100x8 at dummy/eu-1 (spot)"])
    price: float = Field(examples=[2.5], description="An hour.")
    penalty: float = Field(default=0, examples=[0], description="For launches of it that failed lately; it fades.")
    sentence: str = Field(examples=["the fleet takes no spot machines"])


class Why(Answer):
    """Why a run waits, or that it does not. Of a run of several replicas it is told by the first that waits."""

    sentence: str = Field(examples=["train waits: needs 1 CPU, local-9c41ab has 0.5 of 2 CPUs free."])
    code: str = Field(default="", examples=["busy"])
    needs: float = Field(default=0, examples=[16], description="In blocks, unless `limit` names something else.")
    has: float = Field(default=0, examples=[8])
    limit: str = Field(default="", examples=[""], description="What is too small everywhere, such as cpu or memory.")
    reasons: tuple[Reason, ...] = ()
    more: int = Field(default=0, description="Instances whose reason is not listed.")
    offers: tuple[OfferReason, ...] = Field(default=(), description="Machines that could be launched, cheapest first.")
    more_offers: int = Field(default=0, description="Offers that are not listed.")
    place: int | None = Field(default=None, description="In the queue, from 1.")
    waiting: int | None = Field(default=None, description="How many wait.")
    replicas: tuple[int, ...] = Field(default=(), description="Which replicas of it wait; the first hundred.")
    replicas_waiting: int = Field(default=0, description="How many of its replicas wait.")
    next_at: Time | None = Field(default=None, description="When it is tried again, where that is known.")
    next: str = Field(default="", examples=["as soon as something changes"], description="When it is tried again.")
