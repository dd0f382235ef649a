"""The server's hands and eyes: performers for the wishes of jobs and instances, and the watch over hosts."""

import asyncio

import structlog

from stoker.core.ids import FleetId, InstanceId, JobId, derived
from stoker.engine.change import Change
from stoker.engine.host import HostPerformers
from stoker.engine.log_pump import LogPump
from stoker.engine.loop import Counts, Once
from stoker.engine.order import StoredOrders
from stoker.engine.perform import JobPerformers
from stoker.engine.watch import Watch
from stoker.server.agents import Agents
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.follow import Followers
from stoker.server.local_host import find_shim, host_id, instance_of, look, only_project
from stoker.shim.start import listening
from stoker.store import fleet as fleet_store
from stoker.store import host as host_store
from stoker.transport.local import LocalAgents, runner_token

WATCH = "watch"
WATCH_S = 2.0
"""How often hosts are looked for that nobody watches."""
SHIM_S = 2.0
"""How often the shim of our own host is looked for."""
LOCAL = "local"
SPEC = '{"blocks": "auto"}'

log = structlog.get_logger()


class Hands(Agents):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._lines = LocalAgents(self._way, context.secret)
        self._pump = LogPump(self._lines, context.logs, self)
        self._orders = StoredOrders(context.database, lambda id: runner_token(context.secret, id))
        jobs = JobPerformers(self._lines, self._orders, self._pump, lambda change: context.engine.commit(change))
        hosts = HostPerformers(context.database, self._lines)
        loops: tuple[tuple[str, Once, float], ...] = ((WATCH, self._once, WATCH_S),)
        if context.settings.local:
            loops += (("shim", self._keep_shim, SHIM_S),)
        super().__init__({**jobs.performers(), **hosts.performers()}, loops)
        self._watch: Watch | None = None
        self._joined = False
        self._followers = Followers(self._lines, self._orders, self._pump, context.log_hub)

    async def start(self) -> None:
        if self._context.settings.local:
            await self._join_own_host()
            self._joined = True
        self._context.log_hub.wanted = self._followers.want
        self._context.engine.listeners.append(self._followers.saw)

    async def stop(self) -> None:
        self._followers.stop()
        if self._watch is not None:
            await self._watch.stop()
        await self._lines.close()

    def wrote(self, job_id: JobId) -> None:
        self._context.log_hub.notify(job_id)

    async def _once(self) -> Counts:
        if self._watch is None:
            engine = self._context.engine
            self._watch = Watch(
                self._context.database, engine.committer, self._lines, self._pump, lambda: engine.replica.epoch
            )
        return await self._watch.once()

    async def _keep_shim(self) -> Counts:
        """It outlives us and we outlive it: one that was killed is started again, and finds its tasks."""
        home = self._context.settings.home / "shim"
        if not self._joined or listening(home):
            return Counts()
        log.warning("the shim of this host is away and is started again")
        await find_shim(home)
        return Counts(1)

    async def _join_own_host(self) -> None:
        """The same home is the same instance, however often its server starts."""
        context, home = self._context, self._context.settings.home / "shim"
        address, token = await find_shim(home)
        info = await look(address, token)
        id = await asyncio.to_thread(host_id, home)
        fleet_id = FleetId(derived(id, "fleet"))
        engine = context.engine
        # First: from the moment on in which there is an instance, jobs are placed on it.
        async with context.database.transaction() as tx:
            fleet_id = await fleet_store.ensure(tx, fleet_id, LOCAL, None, SPEC, engine.clock.now())
            only = await only_project(tx, info, Keyring(context.settings.config_file).project)
            await host_store.put(tx, InstanceId(id), host_store.Host(address, token), only)
        await engine.commit(Change(instances=(instance_of(info, id, fleet_id, engine.clock.now()),)))
        engine.wake("errands")
        engine.wake(WATCH)

    async def _way(self, instance_id: InstanceId) -> tuple[str, str] | None:
        async with self._context.database.connection() as connection:
            return await host_store.get(connection, instance_id)
