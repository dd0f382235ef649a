"""A task's runner as the shim sees it: a process that may be older than we are, and that is not our child.

It says who it is in `runner.pid` (process, when it started, boot of the host), so a number that was given to another
process since is not taken for it. Whether one exists that has not said so yet, the kernel knows: the shim listens on
the runner's socket before the fork, so somebody holds that socket exactly as long as a runner is on its way or there.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.core.errors import Broken
from stoker.runner.identity import Identity
from stoker.runner.listening import held
from stoker.shim.limits import RUNNER_BORN_S
from stoker.wire.model import Order
from stoker.wire.runner import Stop

_BORN_LOOK_S = 0.01
_ASK_S = 5.0


class Runner:
    """A living runner. `ended` is called once, when it is not any more."""

    def __init__(self, pid: int, descriptor: int, ended: Callable[[], None]) -> None:
        self.pid, self._descriptor, self._ended = pid, descriptor, ended
        self.gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._exited)

    def signal(self, number: signal.Signals) -> None:
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    async def leaves(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.gone.wait()
        return self.gone.is_set()

    def close(self) -> None:
        """We look away; whatever it does goes on."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _exited(self) -> None:
        self.close()
        self.gone.set()
        self._ended()


def hold(pid: int, ended: Callable[[], None]) -> Runner | None:
    """The process that was just forked."""
    try:
        return Runner(pid, os.pidfd_open(pid), ended)
    except ProcessLookupError:
        return None


def find(pid_file: Path, ended: Callable[[], None]) -> Runner | None:
    """The runner that wrote its name there, if it still lives."""
    identity = Identity.read(pid_file)
    if identity is None or not identity.alive():
        return None
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    # Once more: now its number cannot be given to another process unnoticed.
    if not identity.alive():
        os.close(descriptor)
        return None
    return Runner(identity.pid, descriptor, ended)


async def await_birth(pid_file: Path, path: str, ended: Callable[[], None]) -> Runner | None:
    """The runner of this task, also when its fork was asked for by a shim that died since; None: there is none."""
    deadline = asyncio.get_running_loop().time() + RUNNER_BORN_S
    while True:
        expected = held(path)
        # In this order: one that is born in between is seen by its name.
        if Identity.read(pid_file) is not None:
            return find(pid_file, ended)
        if not expected:
            return None
        if asyncio.get_running_loop().time() > deadline:
            raise Broken("A runner was forked, and shows no sign of life.", code="runner_silent")
        await asyncio.sleep(_BORN_LOOK_S)


async def ask_to_stop(path: str, token: str, order: Stop) -> bool:
    """Whether it will."""
    return await tell(path, token, "/stop", order)


async def tell(path: str, token: str, route: str, order: Order) -> bool:
    """Whether it took it. One short request does not deserve a client."""
    body = order.model_dump_json().encode()
    head = (
        f"POST {route} HTTP/1.1\r\nHost: runner\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(_ASK_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(head.encode() + body)
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status.split(b" ")[1:2] == [b"202"]
