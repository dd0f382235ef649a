"""While somebody reads a log that is being written, its runner is asked for every piece of it at once."""

import asyncio
from functools import partial
from uuid import UUID

import structlog

from stoker.core.errors import NotFound, StokerError, UserError
from stoker.core.ids import JobId
from stoker.core.job_facts import S as J
from stoker.core.shim_task import S
from stoker.engine.agent import Agents
from stoker.engine.batch import Batch
from stoker.engine.log_pump import LogPump
from stoker.engine.perform import Orders
from stoker.server.log_hub import LogHub

POLL_S = 30.0
"""How long a runner may wait before it says that nothing was written."""
AGAIN_S = 1.0

log = structlog.get_logger()


class Followers:
    """One for each log that is read here and written now."""

    def __init__(self, agents: Agents, orders: Orders, pump: LogPump, hub: LogHub) -> None:
        self._agents, self._orders, self._pump, self._hub = agents, orders, pump, hub
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    def want(self, id: UUID) -> None:
        """Somebody began to read; a job that does not run yet is followed as soon as it does."""
        before = self._tasks.get(id)
        # One that has just ended is still in the table: its reader left in the moment in which this one came.
        if before is None or before.done():
            task = self._tasks[id] = asyncio.get_running_loop().create_task(
                self._follow(JobId(id)), name=f"follow {id}"
            )
            task.add_done_callback(partial(self._forget, id))

    def _forget(self, id: UUID, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]

    def saw(self, batch: Batch) -> None:
        for moved in batch.moved:
            if moved.kind == "job" and moved.after.state is J.RUNNING and self._hub.waits_for(moved.after.id):
                self.want(moved.after.id)

    def stop(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _follow(self, id: JobId) -> None:
        while self._hub.waits_for(id):
            try:
                place = await self._orders.place(id)
                task = await (await self._agents.shim(place)).task(id)
                if task.state is not S.RUNNING:
                    return
                await self._pump.follow(place, id, task.socket, POLL_S, lambda: self._hub.waits_for(id))
            except (NotFound, UserError):
                # Not there yet, or not any more: what is left of its log comes with its removal.
                return
            except StokerError as error:
                log.debug("a log is not followed for a moment", job=str(id), error=str(error))
                await asyncio.sleep(AGAIN_S)
            else:
                return
