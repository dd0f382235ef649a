"""Shims and runners as the engine calls them, over whatever connects to their sockets."""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from uuid import UUID

from stoker.core.ids import InstanceId, JobId
from stoker.transport.http import Connect, Line, here
from stoker.wire.frame import Piece
from stoker.wire.runner import Deadline, Header, Health, JobOrder, Stop
from stoker.wire.shim import Changes, HostInfo, TaskInfo, TaskOrder, Terminate, VolumeInfo, VolumeOrder

MAKE_S = 20.0
"""To format a volume takes a while; it is asked for again after this."""
MOST_RUNNERS = 256
"""Lines kept open to runners; the one that was silent for longest is closed first."""


def runner_token(secret: bytes, job_id: JobId) -> str:
    """Every replica can make it, and no job can make another job's."""
    return hmac.new(secret, job_id.bytes, hashlib.sha256).hexdigest()


def _here(instance_id: InstanceId) -> Connect:
    return here


class AgentLines:
    """Addresses are `unix:PATH` where the sockets are those of this host, which they are unless `connect` says how
    those of an instance are reached."""

    def __init__(self, secret: bytes, connect: Callable[[InstanceId], Connect] = _here) -> None:
        self._secret, self._connect = secret, connect
        self._shims: dict[InstanceId, ShimLine] = {}
        self._runners: OrderedDict[JobId, RunnerLine] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def shim(self, instance_id: InstanceId, path: str, token: str) -> "ShimLine":
        shim = self._shims[instance_id] = ShimLine(Line(path, token, connect=self._connect(instance_id)))
        return shim

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> "RunnerLine":
        known = self._runners.get(job_id)
        if known is None or known.socket != socket:
            known = self._runners[job_id] = RunnerLine(
                socket, runner_token(self._secret, job_id), self._connect(instance_id)
            )
        self._runners.move_to_end(job_id)
        while len(self._runners) > MOST_RUNNERS:
            _, oldest = self._runners.popitem(last=False)
            self._close(oldest.line)
        return known

    def forget(self, instance_id: InstanceId) -> None:
        """The machine is gone; lines to its runners are closed in their turn."""
        if (shim := self._shims.pop(instance_id, None)) is not None:
            self._close(shim.line)

    async def close(self) -> None:
        for shim in self._shims.values():
            await shim.line.close()
        for runner in self._runners.values():
            await runner.line.close()

    def _close(self, line: Line) -> None:
        closing = asyncio.get_running_loop().create_task(line.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class ShimLine:
    def __init__(self, line: Line) -> None:
        self.line = line

    async def host(self) -> HostInfo:
        return await self.line.ask(HostInfo, "GET", "/host")

    async def submit(self, order: TaskOrder) -> TaskInfo:
        return await self.line.ask(TaskInfo, "POST", "/tasks", order)

    async def task(self, id: UUID) -> TaskInfo:
        return await self.line.ask(TaskInfo, "GET", f"/tasks/{id}")

    async def terminate(self, id: UUID, order: Terminate, wait_s: float) -> TaskInfo:
        path, params = f"/tasks/{id}/terminate", {"wait_s": wait_s}
        return await self.line.ask(TaskInfo, "POST", path, order, params=params, wait_s=wait_s)

    async def remove(self, id: UUID, fence: int) -> None:
        await self.line.raw("DELETE", f"/tasks/{id}", params={"fence": fence})

    async def make_volume(self, order: VolumeOrder) -> VolumeInfo:
        return await self.line.ask(VolumeInfo, "POST", "/volumes", order, wait_s=MAKE_S)

    async def remove_volume(self, id: UUID, fence: int) -> None:
        await self.line.raw("DELETE", f"/volumes/{id}", params={"fence": fence})

    async def changes(self, cursor: str, wait_s: float) -> Changes:
        params = {"cursor": cursor, "wait_s": wait_s}
        return await self.line.ask(Changes, "GET", "/changes", params=params, wait_s=wait_s)

    async def log(self, id: UUID, offset: int, *, own: bool) -> Piece:
        params = {"offset": offset, "own": "true" if own else "false"}
        return _piece(*await self.line.raw("GET", f"/tasks/{id}/log", params=params))


class RunnerLine:
    def __init__(self, socket: str, token: str, connect: Connect = here) -> None:
        self.socket = socket
        self.line = Line(socket, token, connections=4, connect=connect)

    async def run(self, order: JobOrder) -> None:
        await self.line.ask(Health, "POST", "/job", order)

    async def stop(self, order: Stop) -> None:
        await self.line.raw("POST", "/stop", order)

    async def set_deadline(self, order: Deadline) -> None:
        await self.line.raw("POST", "/deadline", order)

    async def pull(self, offset: int, wait_s: float) -> Piece:
        params = {"offset": offset, "wait_s": wait_s}
        return _piece(*await self.line.raw("GET", "/pull", params=params, wait_s=wait_s))


def _piece(frames: bytes, headers: Mapping[str, str]) -> Piece:
    return Piece(frames, int(headers[Header.NEXT]), headers.get(Header.COMPLETE) == "true")
