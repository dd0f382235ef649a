"""Performers of what an instance wishes, for hosts that are simply there: no provider is asked for them."""

from stoker.core.errors import NotFound, Unavailable
from stoker.core.gpu import Gpu
from stoker.core.ids import InstanceId
from stoker.core.instance_facts import Destroy, Destroyed, Launch, Launched
from stoker.core.machine import Effect
from stoker.core.quantity import whole
from stoker.core.reason import JobReason
from stoker.core.resources import Capacity
from stoker.core.shim_task import S
from stoker.engine.agent import Agents
from stoker.engine.change import Change, of_instance
from stoker.engine.errand import Performer
from stoker.store import host as host_store
from stoker.store.database import Database
from stoker.store.outbox import Errand
from stoker.wire.shim import HostInfo, Terminate

LEAVING_S = 10.0


class HostPerformers:
    def __init__(self, database: Database, agents: Agents) -> None:
        self._database, self._agents = database, agents

    def performers(self) -> dict[type[Effect], Performer]:
        return {Launch: self.launch, Destroy: self.destroy}

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        """There already; that its shim answers is told by whoever watches it."""
        id = InstanceId(errand.target)
        async with self._database.connection() as connection:
            host = await host_store.get(connection, id)
        if host is None:
            raise Unavailable(f"Nobody has said how to reach instance {id}.")
        return Change(facts=(of_instance(id, Launched(host.address)),))

    async def destroy(self, errand: Errand, effect: Destroy) -> Change:
        """A host of the user's stays: what we run on it goes."""
        id = InstanceId(errand.target)
        await self.end_tasks(id, errand.fence)
        return Change(facts=(of_instance(id, Destroyed()),))

    async def end_tasks(self, id: InstanceId, fence: int) -> None:
        """Until none is left there."""
        shim = await self._agents.shim(id)
        changes = await shim.changes("", 0.0)
        for task in changes.tasks:
            try:
                ended = await shim.terminate(task.id, _leaving(fence), LEAVING_S)
            except NotFound:
                continue
            if ended.state is not S.TERMINATED:
                raise Unavailable("Tasks on it are still ending.")
            await shim.remove(task.id, fence)


def capacity_of(host: HostInfo) -> Capacity:
    gpus = tuple(Gpu(gpu.index, gpu.name, gpu.memory_mb, gpu.vendor) for gpu in host.gpus)
    return Capacity(whole(host.cpus), host.memory_mb, host.disk_mb, gpus)


def _leaving(fence: int) -> Terminate:
    """Whoever is still there hears it from the task, should it be faster than its machine's own word."""
    return Terminate(fence=fence, reason=JobReason.INTERRUPTED_BY_NO_CAPACITY, message="its machine left")
