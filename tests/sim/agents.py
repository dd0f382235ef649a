"""What a replica does to the outside: the performers, over a network that loses, doubles and delays."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from stoker.core import job_facts as job
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, JobId, ManagedJobId, RunId
from stoker.core.instance_facts import Destroy, Destroyed, Launch, Launched, Refused
from stoker.core.machine import Event
from stoker.core.managed_task import Impossible, LaunchRun, ManagedTaskId, StopRun
from stoker.core.run_facts import TellOwner
from stoker.core.volume_facts import Kind
from stoker.engine.attachment import VolumePerformers
from stoker.engine.change import Change, of_instance, of_job, of_managed
from stoker.engine.engine import Engine
from stoker.engine.log_pump import LogPump
from stoker.engine.perform import JobPerformers
from stoker.engine.tell import Teller
from stoker.store import host as host_store
from stoker.store import instance as instance_store
from stoker.store.database import Database
from stoker.store.log import LogStore
from stoker.store.outbox import Errand
from tests.sim.host import Host
from tests.sim.net import Net, SimOrders
from tests.sim.provider import Refusal

if TYPE_CHECKING:
    from tests.sim.world import World


class Agents:
    def __init__(self, world: "World", database: Database, thawed: Callable[[], Awaitable[None]]) -> None:
        self.world, self.database = world, database
        self.engine: Engine | None = None
        self.net = Net(world, thawed)
        self.orders = SimOrders(world, database)
        self.pump = LogPump(self.net, cast(LogStore, world.logs), world.logs)
        self.volumes = VolumePerformers(database, self.net, {Kind.DUMMY: world.disks})
        self.real = JobPerformers(self.net, self.orders, self.pump, self.tell, world.now, self.volumes)
        """What the server itself does; machines without a shim are done for here."""

    async def tell(self, change: Change) -> None:
        assert self.engine is not None
        await self.engine.commit(change)

    def performers(self) -> dict[Any, Any]:
        return {
            job.StartTask: self.real.start_task,
            job.SubmitJob: self.submit_job,
            job.Warn: self.warn,
            job.AskStop: self.ask_stop,
            job.RemoveTask: self.remove_task,
            job.Unregister: self.unregister,
            job.DetachVolumes: self.real.detach_volumes,
            **self.volumes.performers(),
            Launch: self.launch,
            Destroy: self.destroy,
            LaunchRun: self.launch_run,
            StopRun: self.stop_run,
            TellOwner: self.tell_owner,
        }

    async def submit_job(self, errand: Errand, effect: job.SubmitJob) -> Change:
        host = await self._host(errand)
        if host.has_shim:
            return await self.real.submit_job(errand, effect)
        order = await self.orders.order(errand)
        taken = await self.net.call(host, partial(host.pod, order))
        return self._said(errand, job.RunnerAccepted(attempt=errand.attempt)) if taken else Change()

    async def warn(self, errand: Errand, effect: job.Warn) -> Change:
        host = await self._host(errand)
        return await self.real.warn(errand, effect) if host.has_shim else Change()

    async def ask_stop(self, errand: Errand, effect: job.AskStop) -> Change:
        host = await self._host(errand)
        if host.has_shim:
            return await self.real.ask_stop(errand, effect)
        await self.net.call(host, lambda: host.stop(errand.target, errand.fence))
        return Change()

    async def remove_task(self, errand: Errand, effect: job.RemoveTask) -> Change:
        host = await self._host(errand)
        if host.has_shim:
            return await self.real.remove_task(errand, effect)
        if not await self.net.call(host, lambda: host.hurry_away(errand.target, errand.fence)):
            raise Unavailable("the task is still ending")
        return self._said(errand, job.CleanedUp(job.Cleanup.REMOVE, attempt=errand.attempt))

    async def unregister(self, errand: Errand, effect: job.Unregister) -> Change:
        await self.world.pause(0.01, 0.5)
        if self.world.chance("gateway away", 0.1) or self.world.always("gateway never answers", errand.target, 0.05):
            raise Unavailable("the gateway does not answer")
        return self._said(errand, job.CleanedUp(job.Cleanup.UNREGISTER, attempt=errand.attempt))

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        id = InstanceId(errand.target)
        await self.world.pause(0.1, self.world.dice.choice((3.0, 3.0, 30.0)))
        mute = id not in self.world.owned and self.world.always("provider never answers", id, 0.02)
        if mute or self.world.chance("performer gave up before acting", 0.05):
            raise Unavailable("the provider does not answer")
        async with self.database.connection() as connection:
            shim = (await instance_store.get(connection, id)).shim
            if shim:
                # From now on somebody watches it, if it ever comes.
                await host_store.put(connection, id, host_store.Host("simulated", ""))
        if id in self.world.owned:
            return Change(facts=(of_instance(id, Launched("reached")),))
        try:
            handle = self.world.provider.create(id, shim)
        except Refusal as refusal:
            return Change(facts=(of_instance(id, Refused(str(refusal))),))
        await self.world.pause(0.1, 5.0)
        if self.world.chance("answer lost", 0.05):
            raise Unavailable("the provider's answer was lost")
        return Change(facts=(of_instance(id, Launched(handle)),))

    async def destroy(self, errand: Errand, effect: Destroy) -> Change:
        await self.world.pause(0.1, 3.0)
        if errand.target in self.world.owned:
            # A host of the user's is not destroyed: our agent leaves it, and takes along what it runs.
            host = self.world.hosts[errand.target]
            if not host.reachable:
                raise Unavailable("the host does not answer")
            host.clear()
        self.world.provider.destroy(errand.target)
        return Change(facts=(of_instance(InstanceId(errand.target), Destroyed()),))

    async def launch_run(self, errand: Errand, effect: LaunchRun) -> Change:
        if (lack := self.world.lack(errand.target, effect.attempt)) is not None:
            self.world.impatient(errand.target)
            await self.world.pause(0.1, 30.0)
            news = Impossible(lack=lack, attempt=effect.attempt)
            return Change(facts=(of_managed(ManagedTaskId(errand.target), ManagedJobId(errand.family), news),))
        change = await self._teller.launch_run(errand, effect)
        for birth in change.runs:
            self.world.know_run(birth.run.id, birth.run.policy)
        return change

    async def stop_run(self, errand: Errand, effect: StopRun) -> Change:
        if self.world.chance("errand delayed", 0.5):
            await self.world.pause(0.5, 30.0)
        return await self._teller.stop_run(errand, effect)

    async def tell_owner(self, errand: Errand, effect: TellOwner) -> Change:
        """A replica that was thought dead may still say what another one has said long ago."""
        if self.world.chance("news delayed", 0.4):
            await self.world.pause(0.5, 30.0)
        change = await self._teller.tell_owner(errand, effect)
        for fact in change.facts:
            if self.world.chance("news doubled", 0.5):
                late_s = self.world.dice.choice((1.0, 20.0, 60.0, 200.0))
                self.world.later(late_s, partial(self.world.deliver, fact))
        return change

    @property
    def _teller(self) -> Teller:
        assert self.engine is not None
        return Teller(self.database, self.world.clock, self.engine.committer)

    async def _host(self, errand: Errand) -> Host:
        async with self.database.connection() as connection:
            id: UUID | None = await connection.fetchval("SELECT instance_id FROM job WHERE id = $1", errand.target)
        assert id is not None
        host = self.world.hosts.get(id)
        if host is None or not host.alive:
            raise Unavailable("there is no such machine")
        return host

    @staticmethod
    def _said(errand: Errand, event: Event) -> Change:
        return Change(facts=(of_job(JobId(errand.target), RunId(errand.family), event),))
