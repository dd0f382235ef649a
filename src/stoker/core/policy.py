"""What a run's configuration says about its life: read by tables, never changed by them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from stoker.core.errors import UserError
from stoker.core.gang import OnNoCapacity
from stoker.core.limits import MOST_JOBS_IN_A_RUN
from stoker.core.reason import RetryEvent
from stoker.core.retry import Retry
from stoker.core.schedule import Overlap, Schedule


class StopCriteria(StrEnum):
    ALL_DONE = "all-done"
    MASTER_DONE = "master-done"


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The opt-in trade: the agent stops the job by its own clock, the server gives it up later."""

    stop_after_s: float
    fail_after_s: float

    def __post_init__(self) -> None:
        if not 0 < self.stop_after_s < self.fail_after_s:
            raise UserError(
                f"disconnect.fail_after ({self.fail_after_s:g} s) must be longer than stop_after "
                f"({self.stop_after_s:g} s), and both longer than zero.",
                hint="The agent must have stopped the job before the server gives it up.",
            )


@dataclass(frozen=True, slots=True)
class Policy:
    replicas: int = 1
    nodes: int = 1
    priority: int = 50
    retry: Retry | None = None
    schedule: Schedule | None = None
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    on_no_capacity: OnNoCapacity = OnNoCapacity.QUEUE
    disconnect: Disconnect | None = None
    stop_duration_s: float = 10.0
    max_duration_s: float | None = None
    start_timeout_s: float | None = None
    waiting_instance_s: float = 600.0
    waiting_runner_s: float = 600.0
    detach_limit_s: float = 300.0
    volumes: bool = False
    service: bool = False

    def __post_init__(self) -> None:
        if self.size > MOST_JOBS_IN_A_RUN:
            raise UserError(
                f"A run of {self.replicas} replicas with {self.nodes} nodes has {self.size} jobs.",
                hint=f"A run has at most {MOST_JOBS_IN_A_RUN:,}; for more small commands use tasks.",
            )

    @property
    def size(self) -> int:
        return self.replicas * self.nodes

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults; stored with the run."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value != _DEFAULTS[name]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Policy":
        return Policy(**{name: _READERS[name](given) if name in _READERS else given for name, given in value.items()})


_DEFAULTS = {field.name: field.default for field in fields(Policy)}


def _plain(value: Any) -> Any:
    match value:
        case Retry():
            return {
                "on_events": sorted(value.on_events),
                "duration_s": value.duration_s,
                "max_attempts": value.max_attempts,
                "on_exit_codes": sorted(value.on_exit_codes),
            }
        case Schedule():
            return {"lines": list(value.lines), "zone": value.zone, "overlap": value.overlap.value}
        case Disconnect():
            return {"stop_after_s": value.stop_after_s, "fail_after_s": value.fail_after_s}
        case OnNoCapacity() | StopCriteria():
            return value.value
    return value


def _retry(value: Mapping[str, Any]) -> Retry:
    return Retry(
        on_events=frozenset(map(RetryEvent, value["on_events"])),
        duration_s=value["duration_s"],
        max_attempts=value["max_attempts"],
        on_exit_codes=frozenset(value["on_exit_codes"]),
    )


def _schedule(value: Mapping[str, Any]) -> Schedule:
    return Schedule(tuple(value["lines"]), value["zone"], Overlap(value["overlap"]))


_READERS: dict[str, Callable[[Any], Any]] = {
    "retry": _retry,
    "schedule": _schedule,
    "disconnect": lambda value: Disconnect(**value),
    "on_no_capacity": OnNoCapacity,
    "stop_criteria": StopCriteria,
}
