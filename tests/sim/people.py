"""What people and bad luck do while the world runs."""

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from stoker.core import instance_facts as inst
from stoker.core import job_facts as job
from stoker.core.commitment import Moved
from stoker.core.family import found
from stoker.core.gang import OnNoCapacity
from stoker.core.ids import InstanceId, RunId, VolumeId
from stoker.core.policy import Disconnect, Policy, StartupOrder, StopCriteria
from stoker.core.reason import JobReason, RetryEvent, RunReason
from stoker.core.resources import parse_request
from stoker.core.retry import Retry
from stoker.core.run_facts import AbortAsked, Broke, ReplicasWanted, S, StopAsked
from stoker.core.schedule import parse_schedule
from stoker.core.shim_task import STARTING
from stoker.core.volume_facts import DeleteAsked
from stoker.core.warning import WarnSignal
from stoker.engine.change import Change, RunBirth, of_instance, of_run, of_volume
from stoker.engine.hint import FLEETS
from stoker.engine.placement import LOCK
from tests.sim.host import Host
from tests.sim.managed import PROJECT
from tests.sim.provider import FLEET, MAX_NODES, POLICY
from tests.sim.server import DEAD_AFTER_S
from tests.sim.steering import Steering
from tests.sim.swarm import AWAY_AFTER_S
from tests.sim.theme import ACTS, KINDS
from tests.sim.volume import births, wanted

if TYPE_CHECKING:
    from tests.sim.world import World

UNFINISHED = """
SELECT run.id, COALESCE(task.state, run.state) AS moment
FROM run LEFT JOIN managed_task AS task ON task.id = run.owner_id
WHERE run.state NOT IN ('TERMINATED', 'FAILED', 'DONE') ORDER BY run.id
"""
SERVICES = """
SELECT id, state AS moment FROM run
WHERE policy ? 'service' AND state NOT IN ('TERMINATED', 'FAILED', 'DONE') ORDER BY id
"""
CHANGE_FLEET = """
WITH placer AS (SELECT pg_advisory_xact_lock($3))
UPDATE fleet SET policy = $2, version = version + 1 FROM placer WHERE id = $1
"""
"""As whoever applies one does it: not while a machine is being launched by the old policy."""
ENOUGH_EVENTS = 320
"""A quiet seed lives longer."""


