"""One seed, one history: two replicas, hosts, a provider and people, among faults that the seed decides."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from typing import Any
from uuid import UUID

from stoker.core.block import Blocks
from stoker.core.commitment import Moved
from stoker.core.errors import Conflict, NotFound, StokerError
from stoker.core.ids import InstanceId, JobId, RunId, uuid7
from stoker.core.instance_facts import Instance
from stoker.core.machine import Event, Row
from stoker.core.managed_task import Lack
from stoker.core.policy import Policy
from stoker.core.resources import Capacity
from stoker.core.volume_facts import Volume
from stoker.engine.batch import Batch
from stoker.engine.change import Change, Fact, of_instance, of_job
from stoker.engine.engine import Engine
from tests.sim.database import Killed, Line
from tests.sim.faults import FAULTS
from tests.sim.host import Host, Key, Order
from tests.sim.invariants import Inspector, Violation
from tests.sim.net import SimLogs
from tests.sim.program import Program
from tests.sim.provider import Provider
from tests.sim.server import Server
from tests.sim.swarm import Swarming
from tests.sim.theme import theme_of
from tests.sim.volume import SimDisks

EPOCH = 1_800_000_000.0
"""A Friday in 2027; the virtual clock starts here."""
PATIENCE_S = 20.0
"""Then people ask again, perhaps another replica, while the first may still get to it."""
RESTLESS = 5_000
"""No seed comes near so many events."""


class WorldClock:
    def now(self) -> float:
        return EPOCH + asyncio.get_running_loop().time()


class World:
    def __init__(self, seed: int, line: Line) -> None:
        self.line = line
        self.faults = True
        self.dice = random.Random(seed)
        self.theme = theme_of(seed)
        self.clock = WorldClock()
        self.story: list[str] = []
        self.rows: Counter[str] = Counter()
        self.faults_seen: Counter[str] = Counter()
        self.events = 0
        self.hosts: dict[UUID, Host] = {}
        self.owned: set[UUID] = set()
        self.processes: dict[Key, list[Host]] = {}
        self.programs: dict[UUID, Program] = {}
        self.orders: dict[UUID, Order] = {}
        self.lasting: dict[tuple[str, UUID], bool] = {}
        self.logs = SimLogs()
        self.lacks: dict[tuple[UUID, int], Lack | None] = {}
        self.provider = Provider(self)
        self.disks = SimDisks(self)
        self.volumes: list[Volume] = []
        self.servers = [Server(self, "a"), Server(self, "b")]
        self.inspector = Inspector(self)
        self.swarm = Swarming(self)
        self.violation: Violation | None = None
        self.engines: list[Engine] = []
        self.onlookers: list[Callable[[Moved], None]] = []
        self.impatient: Callable[[UUID], None] = lambda _: None
        self._background: set[asyncio.Task[Any]] = set()
        self._outside = copy_context()
        """No replica's: what the world starts while a replica calls it does not die with that replica."""

    # Time and chance.

    def now(self) -> float:
        return self.clock.now()

    def chance(self, fault: str, probability: float) -> bool:
        """Does this fault happen here? Named, so that a campaign can say which were visited."""
        if fault not in FAULTS:
            raise Violation(f"nobody has heard of the fault {fault!r}")
        if not self.faults or self.dice.random() >= probability:
            return False
        self.count(fault)
        return True

    def always(self, fault: str, about: UUID, probability: float) -> bool:
        """A fault that stays: whoever tries finds the same, also when all other faults have stopped."""
        if (fault, about) not in self.lasting:
            self.lasting[fault, about] = self.chance(fault, probability)
        return self.lasting[fault, about]

    def count(self, fault: str) -> None:
        self.faults_seen[fault] += 1
        self.note(f"! {fault}")

    async def pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.dice.uniform(least_s, most_s))

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, act, context=self._outside)

    def background(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Work of the world itself, which no replica's death ends."""
        task = asyncio.get_running_loop().create_task(work, context=self._outside.copy())
        self._background.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violated(f"the world itself broke: {error!r}")

    def new_id(self) -> UUID:
        return uuid7(self.now(), self.dice.getrandbits(80))

    # The story.

    def note(self, line: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.2f} {line}")

    def visited(self, machine: str, row: Row | None) -> None:
        if row is not None:
            self.rows[f"{machine}: {row.name}"] += 1
            self.events += 1
            if self.events >= RESTLESS:
                # Perhaps without a pause, so that no time would pass any more: they are stopped.
                self.violated(f"goes round in circles: {RESTLESS} events")
                for server in self.servers:
                    asyncio.get_running_loop().call_soon(server.kill)

    def committed(self, server: Server, batch: Batch) -> None:
        for moved in batch.moved:
            for look in self.onlookers:
                look(moved)
            self.visited(moved.kind.replace("_", " "), moved.row)
            if moved.row is not None and moved.before.state is not moved.after.state:
                name = f"{moved.kind} {str(moved.after.id)[-6:]}"
                event = type(moved.event).__name__
                self.note(f"[{server.name}] {name} {moved.before.state} -> {moved.after.state}: {event} {moved.note}")
        for other in self.servers:
            if other is not server and batch.hints and not self.chance("hint lost", 0.2):
                delay_s = self.dice.uniform(0.001, 2.0)
                self.later(delay_s, lambda other=other, hints=batch.hints: self._hint(other, hints))  # type: ignore[misc]

    @staticmethod
    def _hint(server: Server, hints: frozenset[str]) -> None:
        if server.engine is not None:
            for name in sorted(hints):
                server.engine.wake(name)

    def violated(self, sentence: str) -> None:
        """The first one counts; what comes after it means nothing."""
        if self.violation is None:
            self.note(f"VIOLATION {sentence}")
            self.violation = Violation(sentence)

    async def check(self) -> None:
        """After every commit."""
        if self.violation is None:
            try:
                await self.swarm.mirror.after_commit(self.line.connection)
                await self.inspector.after_commit(self.line.connection)
            except Violation as violation:
                self.violated(str(violation))

    # What hosts and programs tell.

    def know_run(self, run_id: UUID, policy: Policy) -> None:
        if run_id not in self.programs:
            length_s = self.dice.choice(self.theme.programs_s)
            self.programs[run_id] = Program(length_s / 2, length_s, endless=policy.service and self.dice.random() < 0.5)

    def lack(self, task_id: UUID, attempt: int) -> Lack | None:
        """Why this launch is impossible: whoever tries it finds the same."""
        if (task_id, attempt) not in self.lacks:
            impossible = self.chance("launch is impossible", 0.12 if attempt == 1 else 0.3)
            self.lacks[task_id, attempt] = self.dice.choice(list(Lack)) if impossible else None
        return self.lacks[task_id, attempt]

    def program(self, key: Key) -> Program:
        return self.programs[key[0]]

    def process_started(self, host: Host, key: Key) -> None:
        self.alone(host, key)
        self.processes.setdefault(key, []).append(host)

    def alone(self, host: Host, key: Key) -> None:
        """What is frozen does not run; it is looked at again when it thaws."""
        if any(other is not host and not other.frozen for other in self.processes.get(key, [])):
            self.violated(f"{key[0]} replica {key[1]} node {key[2]} runs twice at once")

    def forgotten(self, job_id: UUID, log: bytes, exit_code: int | None) -> None:
        """The host has let go of the last copy. Of a job that is nobody's any more nobody wants the log either."""
        kept = self.logs.kept.get(job_id, b"")
        if self.inspector.mirror.get(job_id) == "TERMINATING" and kept != log:
            self.violated(f"of the log of job {job_id}, {len(kept)} bytes of {len(log)} were kept")
        if self.inspector.mirror.get(job_id) == "TERMINATING" and exit_code is not None:
            self.inspector.exits[job_id] = exit_code

    def process_ended(self, host: Host, key: Key) -> None:
        self.processes[key].remove(host)

    @staticmethod
    def about(attempt: int, event: Event) -> Event:
        return replace(event, attempt=attempt)

    def post_job(self, job_id: UUID, run_id: UUID, attempt: int, event: Event) -> None:
        self.post(of_job(JobId(job_id), RunId(run_id), self.about(attempt, event)))

    def post_instance(self, id: UUID, event: Event) -> None:
        self.post(of_instance(InstanceId(id), event))

    def post(self, fact: Fact) -> None:
        """News on its way to whichever replica is there: lost, doubled, late, in any order."""
        if self.chance("news lost", 0.1):
            return
        copies = 2 if self.chance("news doubled", 0.1) else 1
        for _ in range(copies):
            delay_s = self.dice.uniform(0.01, 0.5)
            if self.chance("news delayed", 0.1):
                delay_s = self.dice.uniform(5.0, 120.0)
            self.later(delay_s, lambda: self.deliver(fact))

    def deliver(self, fact: Fact) -> None:
        living = [server for server in self.servers if server.engine is not None]
        if living:
            server = self.dice.choice(living)
            server.spawn(self.tell(server, fact))

    async def tell(self, server: Server, fact: Fact) -> None:
        assert server.engine is not None
        try:
            await server.engine.commit(Change(facts=(fact,)))
        except Conflict as error:
            self.refused(fact, error)
        except NotFound:
            return

    def refused(self, fact: Fact, error: StokerError) -> None:
        """No true news may ever be refused: a table that has no answer to it has a hole."""
        self.violated(f"news refused: {error} {fact}")

    # Looking.

    async def pick_row(self, query: str, *args: object) -> Any:
        """One of the rows, or None; people look at what there is before they act."""
        async with self.line.turn() as connection:
            rows = await connection.fetch(query, *args)
        return self.dice.choice(rows) if rows else None

    async def pick_moment(self, query: str, *args: object) -> Any:
        """As `pick_row`, but a moment that passes at once is as likely to be met as one that lasts."""
        async with self.line.turn() as connection:
            rows = await connection.fetch(query, *args)
        if not rows:
            return None
        moment = self.dice.choice(sorted({row["moment"] for row in rows}))
        return self.dice.choice([row for row in rows if row["moment"] == moment])

    async def pick(self, query: str, *args: object) -> UUID | None:
        row = await self.pick_row(query, *args)
        return None if row is None else row["id"]

    async def is_scheduled(self, run_id: UUID) -> bool:
        return bool(await self.pick("SELECT id FROM run WHERE id = $1 AND policy ? 'schedule'", run_id))

    # Beginning.

    async def begin(self) -> None:
        for server in self.servers:
            server.start()
        for _ in range(self.theme.owned_hosts):
            id = InstanceId(self.new_id())
            self.owned.add(id)
            self.hosts[id] = Host(self, id, owned=True)
            blocks = Blocks(Capacity(cpu=4, memory_mb=8192, disk_mb=10_000), 4)
            instance = Instance(id, None, "owned", blocks, entered_at=self.now(), owned=True)
            await self.ask(Change(instances=(instance,)))

    async def ask(self, change: Change) -> None:
        """A person's request: said again until it is answered, by whichever replica is there."""
        while self.violation is None:
            living = [server for server in self.servers if server.engine is not None]
            if living:
                server = self.dice.choice(living)
                answered = asyncio.get_running_loop().create_future()
                server.spawn(self._asked(server, change, answered))
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await answered
                    return
                except (TimeoutError, StokerError, Killed):
                    pass
            await asyncio.sleep(1.0)

    async def _asked(self, server: Server, change: Change, answered: "asyncio.Future[None]") -> None:
        assert server.engine is not None
        try:
            await server.engine.commit(change)
        except (Conflict, NotFound):
            pass
        except StokerError as error:
            if not answered.done():
                answered.set_exception(error)
            return
        if not answered.done():
            answered.set_result(None)
