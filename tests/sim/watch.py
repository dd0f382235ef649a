"""What no shim tells: machines that are gone, orphans, and all about machines without a shim."""

from typing import TYPE_CHECKING
from uuid import UUID

from stoker.core import instance_facts as inst
from stoker.core import job_facts as job
from stoker.core.errors import Conflict
from stoker.core.instance_facts import Instance
from stoker.core.machine import Event
from stoker.engine.change import Change, Fact, of_instance, of_job
from stoker.engine.engine import Engine
from stoker.engine.loop import Counts
from stoker.engine.rooms import Rooms
from stoker.store.database import Database, Record
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World

JOBS = """
SELECT id, run_id, attempt, instance_id, state, unreachable_since FROM job
WHERE instance_id IS NOT NULL AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
ORDER BY id
"""


class ProviderWatch:
    def __init__(self, world: "World", database: Database, engine: Engine) -> None:
        self.world, self.database, self.engine = world, database, engine

    async def once(self) -> Counts:
        async with self.database.connection() as connection:
            instances = [one.instance for one in await Rooms(lambda: 0).look(connection)]
            jobs = await connection.fetch(JOBS)
        facts: list[Fact] = []
        for instance in instances:
            host = self.world.hosts.get(instance.id)
            facts += self._about_instance(instance, host)
            if host is not None and not host.has_shim:
                facts += self._about_jobs(host, [row for row in jobs if row["instance_id"] == instance.id])
                if host.reachable:
                    host.touch()
                    self._sweep_tasks(host, {row["id"] for row in jobs})
        self._destroy_orphans({instance.id for instance in instances})
        for fact in facts:
            try:
                await self.engine.commit(Change(facts=(fact,)))
            except Conflict as error:
                self.world.refused(fact, error)
        return Counts(len(facts))

    def _about_instance(self, instance: Instance, host: Host | None) -> list[Fact]:
        events: list[Event] = []
        gone = not instance.owned and instance.id not in self.world.provider.machines
        if gone and instance.state in (inst.S.PROVISIONING, *inst.UP):
            events.append(inst.Gone())
        elif instance.shim:
            return []
        elif instance.state is inst.S.PROVISIONING and host is not None and host.reachable:
            events.append(inst.ShimAnswered())
        elif instance.state in inst.UP and host is not None:
            if host.reachable and instance.unreachable_since is not None:
                events.append(inst.Heard())
            elif not host.reachable and instance.unreachable_since is None:
                events.append(inst.Silent())
        return [of_instance(instance.id, event) for event in events]

    def _about_jobs(self, host: Host | None, jobs: list[Record]) -> list[Fact]:
        facts = []
        for row in jobs:
            if (event := self._about_job(host, row)) is not None:
                facts.append(of_job(row["id"], row["run_id"], event))
        return facts

    def _about_job(self, host: Host | None, row: Record) -> Event | None:
        attempt: int = row["attempt"]
        silent = row["unreachable_since"] is not None
        if host is None or row["state"] == job.S.SUBMITTED:
            return None
        if not host.reachable:
            return None if silent else job.Silent(attempt=attempt)
        if silent:
            return job.Heard(attempt=attempt)
        task = host.tasks.get(row["id"])
        if task is None or task.ended is None:
            return None
        return self.world.about(attempt, task.ended)

    def _sweep_tasks(self, host: Host, known: set[UUID]) -> None:
        """A task whose submission is over is stopped and removed: a host that came back is cleaned."""
        for id in [id for id in host.tasks if id not in known]:
            host.hurry_away(id, host.fences[id])

    def _destroy_orphans(self, known: set[UUID]) -> None:
        for tag in [tag for tag in self.world.provider.machines if tag not in known]:
            self.world.count("orphan destroyed")
            machine = self.world.provider.machines.pop(tag)
            machine.vanish()
