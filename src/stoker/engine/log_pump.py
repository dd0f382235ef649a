"""Brings logs from the hosts into the log store: while they are written, and to their last byte before a task goes.

While a job runs its runner is asked, and may forget what lies before an offset that was asked for; once it has ended,
its shim has the rest on disk.
A log has one pump at a time in a replica; two replicas that pump the same one do no harm, since an append that is
already there is skipped.
"""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import structlog

from stoker.core.errors import UserError
from stoker.core.ids import InstanceId, JobId
from stoker.engine.agent import Agents, Readers, Shim
from stoker.store.log import LogGap, LogStore, runner_log
from stoker.wire.frame import Piece
from stoker.wire.shim import TaskInfo

log = structlog.get_logger()

_Pull = Callable[[int], Awaitable[Piece]]


class LogPump:
    def __init__(self, agents: Agents, logs: LogStore, readers: Readers) -> None:
        self._agents, self._logs, self._readers = agents, logs, readers
        self._turns: WeakValueDictionary[JobId, asyncio.Lock] = WeakValueDictionary()

    async def drain(self, instance_id: InstanceId, job_id: JobId, socket: str) -> None:
        """What the runner has until now."""
        runner = self._agents.runner(instance_id, job_id, socket)
        await self._pump(job_id, lambda offset: runner.pull(offset, 0.0))

    async def collect(self, shim: Shim, task: TaskInfo) -> None:
        """Everything that a task left behind when it ended; unless all went well, also its runner's own log."""
        id, result = JobId(task.id), task.result
        if result is not None and result.log_end == 0:
            self._readers.wrote(id)
        else:
            end = None if result is None else result.log_end
            try:
                await self._pump(id, lambda offset: shim.log(id, offset, own=False), end=end)
            except UserError as error:
                if error.code != "log_offset":
                    raise
                # Somebody deleted it, there or here. It will not come back, and the task must be able to go.
                log.error("a part of a log is lost", task=str(id), error=str(error))
        if result is None or result.exit_code or result.failure:
            await self._pump(JobId(runner_log(id)), lambda offset: shim.log(id, offset, own=True), durable=False)

    async def follow(
        self, instance_id: InstanceId, job_id: JobId, socket: str, wait_s: float, wanted: Callable[[], bool]
    ) -> None:
        """As it is written, until it is complete or nobody wants it any more."""
        runner = self._agents.runner(instance_id, job_id, socket)
        await self._pump(job_id, lambda offset: runner.pull(offset, wait_s), wanted)

    async def _pump(
        self,
        job_id: JobId,
        pull: _Pull,
        wanted: Callable[[], bool] = lambda: False,
        *,
        end: int | None = None,
        durable: bool = True,
    ) -> None:
        """`end`: where the log is known to end. What a runner says of itself need not outlive a power cut."""
        turn = self._turns.get(job_id)
        if turn is None:
            turn = self._turns[job_id] = asyncio.Lock()
        async with turn:
            offset = await self._logs.end(job_id)
            while end is None or offset < end:
                piece = await pull(offset)
                if piece.frames:
                    try:
                        offset = await self._logs.append(job_id, offset, piece.frames, durable=durable)
                    except LogGap as gap:
                        offset = gap.end
                        continue
                    except UserError as error:
                        if error.code != "log_quota":
                            raise
                        # What was kept stays. The rest is not wanted, and the task must be able to go.
                        return
                    self._readers.wrote(job_id)
                if piece.complete and offset >= piece.next_offset:
                    break
                if not piece.frames and not wanted():
                    return
            self._readers.wrote(job_id)
