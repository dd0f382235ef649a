"""The blows of the campaign: `kill -9` and SIGSTOP of workers, `kill -9` of the server, as a seed has it."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.process.stand import PATIENCE_S, Stand
from tests.worker.stage import Hand, children_of


class Kind(Enum):
    WORKER = "worker killed"
    KEEPER = "keeper killed"
    FROZEN = "worker frozen"
    SERVER = "server killed"


KINDS = (Kind.WORKER, Kind.WORKER, Kind.FROZEN, Kind.FROZEN, Kind.SERVER, Kind.KEEPER)


class Blow(NamedTuple):
    after_s: float
    """Since the one before."""
    kind: Kind
    victim: int
    lasts_s: float
    """So long a worker is frozen, or the server away."""


def schedule(dice: random.Random, workers: int, lease_s: float, pause_s: float) -> Iterator[Blow]:
    """Without end, about so long after each other. Of six blows each kind has its part, in any order."""
    while True:
        for kind in dice.sample(KINDS, len(KINDS)):
            longest_s = lease_s * (2.5 if kind is Kind.FROZEN else 1.0)
            yield Blow(dice.uniform(0.1, 2 * pause_s), kind, dice.randrange(workers), dice.uniform(0.0, longest_s))


@dataclass
class Battle:
    """The processes that are hit, and get up again."""

    stand: Stand
    home: Path
    count: int
    options: tuple[str, ...]
    hands: list[Hand] = field(default_factory=list)
    frozen: dict[int, int] = field(default_factory=dict)
    """By worker: its pid as a descriptor, which never means another process."""
    struck: Counter[Kind] = field(default_factory=Counter)
    _pending: set["asyncio.Task[None]"] = field(default_factory=set)
    _returning: "asyncio.Task[None] | None" = None

    def start(self, number: int) -> Hand:
        environ = {"STOKER_TOKEN": self.stand.client.token, "STOKER_URL": self.stand.url}
        return Hand(self.stand, self.home / f"worker-{number}", "--name", f"w{number}", *self.options, **environ)

    async def strike(self, blow: Blow) -> None:
        self.struck[blow.kind] += 1
        match blow.kind:
            case Kind.SERVER:
                await self._server_is_up()
                self.stand.kill_server()
                self._returning = asyncio.create_task(self._return(blow.lasts_s))
            case Kind.FROZEN:
                self._freeze(blow)
            case Kind.WORKER:
                await self._again(blow.victim, worker=True)
            case Kind.KEEPER:
                # A keeper that dies tells its worker to go, which has to be able to hear it.
                self._thaw(blow.victim)
                await self._again(blow.victim, worker=False)

    async def _return(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self.stand.start)

    async def _server_is_up(self) -> None:
        if self._returning is not None:
            await self._returning

    async def _again(self, number: int, *, worker: bool) -> None:
        hand = self.hands[number]
        victims = children_of(hand.keeper.pid) if worker else []
        for pid in victims or [hand.keeper.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(hand.keeper.wait, PATIENCE_S)
        self._forget(number)
        self.hands[number] = self.start(number)

    def _freeze(self, blow: Blow) -> None:
        pids = children_of(self.hands[blow.victim].keeper.pid)
        if blow.victim in self.frozen or not pids:
            return
        self.frozen[blow.victim] = os.pidfd_open(pids[0])
        self._send(blow.victim, signal.SIGSTOP)
        thaw = asyncio.create_task(self._thaw_later(blow.victim, self.frozen[blow.victim], blow.lasts_s))
        self._pending.add(thaw)
        thaw.add_done_callback(self._pending.discard)

    async def _thaw_later(self, number: int, descriptor: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.frozen.get(number) == descriptor:
            self._thaw(number)

    def _send(self, number: int, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.frozen[number], what)

    def _thaw(self, number: int) -> None:
        if number in self.frozen:
            self._send(number, signal.SIGCONT)
            self._forget(number)

    def _forget(self, number: int) -> None:
        if (descriptor := self.frozen.pop(number, None)) is not None:
            os.close(descriptor)

    async def calm(self) -> None:
        """No more blows: everybody is there and awake."""
        for number in list(self.frozen):
            self._thaw(number)
        await self._server_is_up()
        for number, hand in enumerate(self.hands):
            assert hand.keeper.poll() is None, f"worker {number} ended by itself:\n{hand.said()[-2000:]}"


@contextmanager
def battle(stand: Stand, home: Path, count: int, *options: str) -> Iterator[Battle]:
    made = Battle(stand, home, count, options)
    try:
        made.hands += [made.start(number) for number in range(count)]
        yield made
    finally:
        for hand in made.hands:
            hand.kill()
