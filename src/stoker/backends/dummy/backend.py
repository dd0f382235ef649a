"""The dummy backend: keeps the contract of `backends/base` like any other, and breaks whatever it was told to break.

Theory of operation. What there is, is a file for each machine (`machine.py`), written before anybody is told. What
time does to a machine is done by `_pass`: it applies everything that is due, tells whoever listens, and sets one timer
for the next moment. A simulated machine lives in this process (`simulated.py`), a real one is an agent of its own that
the workshop starts and ends.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from stoker.backends.base import Handle, Order, Refused, Want
from stoker.backends.dummy.agent import SCHEME, SimulatedAgents
from stoker.backends.dummy.disk import DummyDisks
from stoker.backends.dummy.kind import BACKEND, Key, Kind
from stoker.backends.dummy.machine import Machine, Shelf, Workshop, free_ip
from stoker.backends.dummy.simulated import Simulated
from stoker.core.errors import StokerError, Unavailable
from stoker.core.ids import InstanceId, instance_name
from stoker.core.offer import Offer
from stoker.core.resources import Capacity
from stoker.core.sight import Sight, Stage, Way
from stoker.wire.dummy import Lie

LONGEST_TIMER_S: Final = 86_400.0
REMEMBERED: Final = 1_000
"""Why machines are gone."""
AGAIN_S: Final = 2.0
"""Between two tries to start the agent of a real machine, or to end it."""

log = structlog.get_logger()


class Dummy:
    name = BACKEND

    def __init__(
        self, home: Path, kinds: Mapping[Key, Kind], workshop: Workshop, clock: Callable[[], float] = time.time
    ) -> None:
        self.kinds = dict(kinds)
        self.machines: dict[InstanceId, Machine] = {}
        self.shelf = Shelf(home)
        self.disks = DummyDisks(home, self._is_real, clock)
        self._workshop, self._clock = workshop, clock
        self._simulated: dict[InstanceId, Simulated] = {}
        self._ways: dict[InstanceId, Way] = {}
        """Of real machines whose agent answers."""
        self._boots: dict[InstanceId, asyncio.Task[None]] = {}
        self._ends: dict[InstanceId, asyncio.Task[None]] = {}
        self._gone: dict[InstanceId, str] = {}
        self._tell: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Finds what an earlier life of this process has left; called once, inside the event loop."""
        self.shelf.prepare()
        self.disks.open()
        for machine in self.shelf.machines():
            self.machines[machine.id] = machine
            self._begin(machine)
        self._pass()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for machine in self._simulated.values():
            machine.close()
        tasks = [*self._boots.values(), *self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def changed(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    # The contract.

    async def offers(self, want: Want) -> Sequence[Offer]:
        return [kind.offer(self.count(key)) for key, kind in self.kinds.items()]

    async def launch(self, order: Order) -> str:
        name, key = instance_name(BACKEND, order.id), Key(order.offer, order.location, order.spot)
        if order.id in self.machines:
            return name
        kind = self.kinds.get(key)
        if kind is None:
            raise Refused(f"The dummy backend has no offer {key}.")
        if kind.room is not None and self.count(key) >= kind.room:
            raise Refused(f"no capacity: all {kind.room} machines of {key} are taken")
        if kind.lie is not Lie.FORGET:
            self._make(order, kind)
        # Who is killed now has made a machine and heard nothing of it.
        await asyncio.sleep(kind.answer_delay_s)
        if kind.lie is Lie.FAIL:
            raise Refused("no capacity, says the provider")
        return name

    async def look(self, handles: Sequence[Handle]) -> Mapping[InstanceId, Sight]:
        return {handle.id: self._sight(handle.id) for handle in handles}

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """There is nobody on it to be asked: its agent and its jobs end when it is destroyed."""

    async def destroy(self, handle: Handle) -> None:
        machine = self.machines.get(handle.id)
        if machine is None:
            return
        now = self._clock()
        if machine.gone_at is None:
            kind = self.kinds.get(machine.key)
            machine = self.put(replace(machine, gone_at=now + (kind.destroy_delay_s if kind else 0.0)))
        assert machine.gone_at is not None
        if machine.gone_at > now:
            left_s = machine.gone_at - now
            raise Unavailable(f"{machine.name} is shutting down.", retry_after_s=min(left_s, 1.0))
        await asyncio.shield(self.end(machine, "it was destroyed"))

    async def find(self, tag: InstanceId | None = None) -> Sequence[Handle]:
        return [Handle(one.id, one.name) for one in self.machines.values() if tag is None or one.id == tag]

    # Agents of simulated machines.

    @property
    def agents(self) -> SimulatedAgents:
        return SimulatedAgents(self._answering)

    def _answering(self, id: InstanceId) -> tuple[Simulated, Capacity]:
        machine, simulated = self.machines.get(id), self._simulated.get(id)
        if machine is None or simulated is None or not self.is_up(machine):
            raise Unavailable(f"Nobody answers at {SCHEME}:{id}.", code="agent_silent")
        simulated.check()
        return simulated, machine.capacity

    # What the provider does, by itself or because somebody steers it.

    def count(self, key: Key) -> int:
        return sum(one.key == key for one in self.machines.values())

    def _is_real(self, id: InstanceId) -> bool | None:
        machine = self.machines.get(id)
        return None if machine is None else machine.real

    def is_up(self, machine: Machine) -> bool:
        return machine.up_at is not None and machine.up_at <= self._clock()

    def tasks(self, machine: Machine) -> int | None:
        simulated = self._simulated.get(machine.id)
        return None if simulated is None else len(simulated.tasks)

    def put(self, machine: Machine) -> Machine:
        """On disk before anybody is told."""
        self.shelf.save(machine)
        self.machines[machine.id] = machine
        self._set_timer()
        self._tell()
        return machine

    def stirred(self) -> None:
        """What it sells has changed."""
        self._tell()

    def notice(self, machine: Machine, notice_s: float) -> None:
        """Says that it will take it back; without notice it does so at once."""
        if notice_s > 0:
            self.put(replace(machine, preempt_at=None, taken_at=self._clock() + notice_s))
        else:
            self.end(machine, "preempted")

    async def hang(self, machine: Machine, *, on: bool) -> None:
        machine = self.put(replace(machine, hanging=on))
        if machine.real:
            await self._workshop.pause(machine.id, self.shelf.agent(machine.id), on=on)
        else:
            self._hush(machine)

    def end(self, machine: Machine, why: str) -> "asyncio.Task[None]":
        """It is gone as soon as nothing of it runs any more."""
        if (under_way := self._ends.get(machine.id)) is not None:
            return under_way
        self._gone[machine.id] = why
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        ending = self._ends[machine.id] = asyncio.get_running_loop().create_task(self._end(machine))
        ending.add_done_callback(lambda done: self._ended(machine, done))
        return ending

    async def _end(self, machine: Machine) -> None:
        if (boot := self._boots.pop(machine.id, None)) is not None:
            boot.cancel()
            await asyncio.gather(boot, return_exceptions=True)
        if (simulated := self._simulated.pop(machine.id, None)) is not None:
            simulated.power_off()
        if machine.real:
            await self._workshop.end(machine.id, self.shelf.agent(machine.id))
        self.shelf.remove(machine.id)
        self.machines.pop(machine.id, None)
        self._ways.pop(machine.id, None)
        self._tell()

    def _ended(self, machine: Machine, done: "asyncio.Task[None]") -> None:
        self._ends.pop(machine.id, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("a dummy machine does not end", machine=machine.name, error=str(error))
            asyncio.get_running_loop().call_later(AGAIN_S, self._pass)

    def _make(self, order: Order, kind: Kind) -> None:
        now = self._clock()
        up_at = None if kind.lie is Lie.STILLBORN else now + kind.launch_delay_s
        machine = Machine(
            order.id, kind.key, kind.capacity, kind.real, now, up_at,
            ip=free_ip(one.ip for one in self.machines.values()), token=secrets.token_hex(16),
            preempt_at=None if kind.preempt_after_s is None else now + kind.preempt_after_s,
            notice_s=kind.preempt_notice_s,
        )  # fmt: skip
        self.put(machine)
        self._begin(machine)

    def _begin(self, machine: Machine) -> None:
        if not machine.real:
            path = self.shelf.directory(machine.id) / "tasks.jsonl"
            self._simulated[machine.id] = Simulated(machine.id, path, self._clock)
            self._hush(machine)
        elif self.is_up(machine):
            self._boot(machine.id)

    def _hush(self, machine: Machine) -> None:
        if (simulated := self._simulated.get(machine.id)) is not None:
            simulated.fall_silent("it hangs" if machine.hanging else "")

    def _sight(self, id: InstanceId) -> Sight:
        machine = self.machines.get(id)
        if machine is None:
            return Sight(Stage.GONE, message=f"the machine is gone: {self._gone[id]}" if id in self._gone else "")
        taken_in_s = None if machine.taken_at is None else max(0.0, machine.taken_at - self._clock())
        if not machine.real:
            way: Way | None = Way(f"{SCHEME}:{id}", machine.token, machine.ip) if self.is_up(machine) else None
        else:
            way = self._ways.get(id)
            if way is not None and not machine.hanging and not self._workshop.listening(self.shelf.agent(id)):
                # As a service manager would: the machine is there, only its agent is not.
                self._boot(id)
        return Sight(Stage.COMING if way is None else Stage.UP, way, taken_in_s)

    def _boot(self, id: InstanceId) -> None:
        if id not in self._boots and id not in self._ends:
            self._boots[id] = asyncio.get_running_loop().create_task(self._booted(id), name=f"boot {id}")

    async def _booted(self, id: InstanceId) -> None:
        while (machine := self.machines.get(id)) is not None:
            try:
                way = await self._workshop.start(id, self.shelf.agent(id))
            except (StokerError, OSError) as error:
                log.warning("the agent of a dummy machine does not start", machine=machine.name, error=str(error))
                await asyncio.sleep(AGAIN_S)
                continue
            self._ways[id] = replace(way, ip=machine.ip)
            break
        self._boots.pop(id, None)
        self._tell()

    # Time.

    def _pass(self) -> None:
        """Does what is due."""
        now, due = self._clock(), 0
        for machine in list(self.machines.values()):
            due += self._due(machine, now)
        self._set_timer()
        if due:
            self._tell()

    def _due(self, machine: Machine, now: float) -> bool:
        if machine.taken_at is not None and machine.taken_at <= now:
            self.end(machine, "preempted")
        elif machine.preempt_at is not None and machine.preempt_at <= now:
            self.notice(machine, machine.notice_s)
        elif machine.gone_at is not None and machine.gone_at <= now:
            self.end(machine, "it was destroyed")
        elif self.is_up(machine) and machine.real and machine.id not in self._ways:
            self._boot(machine.id)
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        next_at = _earliest(machine.next_at(now) for machine in self.machines.values())
        if next_at is not None:
            wait_s = min(next_at - now + 0.001, LONGEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._pass)


def _earliest(moments: Iterable[float | None]) -> float | None:
    return min((at for at in moments if at is not None), default=None)
