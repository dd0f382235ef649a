"""The blows of the campaign over hosts: links are cut, engines, agents and the server killed, and hosts reboot."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.hosts.quay import Quay
from tests.process.stand import Stand


class Kind(Enum):
    BLINK = "link cut for a moment"
    CUT = "link cut for long"
    SHIM = "agent killed"
    ENGINE = "engine killed"
    RESTART = "engine restarted"
    SERVER = "server killed"
    REBOOT = "host rebooted"


KINDS = (
    Kind.BLINK, Kind.CUT, Kind.SHIM, Kind.ENGINE, Kind.SERVER, Kind.BLINK, Kind.CUT, Kind.SHIM, Kind.RESTART,
    Kind.SERVER, Kind.REBOOT,
)  # fmt: skip
"""Of eleven blows."""
MOMENT = 0.15
"""Of the longest cut, the longest that is one of a moment."""


class Blow(NamedTuple):
    after_s: float
    """Since the one before."""
    kind: Kind
    victim: int
    lasts_s: float
    """So long a link is cut, or an engine or the server away."""


class Loss(NamedTuple):
    """What was on a host then cannot have survived."""

    host: str
    since: float
    until: float
    containers: bool
    """They alone."""


def schedule(dice: random.Random, hosts: int, pause_s: float, longest_s: float) -> Iterator[Blow]:
    """Without end, about so long after each other; the first few of each kind in their order, then in any."""
    order: Sequence[Kind] = KINDS
    while True:
        for kind in order:
            least_s, most_s = {
                Kind.BLINK: (0.0, MOMENT * longest_s),
                Kind.CUT: (0.4 * longest_s, longest_s),
            }.get(kind, (0.0, 0.2 * longest_s))
            yield Blow(dice.uniform(0.1, 2 * pause_s), kind, dice.randrange(hosts), dice.uniform(least_s, most_s))
        order = dice.sample(KINDS, len(KINDS))


@dataclass
class Battle:
    """What is hit, and gets up again."""

    stand: Stand
    quays: list[Quay]
    struck: Counter[Kind] = field(default_factory=Counter)
    losses: list[Loss] = field(default_factory=list)
    _cut: set[int] = field(default_factory=set)
    _returning: "set[asyncio.Task[None]]" = field(default_factory=set)
    _turns: dict[object, asyncio.Lock] = field(default_factory=dict)

    def strike(self, blow: Blow) -> None:
        """Returns at once; what was hit is back by itself after a while."""
        self.struck[blow.kind] += 1
        task = asyncio.get_running_loop().create_task(self._struck(blow))
        self._returning.add(task)

    async def _struck(self, blow: Blow) -> None:
        match blow.kind:
            case Kind.BLINK | Kind.CUT:
                await self._cut_off(blow)
            case Kind.SERVER:
                async with self._turn(self.stand):
                    await asyncio.to_thread(self.stand.kill_server)
                    await asyncio.sleep(blow.lasts_s)
                    await asyncio.to_thread(self.stand.start)
            case _:
                # Nobody kills what is on a host that is just switched off.
                async with self._turn(blow.victim):
                    await self._on_host(blow, self.quays[blow.victim])

    async def _cut_off(self, blow: Blow) -> None:
        if blow.victim in self._cut:
            return
        self._cut.add(blow.victim)
        host = self.quays[blow.victim].host
        await asyncio.to_thread(host.cut)
        await asyncio.sleep(blow.lasts_s)
        await asyncio.to_thread(host.mend)
        self._cut.discard(blow.victim)

    async def _on_host(self, blow: Blow, quay: Quay) -> None:
        since = time.time()
        match blow.kind:
            case Kind.SHIM:
                await asyncio.to_thread(quay.kill_shim)
            case Kind.REBOOT:
                await asyncio.to_thread(quay.reboot)
                self.losses.append(Loss(quay.host.ip, since, time.time(), containers=False))
            case _:
                number = signal.SIGKILL if blow.kind is Kind.ENGINE else signal.SIGTERM
                await asyncio.to_thread(quay.end_engine, number)
                await asyncio.sleep(blow.lasts_s)
                await asyncio.to_thread(quay.start_engine)
                await asyncio.to_thread(quay.engine_is_up)
                if not quay.lasting:
                    self.losses.append(Loss(quay.host.ip, since, time.time(), containers=True))

    def _turn(self, of: object) -> asyncio.Lock:
        return self._turns.setdefault(of, asyncio.Lock())

    async def calm(self) -> None:
        """No more blows: everything is there again."""
        await asyncio.gather(*self._returning)
        for quay in self.quays:
            await asyncio.to_thread(quay.engine_is_up)
