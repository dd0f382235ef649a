"""Lives one seed from beginning to end: chaos, healing, and the proof that everything settled."""

import asyncio
import json
from dataclasses import dataclass, replace

import asyncpg

from stoker.core import limits
from stoker.core.ids import InstanceId, RunId, VolumeId
from stoker.core.instance_facts import CordonAsked
from stoker.core.run_facts import ReleaseAsked, StopAsked
from stoker.core.volume_facts import DeleteAsked
from stoker.engine.change import Change, of_instance, of_run, of_volume
from stoker.store.database import SESSION
from tests.sim.database import Line
from tests.sim.invariants import Violation
from tests.sim.people import People
from tests.sim.provider import FLEET, POLICY
from tests.sim.server import task_factory
from tests.sim.theme import Theme, theme_of
from tests.sim.vloop import run as run_virtually
from tests.sim.world import World

SETTLE_S = 4 * 3600.0
LOOK_S = 45.0
SWARM_S = 120.0
"""Graphs stop coming after this: in a long history the swarm would be all there is."""

TABLES = ("volume", "run", "job", "instance", "host", "replica", "journal", "outbox", "managed_job", "managed_task",
          "worker", "task", "task_spec", "continuation", "execution", "task_kind", "task_key", "task_scope",
          "task_sample", "task_series", "task_output", "task_tally", "task_delta")  # fmt: skip

MAKE_FLEET = """
INSERT INTO fleet (id, name, spec, policy, created_at) VALUES ($1, 'cloud', '{}', $2, 0)
ON CONFLICT (id) DO UPDATE SET policy = excluded.policy
"""

UNSETTLED = """
SELECT 'run ' || id || ' is ' || state FROM run WHERE state NOT IN ('TERMINATED', 'FAILED', 'DONE')
UNION ALL SELECT 'managed job ' || id || ' is ' || state FROM managed_job WHERE state <> 'DONE'
UNION ALL SELECT 'instance ' || id || ' is ' || state FROM instance
    WHERE NOT (owned AND state = 'IDLE') AND state <> 'TERMINATED'
UNION ALL SELECT 'volume ' || id || ' is ' || state FROM volume WHERE state <> 'DELETED'
UNION ALL SELECT 'the wish ' || effect || ' of ' || kind || ' ' || target || ' stands: ' || error FROM outbox
UNION ALL SELECT 'task ' || id || ' is ' || state FROM task WHERE state NOT IN ('terminated', 'cancelled')
"""


@dataclass(slots=True)
class History:
    seed: int
    story: list[str]
    events: int
    rows: dict[str, int]
    faults: dict[str, int]
    violation: str = ""


def live(seed: int, url: str) -> History:
    theme, usual = theme_of(seed), (limits.WHOLE, limits.SWEPT)
    limits.WHOLE, limits.SWEPT = theme.whole, theme.page
    try:
        return run_virtually(_live(seed, url))
    finally:
        limits.WHOLE, limits.SWEPT = usual


async def _live(seed: int, url: str) -> History:
    connection = await _connect(url, theme_of(seed))
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)
    loop.set_exception_handler(lambda _loop, _context: None)
    world = World(seed, Line(connection))
    try:
        with world.inspector.listening():
            await _history(world, connection)
    except Violation as violation:
        world.violation = violation
    for server in world.servers:
        server.kill()
    for task in list(world._background):
        task.cancel()
    await asyncio.sleep(0)
    _still(True)
    await connection.close()
    sentence = "" if world.violation is None else str(world.violation)
    return History(seed, world.story, world.events, dict(world.rows), dict(world.faults_seen), sentence)


async def _connect(url: str, theme: Theme) -> "asyncpg.Connection[asyncpg.Record]":
    _still(True)
    connection = await asyncpg.connect(url, command_timeout=None, server_settings=SESSION)
    await connection.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY; ALTER SEQUENCE fence RESTART")
    policy = replace(POLICY, idle_duration_s=theme.idle_duration_s)
    await connection.execute(MAKE_FLEET, FLEET, json.dumps(policy.to_json()))
    _still(False)
    return connection


def _still(querying: bool) -> None:
    asyncio.get_running_loop().jump.querying = int(querying)  # type: ignore[attr-defined]


