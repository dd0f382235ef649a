"""The server's hands and eyes: performers for the wishes of jobs and instances, and the watch over hosts."""

import asyncio
import hashlib
import json
from pathlib import Path
from uuid import UUID

import structlog

from stoker.backends.dummy.agent import SCHEME as DUMMY
from stoker.bundle.place import find_or_build
from stoker.core.block import AUTO
from stoker.core.ids import FleetId, InstanceId, JobId, derived
from stoker.core.instance_facts import S
from stoker.core.route import SSH
from stoker.engine import hint, lookout, market
from stoker.engine.attachment import VolumePerformers
from stoker.engine.batch import Batch
from stoker.engine.change import Change
from stoker.engine.host import HostPerformers
from stoker.engine.install import Installer, Parcels
from stoker.engine.log_pump import LogPump
from stoker.engine.lookout import LOOKOUT, Lookout
from stoker.engine.loop import Counts, Once
from stoker.engine.market import MARKET, Market
from stoker.engine.order import StoredOrders
from stoker.engine.perform import JobPerformers
from stoker.engine.provider import ProviderPerformers, Ways
from stoker.engine.ssh import TEND, TEND_S, SshPerformers
from stoker.engine.watch import Watch
from stoker.server import backends
from stoker.server.agents import Agents
from stoker.server.context import Context
from stoker.server.first_start import Keyring
from stoker.server.follow import Followers
from stoker.server.local_host import find_shim, host_id, instance_of, look, only_project
from stoker.server.ways import UNIX, AgentWays, Speaker
from stoker.shim.start import listening
from stoker.store import fleet as fleet_store
from stoker.store import host as host_store
from stoker.store import instance as instance_store
from stoker.transport.agents import AgentLines, runner_token
from stoker.transport.parcel import Parcel
from stoker.transport.tunnel import Tunnels
from stoker.wire.fleet import LOCAL, FleetConfiguration, to_json, to_policy

WATCH = "watch"
WATCH_S = 2.0
"""How often hosts are looked for that nobody watches."""
SHIM_S = 2.0
"""How often the shim of our own host is looked for."""
OWN_HOST = FleetConfiguration(type="fleet", name=LOCAL, backends=(LOCAL,), blocks=AUTO)
"""Until somebody applies another one."""

log = structlog.get_logger()


