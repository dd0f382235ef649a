"""What a run's configuration says about its life: read by tables, never changed by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from stoker.core.errors import UserError
from stoker.core.gang import OnNoCapacity
from stoker.core.ids import VolumeId
from stoker.core.limits import MOST_JOBS_IN_A_RUN
from stoker.core.reason import RetryEvent
from stoker.core.retry import Retry
from stoker.core.schedule import Overlap, Schedule
from stoker.core.utilization import Utilization
from stoker.core.warning import WarnSignal


class StopCriteria(StrEnum):
    ALL_DONE = "all-done"
    MASTER_DONE = "master-done"


class StartupOrder(StrEnum):
    """Which nodes of a replica begin first, once all of them have their machines; the others wait until those run."""

    ANY = "any"
    MASTER_FIRST = "master-first"
    WORKERS_FIRST = "workers-first"


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

    def grace_s(self, stop_duration_s: float) -> float:
        """What the agent gives a job that it stops by itself: it is gone before the server gives it up."""
        return min(stop_duration_s, self.fail_after_s - self.stop_after_s)


@dataclass(frozen=True, slots=True)
class Policy:
    replicas: int = 1
    nodes: int = 1
    priority: int = 50
    retry: Retry | None = None
    schedule: Schedule | None = None
    stop_criteria: StopCriteria = StopCriteria.ALL_DONE
    startup_order: StartupOrder = StartupOrder.ANY
    max_parallel: int | None = None
    """At most so many replicas are on machines at once."""
    only: tuple[int, ...] | None = None
    """The replicas that it has, where it was asked to do again what another run did not; None: all of them."""
    retry_of: str | None = None
    """The id of that run."""
    on_no_capacity: OnNoCapacity = OnNoCapacity.QUEUE
    disconnect: Disconnect | None = None
    stop_duration_s: float = 10.0
    max_duration_s: float | None = None
    start_timeout_s: float | None = None
    warn_signal: WarnSignal | None = None
    utilization: Utilization | None = None
    waiting_instance_s: float = 600.0
    waiting_runner_s: float = 600.0
    detach_limit_s: float = 300.0
    volumes: tuple[VolumeId, ...] = ()
    """Those that each of its jobs has while it is on a machine."""
    service: bool = False
    fleets: tuple[str, ...] | None = None
    """Names of those that it may use; None: any. One that is made anew under its name is meant again."""
    hold: bool = False
    """Nothing of it is placed until somebody releases it."""
    privileged: bool = False
    """Whoever runs it is root on its host: only where a fleet allows that."""

    def __post_init__(self) -> None:
        if self.size > MOST_JOBS_IN_A_RUN:
            raise UserError(
                f"A run of {self.replicas} replicas with {self.nodes} nodes has {self.size} jobs.",
                hint=f"A run has at most {MOST_JOBS_IN_A_RUN:,}; for more small commands use tasks.",
            )

    @property
    def size(self) -> int:
        return (self.replicas if self.only is None else len(self.only)) * self.nodes

    def numbers(self, replicas: int) -> Sequence[int]:
        """Which replicas there are when so many are wanted."""
        return range(replicas) if self.only is None else [one for one in self.only if one < replicas]

    def again(self, undone: Sequence[int], of: str) -> "Policy":
        """Of a run that does once what another one did not get done."""
        if self.stop_criteria is StopCriteria.MASTER_DONE and 0 not in undone:
            # It ends with its master, which has to be there for that.
            undone = [0, *undone]
        only = self.only if set(undone) == set(self.numbers(self.replicas)) else tuple(undone)
        return replace(self, only=only, retry_of=of, schedule=None)

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
            told = {"lines": list(value.lines), "zone": value.zone, "overlap": value.overlap.value}
            return told | {"paused": True} if value.paused else told
        case Disconnect():
            return {"stop_after_s": value.stop_after_s, "fail_after_s": value.fail_after_s}
        case WarnSignal() | Utilization():
            return asdict(value)
        case OnNoCapacity() | StopCriteria() | StartupOrder():
            return value.value
        case tuple():
            return [str(one) if isinstance(one, UUID) else one for one in value]
    return value


def _retry(value: Mapping[str, Any]) -> Retry:
    return Retry(
        on_events=frozenset(map(RetryEvent, value["on_events"])),
        duration_s=value["duration_s"],
        max_attempts=value["max_attempts"],
        on_exit_codes=frozenset(value["on_exit_codes"]),
    )


def schedule_of(value: Mapping[str, Any]) -> Schedule:
    return Schedule(tuple(value["lines"]), value["zone"], Overlap(value["overlap"]), value.get("paused", False))


_READERS: dict[str, Callable[[Any], Any]] = {
    "retry": _retry,
    "schedule": schedule_of,
    "disconnect": lambda value: Disconnect(**value),
    "warn_signal": lambda value: WarnSignal(**value),
    "utilization": lambda value: Utilization(**value),
    "on_no_capacity": OnNoCapacity,
    "stop_criteria": StopCriteria,
    "startup_order": StartupOrder,
    "only": tuple,
    "fleets": tuple,
    "volumes": lambda value: tuple(VolumeId(UUID(one)) for one in value),
}
