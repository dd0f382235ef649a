"""Performers of what instances wish whose hosts are reached by SSH, and the loop that looks after their agents."""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import structlog

from stoker.core.block import divide
from stoker.core.errors import StokerError, Unavailable, UserError
from stoker.core.ids import InstanceId
from stoker.core.instance_facts import UP, Destroyed, Instance, Launched, S
from stoker.engine.agent import NO_WAY
from stoker.engine.change import Change, of_instance
from stoker.engine.host import HostPerformers, capacity_of
from stoker.engine.install import Installed, Installer
from stoker.engine.loop import Counts
from stoker.engine.progress import REMOVE, Progress
from stoker.engine.provider import Ways
from stoker.store import fleet as fleet_store
from stoker.store import instance as instance_store
from stoker.store import ssh as ssh_store
from stoker.store.database import Database
from stoker.store.outbox import Errand
from stoker.store.ssh import SshHost

TEND: Final = "tend"
TEND_S: Final = 5.0
AT_ONCE: Final = 8
"""Hosts whose agents are brought up to date at the same time."""
AGAIN_S: Final = 5.0
"""After it went wrong."""

log = structlog.get_logger()


class SshPerformers:
    def __init__(
        self,
        database: Database,
        installer: Installer,
        hosts: HostPerformers,
        ways: Ways,
        now: Callable[[], float],
        epoch: Callable[[], int],
    ) -> None:
        self._database, self._installer, self._hosts, self._ways = database, installer, hosts, ways
        self._now, self._epoch = now, epoch
        self._turns: WeakValueDictionary[InstanceId, asyncio.Lock] = WeakValueDictionary()
        self._tended: dict[InstanceId, float] = {}
        """When each is looked after again; for ever, once it is as it should be."""

    async def launch(self, errand: Errand, instance: Instance) -> Change:
        async with self._turn(instance.id):
            host = await self._host(instance.id)
            if host is None or not host.wanted:
                raise Unavailable("Its fleet does not name this host any more.")
            installed = await self._install(instance.id, host)
        blocks = fleet_store.policy_of(host.policy).blocks_of(instance)
        capacity = capacity_of(installed.info)
        self._tended[instance.id] = float("inf")
        try:
            total = divide(capacity, 1 if blocks is None else blocks)
        except UserError as error:
            raise Unavailable(error.sentence, hint=error.hint) from None
        return Change(facts=(of_instance(instance.id, Launched(host.place, capacity, total)),))

    async def destroy(self, errand: Errand, instance: Instance) -> Change:
        """The host stays; what we run on it goes, and then our agents with all they have left."""
        gone = Change(facts=(of_instance(instance.id, Destroyed()),))
        async with self._turn(instance.id):
            host = await self._host(instance.id)
            if host is None:
                return gone
            if host.touched:
                progress = Progress(self._database, host, self._now)
                async with progress.step(REMOVE):
                    await self._end_tasks(errand, instance.id)
                    await self._installer.uninstall(instance.id, host)
                await progress.ended()
            async with self._database.connection() as connection:
                await ssh_store.forget(connection, host)
        self._tended.pop(instance.id, None)
        return gone

    async def tend(self) -> Counts:
        """Agents of another version are replaced; a shim that is gone while its host is there is started again."""
        async with self._database.connection() as connection:
            ids = await ssh_store.tended(connection, self._epoch())
        now = self._now()
        due = [id for id in ids if self._tended.get(id, 0.0) <= now]
        self._tended = {id: at for id, at in self._tended.items() if id in ids}
        await asyncio.gather(*(self._look_after(id) for id in due[:AT_ONCE]))
        return Counts(len(due), again_after_s=0.05 if len(due) > AT_ONCE else None)

    def silent(self, id: InstanceId) -> None:
        """It or its shim cannot be reached: what is the matter there is looked at."""
        if self._tended.get(id) == float("inf"):
            self._tended[id] = 0.0

    async def _look_after(self, id: InstanceId) -> None:
        try:
            async with self._turn(id):
                if not await self._installer.current(id):
                    await self._renew(id)
        except StokerError as error:
            log.info("a host is looked after later", instance=str(id), error=str(error))
            self._tended[id] = self._now() + AGAIN_S
            await self._note(id, str(error))
        else:
            self._tended[id] = float("inf")
            await self._note(id, "")

    async def _note(self, id: InstanceId, trouble: str) -> None:
        """For people: that it is silent they see, and why, whoever tried to reach it knows."""
        async with self._database.connection() as connection:
            await ssh_store.set_trouble(connection, id, trouble)

    async def _renew(self, id: InstanceId) -> None:
        host = await self._host(id)
        async with self._database.connection() as connection:
            instance = await instance_store.get(connection, id)
        if host is not None and instance.state in (*UP, S.PROVISIONING):
            await self._install(id, host)
            log.info("the agents of a host were brought up to date", instance=str(id), host=host.place)

    async def _install(self, id: InstanceId, host: SshHost) -> Installed:
        progress = Progress(self._database, host, self._now)
        installed = await self._installer.install(id, host, progress)
        async with self._database.transaction() as tx:
            await self._ways.note(tx, id, installed.way)
        await progress.ended()
        return installed

    async def _end_tasks(self, errand: Errand, id: InstanceId) -> None:
        try:
            await self._installer.revive(id)
            await self._hosts.end_tasks(id, errand.fence)
        except StokerError as error:
            # Whose agents never ran has no task.
            if error.code != NO_WAY:
                raise

    async def _host(self, id: InstanceId) -> SshHost | None:
        async with self._database.connection() as connection:
            return await ssh_store.get(connection, id)

    def _turn(self, id: InstanceId) -> asyncio.Lock:
        turn = self._turns.get(id)
        if turn is None:
            turn = self._turns[id] = asyncio.Lock()
        return turn
