"""What the runner of a task wrote down: how its commands ended, how far its log goes. Both runtimes read the same."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from pydantic import ValidationError

from stoker.core.shim_task import Exited
from stoker.runner.place import Place
from stoker.shim import log, plain
from stoker.wire.runner import Result

RESULT_BYTES: Final = 1024 * 1024
RESULT_LOOK_S: Final = 0.25
"""A runner tells when there is a result; what it told may be lost."""


class InThread(Protocol):
    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Awaitable[Any]: ...


class Written:
    def __init__(self, place: Place, in_thread: InThread) -> None:
        self._place, self._in_thread = place, in_thread
        self._stirred = asyncio.Event()
        self._log = log.LogEnd(place.log)
        self.result: Result | None = None

    @property
    def gone(self) -> bool:
        """There is no runner (any more), as far as we know."""
        raise NotImplementedError

    @property
    def has_job(self) -> bool:
        """Its runner has taken one."""
        return self._place.order.exists()

    @property
    def log_end(self) -> int:
        return self._log.end if self.result is None else self.result.log_end

    def look(self) -> None:
        """Reads the result, once there is one."""
        if self.result is not None:
            return
        with suppress(FileNotFoundError):
            try:
                self.result = Result.model_validate_json(plain.read(self._place.result, RESULT_BYTES))
            except ValidationError:
                # Written by an atomic replacement, so a disk must have spoilt it: the outcome is not known.
                return
            self._log.end = self.result.log_end
            self._stirred.set()

    def look_at_log(self) -> None:
        if self.result is None:
            self._log.look()

    async def exited(self, result: Result) -> Exited:
        message = result.message
        if result.exit_code and not message:
            message = await self._in_thread(log.tail, self._place.log)
        return Exited(result.exit_code, message, result.oom)

    async def _result_within(self, limit_s: float) -> None:
        """Returns when there is a result, or nobody who could write one."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while self.result is None and not self.gone:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            self._stirred.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, RESULT_LOOK_S)):
                    await self._stirred.wait()
            self.look()
