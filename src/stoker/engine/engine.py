"""One replica's engine: the committer, the errands and the loops, wired and started together."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from stoker.core.ids import uuid7
from stoker.core.machine import Effect
from stoker.engine import hint, volume
from stoker.engine.batch import Batch
from stoker.engine.change import Change
from stoker.engine.clock import Clock, DatabaseClock
from stoker.engine.commit import LANES, Committer
from stoker.engine.draft import Answer
from stoker.engine.errand import Errands, Performer
from stoker.engine.fleet import Fleets
from stoker.engine.loop import Counts, Loop, Once
from stoker.engine.muster import PERIOD_S as MUSTER_PERIOD_S
from stoker.engine.muster import Muster
from stoker.engine.placement import Merchant, NoOffers, Placement
from stoker.engine.replica import DEAD_AFTER_S, PERIOD_S, Replica
from stoker.engine.retention import PERIOD_S as RETENTION_PERIOD_S
from stoker.engine.retention import Retention
from stoker.engine.schedule import Scheduler
from stoker.engine.swarm import LEASE_S, Swarm
from stoker.engine.tally import PERIOD_S as TALLIES_PERIOD_S
from stoker.engine.tally import Tallies
from stoker.engine.tell import Teller
from stoker.engine.timer import Timer
from stoker.store.continuation import Opened
from stoker.store.database import Database

STOP_S = 10.0
"""How long a stop waits for errands under way; the next replica performs the rest again."""


@dataclass(frozen=True, slots=True)
class Settings:
    name: str
    """Of this replica: two processes never have the same one at the same time."""
    max_launching: int = 8
    max_alive: int = 2_000
    heartbeat_s: float = PERIOD_S
    dead_after_s: float = DEAD_AFTER_S
    period_s: float = 5.0
    """Of every loop that hints usually wake."""
    lease_s: float = LEASE_S
    """How long a worker of the swarm may be silent before its tasks move on."""
    lanes: int = LANES
    listens: bool = True
    """Hear other replicas over LISTEN; the simulation passes hints on by itself."""


class Engine:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        performers: Mapping[type[Effect], Performer],
        *,
        merchant: Merchant | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._database, self._settings = database, settings
        self._dice = dice or random.SystemRandom()
        self._own_clock = None if clock else DatabaseClock(database, lambda: self.replica.others == 0)
        self.clock: Clock = clock or self._own_clock  # type: ignore[assignment]
        self.committer = Committer(database, self.clock, self.new_id, self._committed, lanes=settings.lanes)
        teller = Teller(database, self.clock, self.committer)
        self.errands = Errands(
            database, self.clock, self.committer, {**teller.performers(), **performers}, lambda: self.wake("errands")
        )
        self.replica = Replica(
            database, self.clock, settings.name, self._began, lambda: self.wake("errands"),
            period_s=settings.heartbeat_s, dead_after_s=settings.dead_after_s,
        )  # fmt: skip
        self.merchant: Merchant = merchant or NoOffers()
        self.placement = Placement(self.committer, self.clock, self.merchant, self.new_id)
        self.fleets = Fleets(database, self.committer, self.clock, self.merchant, self.new_id, settings.period_s)
        away_after_s = max(settings.dead_after_s, 3 * settings.period_s)
        self.swarm = Swarm(database, self.clock, settings.lease_s, away_after_s)
        self.muster = Muster(self.swarm)
        self.swarm.opened = self._opened
        self._timer = Timer(database, self.clock, self.committer, self.replica.presence)
        scheduler = Scheduler(self.committer, self.clock, settings.max_launching, settings.max_alive)
        self.loops: dict[str, Loop] = {}
        self.add_loop("replica", self._beat, settings.heartbeat_s)
        self.add_loop("errands", self.errands.once, settings.period_s)
        self.add_loop("timer", self._timer.once, settings.period_s)
        self.add_loop(hint.PLACEMENT, self.placement.once, settings.period_s)
        self.add_loop(volume.LOOP, volume.Volumes(database, self.committer).once, settings.period_s)
        self.add_loop(hint.FLEETS, self.fleets.once, settings.period_s)
        self.add_loop(hint.MANAGED, scheduler.once, settings.period_s)
        self.add_loop("swarm", lambda: self.swarm.expire_once(), settings.period_s)
        self.add_loop(hint.MOMENTS, lambda: self.swarm.moments_once(), settings.period_s)
        self.add_loop(hint.CLAIMS, self.muster.once, MUSTER_PERIOD_S)
        self.add_loop("tallies", Tallies(database, self.clock).once, TALLIES_PERIOD_S)
        self.add_loop("retention", Retention(database, self.clock).once, RETENTION_PERIOD_S)
        self._speaker = hint.Speaker(database, lambda: self.replica.epoch, self._heard)
        self._tasks: list[asyncio.Task[None]] = []
        self.listeners: list[Callable[[Batch], None]] = []

    def add_loop(self, name: str, once: Once, period_s: float) -> None:
        self.loops[name] = Loop(name, once, period_s, self._dice)

    def new_id(self) -> UUID:
        return uuid7(self.clock.now(), self._dice.getrandbits(80))

    async def start(self) -> None:
        if self._own_clock:
            await self._own_clock.follow()
        await self.replica.register()
        # What an earlier life of ours left behind is taken up before anything new comes.
        await self.replica.once()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(one.run(), name=f"loop {one.name}") for one in self.loops.values()]
        if self._settings.listens:
            listener = hint.Listener(self._database, lambda: self.replica.epoch, self.wake)
            self._tasks.append(loop.create_task(listener.run(), name="listener"))
            # So that the others know of us before their next beat.
            self._speaker.say(["replica"])

    async def stop(self) -> None:
        """In good order: nothing new, what is under way ends, the rest is handed back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.muster.close()
        await self.errands.close(STOP_S)
        await self.committer.close()
        await self.replica.leave()

    async def commit(self, change: Change) -> Answer:
        return await self.committer.commit(change)

    def wake(self, name: str) -> None:
        if name in self.loops:
            self.loops[name].hint()

    def tell(self, *names: str) -> None:
        """Something changed beside the commits: loops here and elsewhere have something to do."""
        for name in names:
            self.wake(name)
        self._speaker.say(names)

    def _opened(self, opened: Opened) -> None:
        """Swarm tasks became available: whoever waits for such, here and elsewhere, has something to do."""
        self.muster.heard(opened)
        self._speaker.say([hint.CLAIMS])

    def _heard(self) -> bool:
        return self._settings.listens and self.replica.others > 0

    def _began(self, epoch: int) -> None:
        self.committer.owner = epoch

    async def _beat(self) -> Counts:
        if self._own_clock:
            await self._own_clock.follow()
        return await self.replica.once()

    def _committed(self, batch: Batch) -> None:
        self.errands.start(batch.errands)
        # Those who watch runs here hear the batch itself.
        for name in batch.hints - {hint.RUNS}:
            self.wake(name)
        self._speaker.say(batch.hints)
        self._timer.saw(batch.moved, self.wake)
        self.fleets.saw(batch.moved, self.wake)
        if volume.went(batch.moved):
            self.wake(volume.LOOP)
        for listener in self.listeners:
            listener(batch)
