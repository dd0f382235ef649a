"""The swarm in the world: graphs that people submit and change, workers that come and go, and who runs what at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import asyncpg

from stoker.core.errors import NotFound, StokerError, Unavailable, UserError
from stoker.core.graph import Edge
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, OPEN_TO_EDGES, Outcome
from stoker.engine import hint
from stoker.engine.engine import Engine
from stoker.engine.muster import PERIOD_S as MUSTER_PERIOD_S
from stoker.store.database import Database
from stoker.store.task import Draft
from tests.sim.invariants import Violation
from tests.sim.mirror import Mirror, Mirrored
from tests.sim.server import PERIOD_S
from tests.sim.worker import Execution, Worker

if TYPE_CHECKING:
    from tests.sim.server import Server
    from tests.sim.world import World

T = TypeVar("T")
PATIENCE_S = 10.0
AWAY_AFTER_S = 3 * PERIOD_S
SHAPES = {
    "chain": ((0, 1), (1, 2), (2, 3), (3, 4)),
    "diamond": ((0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (4, 5)),
    "barrier": ((0, 3), (1, 3), (2, 3), (3, 4), (3, 5), (3, 6), (4, 7), (5, 7), (6, 7)),
    "lattice": ((0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 6), (5, 6)),
}


class Swarming:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.mirror = Mirror(world)
        self.project = ProjectId(UUID(int=1))
        self.doors: WeakKeyDictionary[Engine, Mirrored] = WeakKeyDictionary()
        self.workers: list[Worker] = []
        self.accepted: set[TaskId] = set()
        self.executions: dict[TaskId, list[Execution]] = {}
        self.healed = False
        self.graphs = 0

    def attach(self, database: Database, engine: Engine) -> None:
        """A new life of a replica. If no other is there, each lease has a full new period."""
        if all(server.engine is None for server in self.world.servers):
            self.mirror.back_at = self.world.now()
        swarm = Mirrored(self.mirror, database, self.world.clock, engine.swarm.lease_s, AWAY_AFTER_S)
        self.doors[engine], engine.swarm, engine.muster = swarm, swarm, swarm.muster
        engine.add_loop(hint.CLAIMS, swarm.muster.once, MUSTER_PERIOD_S)

    @property
    def over(self) -> bool:
        return self.healed and self.graphs >= self.world.theme.graphs and not self.mirror.unended()

    # Requests.

    async def call(self, act: Callable[[Mirrored], Awaitable[T]]) -> T:
        """One request to whichever replica is there. `Unavailable`: no answer, and who knows what happened."""
        await self.world.pause(0.01, 0.3)
        living = [server for server in self.world.servers if server.engine is not None]
        if not living:
            raise Unavailable("nobody is there")
        server = self.world.dice.choice(living)
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        server.spawn(self._serve(server, act, answered))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answered
        except TimeoutError:
            raise Unavailable("no answer") from None

    async def _serve(
        self, server: "Server", act: Callable[[Mirrored], Awaitable[T]], answered: "asyncio.Future[T]"
    ) -> None:
        assert server.engine is not None
        try:
            answer = await act(self.doors[server.engine])
        except StokerError as error:
            if not answered.done():
                answered.set_exception(error)
        except (asyncpg.PostgresError, LookupError, AssertionError) as error:
            self.world.violated(f"the swarm broke: {error!r}")
        else:
            if not answered.done():
                answered.set_result(answer)

    async def ask(self, act: Callable[[Mirrored], Awaitable[T]]) -> T:
        """Said again until it is answered."""
        while True:
            try:
                return await self.call(act)
            except Unavailable:
                await self.world.pause(1.0, 5.0)

    async def told(self, act: Callable[[Mirrored], Awaitable[object]]) -> None:
        """A message whose answer nobody waits for."""
        try:
            await self.call(act)
        except (Unavailable, NotFound):
            return

    # Who runs what.

    def program(self, task: TaskId) -> tuple[float, int | None]:
        """How long this attempt of the task runs, and how it exits."""
        dice = self.world.dice
        length_s = dice.choice((2.0, 10.0, 30.0, 60.0)) * dice.uniform(0.5, 1.0)
        return length_s, dice.choices((0, 1, None), (75, 20, 5))[0]

    def hinted(self) -> bool:
        """Over its socket an idle worker may hear that there is something to claim."""
        return bool(self._some(AVAILABLE)) and self.world.dice.random() < 0.5

    def started(self, execution: Execution) -> None:
        """At most one execution of a task lives, unless the lease of the older one is over."""
        others = self.executions.setdefault(execution.held.task, [])
        for other in others:
            if other.lives(self.world.now()):
                older = min(other.held, execution.held)
                record = self.mirror.graph.executions.get(older)
                if other.held == execution.held or record is None or record.outcome is not Outcome.LOST:
                    self.world.violated(
                        f"task {older.task} runs twice at once: {other.held}, {execution.held}, {record}"
                    )
        others.append(execution)

    # Workers.

    async def crew(self) -> None:
        """One place for a worker: whoever leaves it is followed by another one, with an id of its own."""
        while not self.over:
            await self.world.pause(0.5, 15.0)
            worker = Worker(self, WorkerId(self.world.new_id()))
            self.world.note(f"{worker.name} comes")
            self.workers.append(worker)
            await worker.live()
            self.workers.remove(worker)

    async def trouble(self) -> None:
        world, dice = self.world, self.world.dice
        while world.faults:
            await world.pause(3.0, 24.0)
            if not self.workers or not world.faults:
                continue
            worker = dice.choice([worker for worker in self.workers if worker.holding] or self.workers)
            match dice.choices(("kill", "freeze", "cut", "drain"), (20, 35, 30, 15))[0]:
                case "kill":
                    world.count("worker killed")
                    worker.kill()
                    if world.chance("killed worker removed by hand", 0.4):
                        world.background(self._remove(worker.id))
                case "freeze":
                    world.count("worker frozen")
                    worker.frozen_until = world.now() + dice.choice((20.0, 85.0, 100.0, 160.0))
                case "cut":
                    world.count("worker cut off")
                    worker.cut_until = world.now() + dice.choice((15.0, 40.0, 90.0, 140.0))
                case "drain":
                    worker.draining = True

    async def _remove(self, worker: WorkerId) -> None:
        """Somebody knows that it is gone, and does not wait for its lease."""
        await self.world.pause(0.5, 20.0)
        await self.told(lambda swarm: swarm.leave(worker, lost=True))

    # People.

    async def live(self) -> None:
        """Graphs come one after the other, and people change their mind about what is in them."""
        world, dice = self.world, self.world.dice
        for _ in range(dice.randint(2, 3)):
            world.background(self.crew())
        world.background(self.trouble())
        acts = [(self.cancel, 5), (self.link, 8), (self.unlink, 4), (self.open, 3), (self.let_go, 3)]
        while not self.over and world.violation is None:
            await world.pause(2.0, 25.0)
            if self.graphs < world.theme.graphs and (self.healed or dice.random() < 0.5):
                await self.submit()
            elif self.healed:
                await self.open()
                await self.let_go()
            else:
                await dice.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def heal(self) -> None:
        self.healed = True
        for worker in self.workers:
            worker.frozen_until = worker.cut_until = 0.0

    async def submit(self) -> None:
        world, dice = self.world, self.world.dice
        shape = dice.choice(sorted(SHAPES))
        ids = [TaskId(world.new_id()) for _ in range(dice.randint(1, 4) + max(max(edge) for edge in SHAPES[shape]))]
        edges = [Edge(ids[source], ids[target]) for source, target in SHAPES[shape] if target < len(ids)]
        if (old := self._some(INACTIVE)) and dice.random() < 0.3:
            edges.append(Edge(dice.choice(ids), dice.choice(old)))
        targets = {edge.target for edge in edges}
        drafts = [
            Draft(
                id,
                self.project,
                INACTIVE if id in targets or dice.random() < 0.2 else AVAILABLE,
                command=None if dice.random() < 0.2 or (shape, place) == ("barrier", 3) else '"work"',
                max_retry_count=dice.choice((1, 2, 3, 3)),
                crash_limit=dice.choice((1, 2, 5, 5, 5, 5)),
                priority=dice.randint(0, 1),
            )
            for place, id in enumerate(ids)
        ]
        world.note(f"submits a {shape} of {len(ids)} tasks, {ids[0].hex[-6:]} first")
        if await self._wish(lambda swarm: swarm.create(drafts, edges)):
            self.accepted |= set(ids)
            if missing := set(ids) - self.mirror.graph.tasks.keys():
                self.world.violated(f"task {min(missing)} was accepted and does not exist")
        self.graphs += 1

    async def cancel(self) -> None:
        dice = self.world.dice
        known = [task.id for task in self.mirror.unended()]
        if not known:
            return
        ids = dice.sample(known, min(len(known), dice.randint(1, 2)))
        answer = await self.ask(lambda swarm: swarm.cancel(ids))
        self.world.note(f"cancels {', '.join(id.hex[-6:] for id in ids)}: {answer.cancelled} and {len(answer.told)}")
        for worker_id, held in sorted(answer.told):
            # Over its socket; otherwise its next heartbeat tells it.
            for worker in self.workers:
                if worker.id == worker_id and dice.random() < 0.5 and worker.frozen_until < self.world.now():
                    worker.stop(held)

    async def link(self) -> None:
        dice = self.world.dice
        sources, targets = self._some(*OPEN_TO_EDGES), self._some(INACTIVE)
        if sources and targets:
            edges = [Edge(dice.choice(sources), dice.choice(targets)) for _ in range(dice.randint(1, 2))]
            await self._wish(lambda swarm: swarm.add_continuations(edges))

    async def unlink(self) -> None:
        tasks = self.mirror.graph.tasks
        open_ = [edge for edge in sorted(self.mirror.graph.edges) if tasks[edge.target].state is INACTIVE]
        if open_:
            edges = [self.world.dice.choice(open_)]
            await self._wish(lambda swarm: swarm.remove_continuations(edges))

    async def open(self) -> None:
        """Some tasks are created asleep and wait for a person, not for other tasks."""
        asleep = [id for id in self._some(INACTIVE) if not self.mirror.graph.tasks[id].pending_dependency_count]
        if asleep:
            await self._wish(lambda swarm: swarm.make_available(asleep))

    async def let_go(self) -> None:
        """People look into what took workers down, and let it run again."""
        held = [task.id for task in self.mirror.graph.tasks.values() if task.held]
        if held:
            await self._wish(lambda swarm: swarm.let_go(held))

    def _some(self, *states: object) -> list[TaskId]:
        return [task.id for task in self.mirror.graph.tasks.values() if task.state in states]

    async def _wish(self, act: Callable[[Mirrored], Awaitable[object]]) -> bool:
        """False: refused, because the graph went on or because it was carried out already."""
        try:
            await self.ask(act)
        except UserError as error:
            self.world.note(f"refused: {error.sentence}")
            return False
        return True

    # The end.

    async def at_the_end(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await self.mirror.compare(connection, everything=True)
        if missing := self.accepted - self.mirror.graph.tasks.keys():
            raise Violation(f"task {min(missing)} was accepted and is gone")
        living = [one for several in self.executions.values() for one in several if one.lives(self.world.now())]
        if living:
            raise Violation(f"{living[0].held} is left running")
