"""One attempt at a task in this worker's hands, from its claim until the server has taken its end."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from uuid import UUID

from stoker.core.fit import Amounts
from stoker.core.limits import MOST_RESULT_CHARS
from stoker.wire.worker import Ended, Held, Work
from stoker.worker.limits import INLINE_BYTES
from stoker.worker.place import Pair

Key = tuple[UUID, int]
MOST_MESSAGE_CHARS: Final = 1_000


class Why(Enum):
    """Why a worker stops a task."""

    CANCELLED = "It was cancelled."
    GONE = "It is not this worker's any more."
    LEAVING = "Its worker was told to stop."
    TIME_OVER = "The time of its worker was over."
    MEMORY_OVER = "It took more memory than it had asked for:"
    LEASE_OVER = "Its worker could not renew its lease, and the task is exclusive."


@dataclass(slots=True, eq=False)
class Attempt:
    """Times are by the monotonic clock."""

    work: Work
    spare: bool
    """It was claimed ahead of the room."""
    queued_at: float
    text: str
    """Its id, as text."""
    options: Sequence[Amounts]
    shape: tuple[object, ...]
    """Those that want the same have the same."""
    wanted: Amounts = field(default_factory=dict)
    """Which of the options it got."""
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    pid: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0
    pair: Pair | None = None
    announced: bool = False
    stopping: Why | None = None
    killed: bool = False
    followed: bool = False
    """Its output is sent by pieces."""
    status: int | None = None
    cpu_s: float | None = None
    memory_bytes: float | None = None
    message: str = ""
    result: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""

    @classmethod
    def of(cls, work: Work, now: float, *, spare: bool) -> "Attempt":
        options = (work.requested_resources,)
        if work.detail:
            options = (work.requested_resources, *work.detail.get("alternatives", ()))
        shape = tuple([item for option in options for item in option.items()])
        return cls(work, spare, now, str(work.id), options, shape)

    @property
    def key(self) -> Key:
        return self.work.id, self.work.attempt

    @property
    def detail(self) -> dict[str, Any]:
        return self.work.detail

    @property
    def exclusive(self) -> bool:
        return bool(self.work.detail) and bool(self.work.detail.get("exclusive"))

    @property
    def grace_s(self) -> float:
        return self.work.max_termination_time

    @property
    def weight(self) -> int:
        """About how many bytes the report of its end takes."""
        return 300 + (len(self.stdout) + len(self.stderr)) * 4 // 3 + len(self.result or "")

    def held(self) -> Held:
        return Held(id=self.work.id, attempt=self.work.attempt)

    def told(self, now: float) -> Ended:
        """The report of its end."""
        return Ended(
            id=self.work.id,
            attempt=self.work.attempt,
            exit_status=self._status(),
            stopped=self.stopping is Why.CANCELLED,
            ago_s=max(0.0, now - self.ended_at),
            ran_s=max(0.0, self.ended_at - self.began_at) if self.pid else None,
            cpu_s=self.cpu_s,
            memory_bytes=self.memory_bytes,
            message=self._message(),
            result=self.result,
            stdout=b64encode(self.stdout).decode() if self.stdout else None,
            stderr=b64encode(self.stderr).decode() if self.stderr else None,
        )

    def _status(self) -> int | None:
        if self.stopping is Why.CANCELLED:
            # What it says of itself counts as long as it was asked only.
            return None if self.killed else self.status
        if self.stopping is not None and self.status == 0:
            # It was not done, however politely it went.
            return None
        return self.status

    def _message(self) -> str:
        own = self.stopping is not None and self.stopping is not Why.CANCELLED
        said = f"{self.stopping.value if own and self.stopping else ''} {self.message}".strip()
        return said.replace("\0", "?")[:MOST_MESSAGE_CHARS]

    def keep_output(self, begin: Sequence[bytes]) -> bool:
        """Takes what travels with its end; whether that is all."""
        self.stdout, self.stderr = begin
        if len(self.stdout) <= INLINE_BYTES and len(self.stderr) <= INLINE_BYTES:
            return True
        self.stdout = self.stderr = b""
        return False

    def keep_result(self, raw: bytes) -> None:
        text = raw.decode(errors="replace").replace("\0", "�")
        if len(text) > MOST_RESULT_CHARS:
            self.message = f"{self.message} Its result is longer than {MOST_RESULT_CHARS} characters.".strip()
            text = text[:MOST_RESULT_CHARS]
        self.result = text
