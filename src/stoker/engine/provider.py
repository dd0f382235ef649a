"""Performers of what an instance wishes of its backend; hosts that are simply there have their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from stoker.backends.base import Backend, Handle, Order, Refused
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, ProjectId
from stoker.core.instance_facts import Destroy, Destroyed, Instance, Launch, Launched
from stoker.core.instance_facts import Refused as LaunchRefused
from stoker.core.machine import Effect
from stoker.core.route import SSH
from stoker.core.sight import Stage, Way
from stoker.engine.change import Change, of_instance
from stoker.engine.errand import Performer
from stoker.engine.host import HostPerformers
from stoker.store import host as host_store
from stoker.store import instance as instance_store
from stoker.store import project as project_store
from stoker.store.database import Connection, Database
from stoker.store.outbox import Errand

STOP_S = 5.0
"""The grace of a machine: its jobs have had theirs."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Writes down the way to a machine as soon as its provider tells it."""

    preferred: str = "main"
    """The project that a machine serves which can serve only one and was launched for none."""

    async def note(self, tx: Connection, id: InstanceId, way: Way) -> None:
        only = await self._only(tx, id, way)
        await host_store.put(tx, id, host_store.Host(way.address, way.token, way.ip), only)

    async def _only(self, tx: Connection, id: InstanceId, way: Way) -> ProjectId | None:
        if not way.one_project:
            return None
        known = way.project_id or await host_store.project_of(tx, id)
        return known or await project_store.preferred(tx, self.preferred)


class Hosts(Protocol):
    """Performers for hosts of the user's that are reached by SSH."""

    async def launch(self, errand: Errand, instance: Instance) -> Change: ...

    async def destroy(self, errand: Errand, instance: Instance) -> Change: ...


class ProviderPerformers:
    def __init__(
        self,
        database: Database,
        backends: Mapping[str, Backend],
        hosts: HostPerformers,
        ways: Ways | None = None,
        ssh: Hosts | None = None,
    ) -> None:
        self._database, self._backends, self._hosts, self._ways = database, backends, hosts, ways or Ways()
        self._ssh = ssh

    def performers(self) -> dict[type[Effect], Performer]:
        return {Launch: self.launch, Destroy: self.destroy}

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        """The row is there: whatever comes of this, the machine is found by its id."""
        instance = await self._instance(errand)
        if instance.owned and instance.backend == SSH and self._ssh is not None:
            return await self._ssh.launch(errand, instance)
        if instance.owned:
            return await self._hosts.launch(errand, effect)
        backend = self._backend(instance)
        try:
            handle = Handle(instance.id, await backend.launch(await self._order(instance)))
        except Refused as error:
            return Change(facts=(of_instance(instance.id, LaunchRefused(error.sentence)),))
        sight = (await backend.look([handle])).get(instance.id)
        if sight is not None and sight.way is not None:
            async with self._database.transaction() as tx:
                await self._ways.note(tx, instance.id, sight.way)
        return Change(facts=(of_instance(instance.id, Launched(handle.name)),))

    async def destroy(self, errand: Errand, effect: Destroy) -> Change:
        """Also what was refused, or never answered: it may have been created all the same."""
        instance = await self._instance(errand)
        if instance.owned and instance.backend == SSH and self._ssh is not None:
            return await self._ssh.destroy(errand, instance)
        if instance.owned:
            return await self._hosts.destroy(errand, effect)
        backend, handle = self._backend(instance), Handle(instance.id, instance.handle)
        sight = (await backend.look([handle])).get(instance.id)
        if sight is not None and sight.stage is Stage.UP:
            await backend.stop(handle, STOP_S)
        await backend.destroy(handle)
        return Change(facts=(of_instance(instance.id, Destroyed()),))

    async def _instance(self, errand: Errand) -> Instance:
        async with self._database.connection() as connection:
            return await instance_store.get(connection, InstanceId(errand.target))

    async def _order(self, instance: Instance) -> Order:
        async with self._database.connection() as connection:
            project_id = await host_store.project_of(connection, instance.id)
        return Order(
            instance.id, instance.offer, instance.location, instance.spot, instance.blocks.capacity, project_id
        )

    def _backend(self, instance: Instance) -> Backend:
        if (backend := self._backends.get(instance.backend)) is None:
            raise Unavailable(
                f"This server has no backend {instance.backend}.", hint="backends.yml says which there are."
            )
        return backend
