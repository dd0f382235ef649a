"""A simulated worker of the swarm: claims, runs, reports and beats as the real one will, on a network that fails it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from stoker.core.errors import Unavailable
from stoker.core.graph import Held
from stoker.core.ids import WorkerId
from stoker.engine.swarm import LEASE_S, Heard, Word
from stoker.store.claim import Ask
from stoker.store.report import End
from stoker.store.worker import Profile

if TYPE_CHECKING:
    from tests.sim.mirror import Mirrored
    from tests.sim.swarm import Swarming

T = TypeVar("T")
SLOTS = 2
AHEAD = 1
"""Tasks that it takes beyond its slots, so that it never waits for the server."""
WAITS_S = (0.0, 3.0, 9.0)
"""How long a claim may stand."""


@dataclass(slots=True, eq=False)
class Execution:
    """One attempt in the hands of a worker. The process lives on by itself while its worker is frozen or cut off."""

    held: Held
    worker: WorkerId
    started_at: float | None = None
    ends_at: float = 0.0
    exit_status: int | None = 0
    stopped: bool = False
    unwanted: bool = False
    returned: bool = False
    """It is being given back, so it must not be started any more, whatever becomes of the message."""

    def lives(self, now: float) -> bool:
        return self.started_at is not None and now < self.ends_at


@dataclass(eq=False)
class Worker:
    swarm: "Swarming"
    id: WorkerId
    holding: dict[Held, Execution] = field(default_factory=dict)
    """All that was claimed, until the report of its end was answered."""
    frozen_until: float = 0.0
    cut_until: float = 0.0
    draining: bool = False
    number: int = 0
    settled: int = 0
    """Its last claim that was answered or given up: heartbeats say no more than that."""
    lease_until: float = 0.0
    """By its own clock, counted from when the request was sent."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _claim_at: float = 0.0
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"worker {str(self.id)[-6:]}"

    async def live(self) -> None:
        """Until it is killed, drained, or there is nothing left to do."""
        world = self.swarm.world
        self._tasks = [world.background(self._work()), world.background(self._beats())]
        await self.over.wait()

    def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.over.set()

    def kill(self) -> None:
        """The process is gone, and all that it ran."""
        for one in self.holding.values():
            one.ends_at = 0.0
        self.leave()

    async def _work(self) -> None:
        world = self.swarm.world
        await self.swarm.ask(lambda swarm: swarm.register(self.id, self.swarm.project, Profile(self.name)))
        self.lease_until = world.now() + LEASE_S
        while not (self.swarm.over or self.draining) or self.holding:
            await world.pause(1.0, 5.0)
            await self._awake()
            self._start()
            await self._report()
            await self._give_back()
            due = world.now() >= self._claim_at or self.swarm.hinted()
            if due and not self.draining and len(self.holding) < SLOTS + AHEAD:
                await self._claim(SLOTS + AHEAD - len(self.holding))
        world.note(f"{self.name} leaves")
        # Should nobody hear it, its lease ends by itself.
        world.background(self.swarm.told(lambda swarm: swarm.leave(self.id)))
        self.leave()

    async def _beats(self) -> None:
        while True:
            await self.swarm.world.pause(12.0, 26.0)
            await self._awake()
            if self.number:
                await self._beat()

    async def _awake(self) -> None:
        """Whatever it was about to do, it does after the freeze."""
        while (left_s := self.frozen_until - self.swarm.world.now()) > 0:
            # In pieces, because healing ends it before its time.
            await self.swarm.world.pause(min(left_s, 5.0), min(left_s, 5.0))

    async def _say(self, word: Word, wait_s: float = 0.0, lost: str = "") -> Heard:
        heard = await self._call(lambda swarm: swarm.muster.say(word, wait_s), lost)
        assert heard.known, "it has not left yet"
        return heard

    async def _call(self, act: "Callable[[Mirrored], Awaitable[T]]", lost: str = "") -> T:
        """Either way the worker does not know what happened; `lost` names the fault in which all did but the answer."""
        answer = None if self._cut() else await self.swarm.call(act)
        if answer is None or self._cut() or (lost and self.swarm.world.chance(lost, 0.1)):
            await self.swarm.world.pause(1.0, 10.0)
            raise Unavailable("no answer")
        await self._awake()
        return answer

    def _cut(self) -> bool:
        return self.swarm.world.now() < self.cut_until

    def _start(self) -> None:
        now = self.swarm.world.now()
        running = sum(one.started_at is not None for one in self.holding.values())
        for one in self.holding.values():
            # Past its lease it asks first: somebody else may have the task.
            startable = one.started_at is None and not one.unwanted and not one.returned and now < self.lease_until
            if startable and running < SLOTS and not self.draining:
                running += 1
                length_s, one.exit_status = self.swarm.program(one.held.task)
                one.started_at, one.ends_at = now, now + length_s
                self.swarm.started(one)

    def stop(self, held: Held) -> None:
        """Cancelled while it is here: stopped within its grace, unless the process ends by itself before."""
        one = self.holding.get(held)
        if one is None or one.unwanted:
            return
        one.unwanted = True
        now = self.swarm.world.now()
        gone_at = now + self.swarm.world.dice.uniform(0.1, 10.0)
        if one.lives(now) and gone_at < one.ends_at:
            one.ends_at, one.stopped, one.exit_status = gone_at, True, self.swarm.world.dice.choice((143, None))

    async def _report(self) -> None:
        world = self.swarm.world
        now = world.now()
        ended = [one for one in self.holding.values() if one.started_at is not None and one.ends_at <= now]
        if not ended:
            return
        ends = [End(one.held, one.exit_status, one.stopped, one.started_at, one.ends_at) for one in ended]
        if world.chance("report lost", 0.1):
            return
        if world.chance("report doubled", 0.3):
            world.background(self._report_again(ends, world.dice.choice((1.0, 15.0, 40.0, 90.0))))
        try:
            heard = await self._say(Word(self.id, ends=ends))
        except Unavailable:
            return
        for held, state in heard.refused:
            world.note(f"{self.name} reports {held.task.hex[-6:]}/{held.attempt} too late: it is {state}")
        for one in ended:
            self.holding.pop(one.held, None)
        self._claim_at = world.now()

    async def _report_again(self, ends: Sequence[End], delay_s: float) -> None:
        await self.swarm.world.pause(delay_s / 2, delay_s)
        await self.swarm.told(lambda swarm: swarm.muster.say(Word(self.id, ends=ends)))

    async def _give_back(self) -> None:
        unstarted = [
            one
            for one in self.holding.values()
            if one.started_at is None and (self.draining or one.unwanted or one.returned)
        ]
        if not unstarted:
            return
        for one in unstarted:
            one.returned = True
        held = [one.held for one in unstarted]
        try:
            await self._say(Word(self.id, unstarted=held))
        except Unavailable:
            return
        for one in unstarted:
            self.holding.pop(one.held, None)

    async def _claim(self, n: int) -> None:
        world = self.swarm.world
        self.number += 1
        number, sent_at = self.number, world.now()
        try:
            word = Word(self.id, ask=Ask.anything(self.id, number, n))
            # Who holds something has other things to do than to wait.
            wait_s = 0.0 if self.holding else world.dice.choice(WAITS_S)
            heard = await self._say(word, wait_s, lost="claim answer lost")
        except Unavailable:
            # Given up: should the answer still come, it is not looked at, and the next heartbeat gives it back.
            self.settled = number
            return
        self.holding |= {one.held: Execution(one.held, self.id) for one in heard.works}
        self.settled = number
        self.lease_until = max(self.lease_until, sent_at + LEASE_S)
        if not heard.works:
            self._claim_at = world.now() + world.dice.uniform(15.0, 40.0)

    async def _beat(self) -> None:
        world = self.swarm.world
        listed, number, sent_at = list(self.holding), self.settled, world.now()
        try:
            beat = await self._call(lambda swarm: swarm.heartbeat(self.id, listed, number))
        except Unavailable:
            return
        self.lease_until = max(self.lease_until, sent_at + LEASE_S)
        for held in beat.gone:
            if (one := self.holding.pop(held, None)) is not None and one.lives(world.now()):
                world.note(f"{self.name} stops {held.task.hex[-6:]}/{held.attempt}: it is not its own any more")
                one.ends_at = 0.0
        for held in sorted(beat.unwanted):
            self.stop(held)
