"""What a script learns about swarm tasks: how many there are in each state, and how each one ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from stoker.client import task as tasks
from stoker.client.client import Client, Json

FIELDS: Final = ("id", "name", "state", "held", "exit_status", "retry_count", "labels", "execution_info")


@dataclass(frozen=True)
class Measure:
    """Of all attempts that ended. Percentiles are right within five percent."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Statistics:
    """Of all tasks, of a group, of a label, or of some."""

    total: int
    states: Mapping[str, int]
    succeeded: int
    failed: int
    held: int
    retries: int
    lost: int
    exit_codes: Mapping[int, int]
    throughput: float
    """Tasks that ended in a second, over the last minute."""
    seconds_left: float | None
    wait: Measure = field(default_factory=Measure)
    """Seconds from available to claimed."""
    run_time: Measure = field(default_factory=Measure)
    memory: Measure = field(default_factory=Measure)
    """The most that an attempt had, in bytes."""
    cpu: Measure = field(default_factory=Measure)
    gpu: Measure = field(default_factory=Measure)

    @property
    def cancelled(self) -> int:
        return self.states.get("cancelled", 0)

    @property
    def left(self) -> int:
        """How many have not ended; held ones among them."""
        return tasks.left({"total": self.total, "states": self.states})

    @property
    def ok(self) -> bool:
        """Every one has ended, and well."""
        return self.succeeded == self.total

    @classmethod
    def of(cls, told: Json) -> "Statistics":
        said: dict[str, Any] = {one.name: told[one.name] for one in fields(cls) if one.name in told}
        said["exit_codes"] = {int(code): count for code, count in said["exit_codes"].items()}
        for name in ("wait", "run_time", "memory", "cpu", "gpu"):
            said[name] = _measure(said.get(name) or {})
        return cls(**said)


def _measure(told: Json) -> Measure:
    return Measure(**{one.name: told[one.name] for one in fields(Measure) if one.name in told})


@dataclass(frozen=True)
class Result:
    """One task, as it was when it was asked for."""

    id: str
    name: str
    state: str
    held: str
    exit_status: int | None
    """0 to 255, or minus the number of the signal that ended it; None: it never ended by itself, or is a barrier."""
    attempts: int
    labels: Mapping[str, str]
    value: str | None
    """What it wrote into the file $STOKER_RESULT."""
    message: str
    _client: Client = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.state in tasks.ENDED

    @property
    def ok(self) -> bool:
        """It ended well; a barrier, when it was reached."""
        return self.state == "terminated" and (self.exit_status == 0 or not self.attempts)

    @property
    def stdout(self) -> bytes:
        """Of its latest attempt; asked for each time it is read."""
        return self._written("stdout")

    @property
    def stderr(self) -> bytes:
        return self._written("stderr")

    def _written(self, stream: str) -> bytes:
        return b"".join(tasks.outputs(self._client, self.id, stream=stream)) if self.attempts else b""

    @classmethod
    def of(cls, told: Json, client: Client) -> "Result":
        info = told.get("execution_info") or {}
        return cls(
            id=told["id"],
            name=told.get("name", ""),
            state=told["state"],
            held=told.get("held", ""),
            exit_status=told.get("exit_status"),
            attempts=told.get("retry_count", 0),
            labels=told.get("labels") or {},
            value=info.get("result"),
            message=info.get("message", ""),
            _client=client,
        )