class Hands(Agents):
    def __init__(self, context: Context, parcels: Parcels | None = None) -> None:
        """`parcels` gives what is shipped to hosts, where that is not the bundle of what is installed."""
        self._context = context
        self._backends = backends.build(context.settings.home)
        context.dummy = self._backends.dummy
        self.tunnels = Tunnels(context.doors, self._look_after)
        speakers: dict[str, Speaker] = {
            UNIX: AgentLines(context.secret),
            SSH: AgentLines(context.secret, self.tunnels.connect),
            DUMMY: self._backends.dummy.dummy.agents,
        }
        self._lines = AgentWays(self._way, speakers)
        self._pump = LogPump(self._lines, context.logs, self)
        self._orders = StoredOrders(
            context.database, lambda id: runner_token(context.secret, id), context.settings.images
        )
        volumes = VolumePerformers(context.database, self._lines, self._backends.disks)
        jobs = JobPerformers(
            self._lines, self._orders, self._pump, lambda change: context.engine.commit(change), self._now, volumes
        )
        ways, by_name = Ways(Keyring(context.settings.config_file).project), self._backends.by_name
        hosts = HostPerformers(context.database, self._lines)
        server = hashlib.sha256(b"server" + context.secret).hexdigest()[:16]
        installer = Installer(context.database, self.tunnels, parcels or self._parcel, server)
        self._ssh = SshPerformers(
            context.database, installer, hosts, ways, self._now, lambda: context.engine.replica.epoch
        )
        machines = ProviderPerformers(context.database, by_name, hosts, ways, self._ssh)
        self._market = Market(context.database, self._now, by_name, lambda: context.engine.wake(hint.PLACEMENT))
        look = Lookout(
            context.database, lambda change: context.engine.commit(change), self._now, by_name,
            lambda: context.engine.wake(WATCH), ways,
        )  # fmt: skip
        loops: tuple[tuple[str, Once, float], ...] = (
            (WATCH, self._once, WATCH_S),
            (LOOKOUT, look.once, lookout.PERIOD_S),
            (MARKET, self._market.once, market.PERIOD_S),
            (TEND, self._ssh.tend, TEND_S),
        )
        if context.settings.local:
            loops += (("shim", self._keep_shim, SHIM_S),)
        super().__init__({**jobs.performers(), **machines.performers(), **volumes.performers()}, loops, self._market)
        self._watch: Watch | None = None
        self._joined = False
        self._making = asyncio.Lock()
        self._followers = Followers(self._lines, self._orders, self._pump, context.log_hub)

    async def start(self) -> None:
        engine = self._context.engine
        for backend in self._backends.by_name.values():
            backend.changed(self._stirred)
        self._stirred()
        engine.listeners.append(self._saw)
        if self._context.settings.local:
            await self._join_own_host()
            self._joined = True
        self._context.log_hub.wanted = self._followers.want
        engine.listeners.append(self._followers.saw)

    async def stop(self) -> None:
        self._followers.stop()
        if self._watch is not None:
            await self._watch.stop()
        await self._lines.close()
        await self.tunnels.close()
        await self._backends.close()

    def wrote(self, job_id: JobId) -> None:
        self._context.log_hub.notify(job_id)

    def _now(self) -> float:
        return self._context.engine.clock.now()

    def _stirred(self) -> None:
        """A backend says that something has changed: what that is, is asked."""
        self._context.engine.wake(LOOKOUT)
        self._context.engine.wake(MARKET)

    def _saw(self, batch: Batch) -> None:
        for moved in batch.moved:
            if moved.kind == "instance":
                if moved.after.state is S.PROVISIONING:
                    # Whatever its provider said while the launch was under way was for nobody.
                    self._context.engine.wake(LOOKOUT)
                    self._context.engine.wake(WATCH)
                elif moved.after.state is S.TERMINATED:
                    self._lines.forget(moved.after.id)
                    self.tunnels.forget(moved.after.id)
        if self._market.saw(batch.moved):
            self._context.engine.wake(MARKET)

    async def _once(self) -> Counts:
        if self._watch is None:
            engine = self._context.engine
            self._watch = Watch(
                self._context.database, engine.committer, self._lines, self._pump, lambda: engine.replica.epoch,
                pulls=self._context.pulls,
            )  # fmt: skip
        return await self._watch.once()

    def _look_after(self, id: InstanceId) -> None:
        """Somebody on that host does not listen."""
        self._ssh.silent(id)
        self._context.engine.wake(TEND)

    async def _parcel(self) -> Parcel:
        """The agents for other hosts; made when they are needed first."""
        async with self._making:
            return await asyncio.to_thread(find_or_build, self._context.settings.home)

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
        engine, id = context.engine, await self._host_id(home)
        fleet_id, spec = FleetId(derived(id, "fleet")), json.dumps(to_json(OWN_HOST))
        # First: from the moment on in which there is an instance, jobs are placed on it.
        async with context.database.transaction() as tx:
            fleet_id, policy = await fleet_store.ensure(
                tx, fleet_id, LOCAL, None, spec, to_policy(OWN_HOST), engine.clock.now()
            )
            only = await only_project(tx, info, Keyring(context.settings.config_file).project)
            await host_store.put(tx, InstanceId(id), host_store.Host(address, token), only)
        await engine.commit(Change(instances=(instance_of(info, id, fleet_id, policy.blocks, engine.clock.now()),)))
        engine.wake("errands")
        engine.wake(WATCH)

    async def _host_id(self, home: Path) -> UUID:
        """One that was drained or deleted comes back as a new instance: what has ended stays so."""
        id = await asyncio.to_thread(host_id, home)
        async with self._context.database.connection() as connection:
            ended = await instance_store.ended(connection, InstanceId(id))
        return await asyncio.to_thread(host_id, home, renewed=True) if ended else id

    async def _way(self, instance_id: InstanceId) -> tuple[str, str] | None:
        async with self._context.database.connection() as connection:
            host = await host_store.get(connection, instance_id)
        return None if host is None else (host.address, host.token)