async def _history(world: World, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    people = People(world)
    # First: both servers may die before they have answered anything.
    world.background(_restart(world))
    await world.begin()
    world.background(_leases(world))
    world.background(world.swarm.live())
    world.later(SWARM_S, world.swarm.heal)
    await people.live(world.now() + world.theme.chaos_s)
    if world.violation is not None:
        raise world.violation
    await _heal(world, people)
    await _settle(world)
    if world.violation is not None:
        raise world.violation
    async with world.line.turn():
        await world.inspector.at_the_end(connection)
        await world.swarm.at_the_end(connection)
    _nothing_left(world)
    _no_bugs(world)


async def _restart(world: World) -> None:
    """A dead server is started again, sooner or later."""
    while True:
        await world.pause(1.0, world.dice.choice((5.0, 20.0, 60.0)))
        for server in world.servers:
            if not server.alive and (not world.faults or world.dice.random() < 0.5):
                server.start()


async def _leases(world: World) -> None:
    while True:
        await asyncio.sleep(5.0)
        for host in list(world.hosts.values()):
            if host.alive and not host.frozen:
                host.check_leases()


async def _heal(world: World, people: People) -> None:
    world.note("--- the faults stop")
    world.faults = False
    world.swarm.heal()
    for server in world.servers:
        server.no_database_until = 0.0
    for host in world.hosts.values():
        host.thaw()
        if host.alive:
            people.heal(host)
    for run in people.runs:
        if run in people.services or await world.is_scheduled(run):
            await world.ask(Change(facts=(of_run(run, StopAsked(by="the end")),)))
    await people.give_up_most()
    # Nobody wants machines that nobody uses any more.
    await people.change_fleet(0)


async def _settle(world: World) -> None:
    """Everything comes to rest by itself."""
    deadline = world.now() + SETTLE_S
    while world.violation is None:
        async with world.line.turn() as connection:
            unsettled = await connection.fetchval(UNSETTLED)
        if unsettled is None:
            unsettled = next(
                (f"host {host.id} has tasks" for host in world.hosts.values() if host.alive and host.tasks), None
            )
        if unsettled is None:
            # A replica that woke up late may create one that nobody wants any more: an orphan, which is swept.
            unsettled = next((f"machine {id} is at the provider" for id in world.provider.machines), None)
        if unsettled is None:
            return
        if world.now() > deadline:
            raise Violation(f"does not settle: {unsettled}")
        await _uncordon(world)
        await _release(world)
        await _empty(world)
        await asyncio.sleep(LOOK_S)


async def _uncordon(world: World) -> None:
    """A replica that was frozen may cordon what the person who asked it has let go long ago by another one."""
    if id := await world.pick("SELECT id FROM instance WHERE cordoned AND state <> 'TERMINATED' ORDER BY id"):
        await world.ask(Change(facts=(of_instance(InstanceId(id), CordonAsked(False)),)))


async def _release(world: World) -> None:
    """A replica that was frozen may hold a run that has been released long ago by another one."""
    if id := await world.pick("SELECT id FROM run WHERE held AND state NOT IN ('TERMINATED', 'FAILED', 'DONE')"):
        await world.ask(Change(facts=(of_run(RunId(id), ReleaseAsked(by="the end")),)))


async def _empty(world: World) -> None:
    """What was kept for runs is wanted by nobody any more, and machines stay as long as volumes are on them."""
    unwanted = """
    SELECT id FROM volume WHERE state IN ('ACTIVE', 'FAILED') AND held = '{}' AND NOT EXISTS (
        SELECT FROM run WHERE policy -> 'volumes' ? volume.id::text AND state NOT IN ('TERMINATED', 'FAILED', 'DONE')
    ) ORDER BY id
    """
    if id := await world.pick(unwanted):
        await world.ask(Change(facts=(of_volume(VolumeId(id), DeleteAsked(by="the end")),)))


def _no_bugs(world: World) -> None:
    """What the drivers contain so that a server goes on is still a bug."""
    for engine in world.engines:
        for loop in engine.loops.values():
            if loop.bugs:
                raise Violation(f"loop {loop.name} failed {loop.bugs} times by our own fault: {loop.error}")
        if engine.errands.bugs:
            raise Violation(f"{engine.errands.bugs} errands failed by our own fault")


def _nothing_left(world: World) -> None:
    live = {key: hosts for key, hosts in world.processes.items() if hosts}
    if live:
        raise Violation(f"processes are left running: {live.keys()}")
    if world.provider.machines:
        raise Violation(f"machines are left at the provider: {list(world.provider.machines)}")
    if world.disks.ready_at or world.disks.on:
        raise Violation(f"disks are left at the provider: {world.disks.ready_at}, attached: {world.disks.on}")
    for host in world.hosts.values():
        if host.alive and host.tasks:
            raise Violation(f"host {host.id} still has tasks {list(host.tasks)}")