class People(Steering):
    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.runs: list[RunId] = []
        self.services: list[RunId] = []
        self.names = 0

    async def live(self, until_s: float) -> None:
        """Acts at random moments until the time is over."""
        dice, world, theme = self.world.dice, self.world, self.world.theme
        acts = ACTS | dict(theme.acts)
        born = births(dice, PROJECT, world.now())
        world.volumes = [one.volume for one in born]
        for one in born:
            await world.ask(Change(volumes=(one,)))
        while (world.now() < until_s or world.events < ENOUGH_EVENTS) and world.violation is None:
            await world.pause(*theme.pause_s)
            await getattr(self, dice.choices(list(acts), list(acts.values()))[0])()

    async def submit(self) -> None:
        world = self.world
        policy = self.policy()
        self.names += 1
        run = found(RunId(world.new_id()), PROJECT, f"run-{self.names}", policy, world.now())
        world.know_run(run.id, policy)
        request = parse_request({"cpu": world.dice.choice((1, 1, 1, 2, 4))})
        world.note(f"submits {str(run.id)[-6:]}: {policy.to_json()}")
        self.runs.append(run.id)
        if policy.service:
            self.services.append(run.id)
        await world.ask(Change(runs=(RunBirth(run, request),)))

    def policy(self) -> Policy:
        dice = self.world.dice
        kinds = KINDS | dict(self.world.theme.kinds)
        kind = dice.choices(list(kinds), list(kinds.values()))[0]
        chosen: dict[str, Any] = {
            "retry": self.retry(),
            "priority": dice.choice((10, 50, 90)),
            "stop_duration_s": dice.choice((0.0, 5.0, 30.0)),
            "on_no_capacity": dice.choice((OnNoCapacity.QUEUE, OnNoCapacity.QUEUE, OnNoCapacity.FAIL)),
            "disconnect": dice.choice((None, None, Disconnect(60.0, 120.0))),
            "warn_signal": warning(dice.choice(self.world.theme.warnings_s)),
            "max_duration_s": dice.choice((None, None, 60.0)),
            "start_timeout_s": dice.choice((None, None, None, 120.0)),
            "waiting_instance_s": dice.choice((60.0, 600.0)),
            "waiting_runner_s": dice.choice((30.0, 600.0)),
            "detach_limit_s": 40.0,
        }
        if kind == "array":
            chosen["replicas"] = dice.randint(2, 6)
            chosen["max_parallel"] = dice.choice((None, 1, 2))
            chosen["only"] = dice.choice((None, None, (1,), (0, 1)))
        elif kind == "gang":
            chosen |= {"nodes": 2, "replicas": dice.randint(1, 2)}
            chosen["stop_criteria"] = dice.choice((StopCriteria.ALL_DONE, StopCriteria.MASTER_DONE))
            chosen["startup_order"] = dice.choice(list(StartupOrder))
            chosen["max_parallel"] = dice.choice((None, 1))
        elif kind == "service":
            chosen |= {"service": True, "replicas": dice.randint(0, 3), "max_duration_s": None}
        elif kind == "cron":
            overlap = dice.choice(("skip", "queue"))
            chosen |= {"on_no_capacity": OnNoCapacity.QUEUE, "priority": 10}
            chosen["schedule"] = parse_schedule(dice.choice(("* * * * *", "*/3 * * * *")), overlap=overlap)
        if kind not in ("service", "cron"):
            # What has no end would keep a volume that is for one from all others.
            chosen["volumes"] = wanted(dice, self.world.volumes, nodes=chosen.get("nodes", 1))
        return Policy(**chosen)

    def retry(self) -> Retry | None:
        dice = self.world.dice
        if dice.random() < 0.35:
            return None
        events = frozenset(event for event in RetryEvent if dice.random() < 0.75)
        duration_s = dice.choice((None, None, 100.0, 1000.0))
        attempts = dice.choice((None, 2, 3))
        return Retry(events, duration_s, attempts, frozenset({42}) if dice.random() < 0.5 else frozenset())

    async def _run(self) -> RunId | None:
        """Any run that has not finished, also one that a managed task launched."""
        found = await self.world.pick_moment(UNFINISHED)
        return None if found is None else RunId(found["id"])

    async def stop(self) -> None:
        if (run := await self._run()) is not None:
            self.world.note(f"stops {str(run)[-6:]}")
            await self.world.ask(Change(facts=(of_run(run, StopAsked(by="ann")),)))
            if self.world.dice.random() < 0.4:
                await self.world.pause(0.1, 10.0)
                await self.world.ask(Change(facts=(of_run(run, AbortAsked(by="ann")),)))

    async def abort(self) -> None:
        if (run := await self._run()) is not None:
            await self.world.ask(Change(facts=(of_run(run, AbortAsked(by="bob")),)))

    async def delete_volume(self) -> None:
        """Whether anybody wants it or not: who still waits for it is told."""
        if (volume := await self.world.pick("SELECT id FROM volume WHERE state <> 'DELETED' ORDER BY id")) is not None:
            await self.world.ask(Change(facts=(of_volume(VolumeId(volume), DeleteAsked(by="bob")),)))

    async def scale(self) -> None:
        if (row := await self.world.pick_moment(SERVICES)) is not None:
            await self._want(row["id"], self.world.dice.choice((0, 0, 1, 2, 3)))

    async def _want(self, run: UUID, replicas: int) -> None:
        await self.world.ask(Change(facts=(of_run(RunId(run), ReplicasWanted(replicas)),)))

    def notice(self, moved: Moved) -> None:
        """Also the autoscaler looks at what has just changed."""
        super().notice(moved)
        before, after = moved.before, moved.after
        if moved.kind == "run" and after.policy.service and before and before.state is not after.state:
            weight = 10 if after.state is S.PENDING else 3
            self.perhaps(weight, lambda id: self._want(id, self.world.dice.choice((1, 1, 2))), after.id)

    async def break_run(self) -> None:
        if (run := await self._run()) is not None:
            await self.world.ask(Change(facts=(of_run(run, Broke(RunReason.SERVER_ERROR)),)))

    async def limit(self) -> None:
        """Found idle by its runner, perhaps before anybody knows that it runs; or somebody says so of one that runs."""
        hosts = [host for host in self.world.hosts.values() if host.reachable]
        running = [(host, task) for host in hosts for task in host.tasks.values() if task.running]
        if running and self.world.dice.random() < 0.7:
            thought = self.world.inspector.mirror
            state = self.world.dice.choice(sorted({thought.get(task.order.job_id, "") for _, task in running}))
            there = [one for one in running if thought.get(one[1].order.job_id, "") == state]
            host, task = self.world.dice.choice(there)
            host.find_idle(task)
            return
        row = await self.world.pick_row("SELECT id, run_id, attempt FROM job WHERE state = 'RUNNING' ORDER BY id")
        if row is not None:
            event = job.LimitExceeded(JobReason.TERMINATED_DUE_TO_UTILIZATION_POLICY)
            self.world.post_job(row["id"], row["run_id"], row["attempt"], event)

    async def end_by_hand(self) -> None:
        """Somebody on a host ends politely what does not come up there; whoever removes it is in more of a hurry."""
        hosts = [host for host in self.world.hosts.values() if host.has_shim and host.reachable]
        starting = [(host, task) for host in hosts for task in host.tasks.values() if task.record.state in STARTING]
        if starting:
            state = self.world.dice.choice(sorted({task.record.state for _, task in starting}))
            host, task = self.world.dice.choice([one for one in starting if one[1].record.state is state])
            self.world.count("task ended by hand")
            host.terminate(task, 20.0)

    # Machines.

    async def _instance(self, owned: bool | None = None) -> InstanceId | None:
        condition = "" if owned is None else f" AND owned = {owned}"
        found = await self.world.pick(f"SELECT id FROM instance WHERE state <> 'TERMINATED'{condition} ORDER BY id")
        return None if found is None else InstanceId(found)

    async def cordon(self) -> None:
        if (id := await self._instance()) is not None:
            await self.world.ask(Change(facts=(of_instance(id, inst.CordonAsked(True)),)))
            await self.world.pause(5.0, 60.0)
            await self.world.ask(Change(facts=(of_instance(id, inst.CordonAsked(False)),)))

    async def drain(self) -> None:
        """Usually one that has something to do."""
        busy = "SELECT id FROM instance WHERE state = 'BUSY' AND NOT owned ORDER BY id"
        found = await self.world.pick(busy) if self.world.dice.random() < 0.7 else None
        id = await self._instance(owned=False) if found is None else InstanceId(found)
        if id is not None:
            deadline_at = self.world.now() + self.world.dice.choice((0.0, 60.0, 200.0))
            await self.world.ask(Change(facts=(of_instance(id, inst.DrainAsked(deadline_at)),)))
            if self.world.dice.random() < 0.3:
                await self.world.pause(0.1, 40.0)
                await self.world.ask(Change(facts=(of_instance(id, inst.CordonAsked(False)),)))

    async def delete(self) -> None:
        if (id := await self._instance(owned=False)) is not None:
            force = self.world.dice.random() < 0.7
            await self.world.ask(Change(facts=(of_instance(id, inst.DeleteAsked(force)),)))

    async def preempt(self) -> None:
        """Usually one that has something to do."""
        machines = self.world.provider.machines
        if machines:
            self.world.count("machine preempted")
            busy = [tag for tag, host in machines.items() if any(task.running for task in host.tasks.values())]
            among = busy if busy and self.world.dice.random() < 0.7 else list(machines)
            self.world.provider.preempt(
                self.world.dice.choice(among), self.world.dice.choice(self.world.theme.notices_s)
            )

    async def preempt_early(self) -> None:
        """The provider changes its mind before the machine is there."""
        coming = "SELECT id FROM instance WHERE state IN ('PENDING', 'PROVISIONING') AND NOT owned ORDER BY id"
        if (id := await self.world.pick(coming)) is not None:
            self.world.post_instance(id, inst.PreemptionNoticed())

    async def retire(self) -> None:
        """The fleet was changed, and does not want this one any more."""
        if (id := await self._instance(owned=False)) is not None:
            await self.world.ask(Change(facts=(of_instance(id, inst.Unwanted("the fleet changed")),)))

    async def apply(self) -> None:
        """The fleet is to be smaller or larger, or its machines divided otherwise."""
        await self.change_fleet(self.world.dice.choice((0, 0, 1, 2)))

    async def change_fleet(self, least: int) -> None:
        dice, theme = self.world.dice, self.world.theme
        most, blocks = dice.choice((MAX_NODES - 1, MAX_NODES)), dice.choice((None, 2, 4, 8))
        policy = replace(POLICY, min_nodes=least, max_nodes=most, blocks=blocks, idle_duration_s=theme.idle_duration_s)
        self.world.note(f"applies {policy.to_json()}")
        async with self.world.line.turn() as connection:
            await connection.execute(CHANGE_FLEET, FLEET, json.dumps(policy.to_json()), LOCK)
        for server in self.world.servers:
            if server.engine is not None and not self.world.chance("hint lost", 0.2):
                server.engine.wake(FLEETS)

    async def blackout(self) -> None:
        """A provider's whole network is away for longer than its machines may be silent."""
        for host in list(self.world.provider.machines.values()):
            host.cut = True
            self.world.count("host cut off")
            self.world.later(1600.0, partial(self.heal, host))

    async def cut(self) -> None:
        """A host out of reach for a short while or for long, and back again."""
        if hosts := [host for host in self.world.hosts.values() if host.alive and not host.cut]:
            host = self.world.dice.choice(hosts)
            host.cut = True
            self.world.count("host cut off")
            self.world.later(self.world.dice.choice((10.0, 60.0, 200.0, 1600.0)), lambda: self.heal(host))

    async def freeze(self) -> None:
        if hosts := [host for host in self.world.hosts.values() if host.alive and not host.frozen]:
            host = self.world.dice.choice(hosts)
            host.frozen = True
            self.world.count("host frozen")
            self.world.later(self.world.dice.choice((10.0, 60.0, 300.0)), host.thaw)

    async def sicken(self) -> None:
        """A disk that runs full, and is cleared again; heard of with the next answer of its shim."""
        if hosts := [host for host in self.world.hosts.values() if host.alive and not host.health]:
            host = self.world.dice.choice(hosts)
            _examined(host, "its disk is nearly full")
            self.world.count("host ill")
            self.world.later(self.world.dice.choice((10.0, 60.0, 200.0)), partial(_examined, host, ""))

    def heal(self, host: Any) -> None:
        host.check_leases()
        host.cut = False
        _examined(host, "")

    async def freeze_server(self) -> None:
        """Long enough that the other one may bury it and take its work."""
        server = self.world.dice.choice(self.world.servers)
        if server.alive:
            self.world.count("replica frozen")
            server.frozen_until = self.world.now() + self.world.dice.choice((10.0, 80.0, 270.0))

    async def outage(self) -> None:
        """No connections, for a moment or for longer than a replica may be silent; to all replicas or to one."""
        world, servers = self.world, self.world.servers
        if any(world.now() < server.no_database_until for server in servers):
            return
        length_s = world.dice.choice((20.0, 80.0, 250.0, 400.0))
        if world.dice.random() < 0.4:
            world.count("replica without its database")
            servers = [world.dice.choice(servers)]
        else:
            world.count("database away for long" if length_s > DEAD_AFTER_S else "database away")
            if length_s > AWAY_AFTER_S:
                world.later(length_s, partial(self._back, world.now() + length_s))
        for server in servers:
            server.no_database_until = world.now() + length_s

    def _back(self, at: float) -> None:
        """Unless it was healed before its time."""
        if all(server.no_database_until == at for server in self.world.servers):
            self.world.swarm.mirror.back_at = at

    async def kill(self) -> None:
        server = self.world.dice.choice(self.world.servers)
        if server.alive:
            # Between transactions: whether a COMMIT under way would still happen is decided in real time.
            async with self.world.line.turn():
                self.world.count("replica killed")
                server.kill()


def _examined(host: Host, health: str) -> None:
    if host.health != health:
        host.health = health
        host.seq += 1
        host.news.set()


def warning(ahead_s: float | None) -> WarnSignal | None:
    return None if ahead_s is None else WarnSignal("USR1", ahead_s)
