"""A replica that can be killed: the real engine, on a connection and a network that may fail it."""

import asyncio
import random
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from stoker.core.errors import Broken, StokerError
from stoker.engine.batch import Batch
from stoker.engine.engine import Engine, Settings
from stoker.engine.watch import Watch
from tests.sim.agents import Agents
from tests.sim.database import Killed, SimDatabase
from tests.sim.watch import ProviderWatch

if TYPE_CHECKING:
    from tests.sim.world import World

PERIOD_S = 120.0
WATCH_S = 40.0
HEARTBEAT_S = 60.0
DEAD_AFTER_S = 190.0

_current: ContextVar["Server | None"] = ContextVar("server", default=None)


class Server:
    """One name; each start of it is a new life with a new engine."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive = False
        self.engine: Engine | None = None
        self.frozen_until = 0.0
        self.no_database_until = 0.0
        self.lives = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that dies with this life."""
        context = copy_context()
        context.run(_current.set, self)
        asyncio.get_running_loop().create_task(self._contained(work), context=context)

    async def _contained(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Killed:
            return
        except StokerError as error:
            if isinstance(error, Broken):
                self.world.violated(f"the engine broke: {error}")

    def start(self) -> None:
        self.alive = True
        self.lives += 1
        self.frozen_until = 0.0
        self.world.note(f"server {self.name} starts")
        self.spawn(self._life())

    async def _life(self) -> None:
        world = self.world
        database = SimDatabase(world, self, world.line, world.check)
        launching, alive = world.theme.slots
        settings = Settings(
            self.name, max_launching=launching, max_alive=alive, heartbeat_s=HEARTBEAT_S, dead_after_s=DEAD_AFTER_S,
            period_s=PERIOD_S, lanes=1, listens=False,
        )  # fmt: skip
        agents = Agents(world, database, self.thawed)
        dice = random.Random(world.dice.getrandbits(32))
        engine = Engine(database, settings, agents.performers(), merchant=world.provider, clock=world.clock, dice=dice)
        agents.engine = engine
        engine.listeners.append(self._committed)
        engine.add_loop("provider", ProviderWatch(world, database, engine).once, WATCH_S)
        watch = Watch(database, engine.committer, agents.net, agents.pump, lambda: engine.replica.epoch, world.refused)
        engine.add_loop("watch", watch.once, WATCH_S)
        world.swarm.attach(database, engine)
        while True:
            try:
                await engine.start()
            except StokerError:
                await asyncio.sleep(1.0)
            else:
                self.engine = engine
                self.world.engines.append(engine)
                return

    async def thawed(self) -> None:
        """A frozen process does nothing; when it wakes it goes on as if no time had passed."""
        while (left_s := self.frozen_until - self.world.now()) > 0:
            await asyncio.sleep(left_s)

    def kill(self) -> None:
        """As by SIGKILL: nothing of it runs any more, nothing is handed back."""
        if not self.alive:
            return
        self.world.note(f"server {self.name} is killed")
        self.alive = False
        self.engine = None
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._tasks.clear()

    def _committed(self, batch: Batch) -> None:
        self.world.committed(self, batch)


def task_factory(loop: asyncio.AbstractEventLoop, work: Any, context: Any = None) -> asyncio.Task[Any]:
    """Remembers which replica a task belongs to, so that killing one ends all it was doing."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    server = context.get(_current) if context is not None else _current.get()
    if server is not None:
        server._tasks.add(task)
        task.add_done_callback(server._tasks.discard)
    return task
