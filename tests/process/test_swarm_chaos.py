"""Workers and the server are killed and frozen again and again over a large graph; then everything adds up.

Waves of tasks are sent all the time while blows fall by a schedule. Then there is peace, everything comes to its end,
and tables, figures and what the commands noted on disk are compared. `make chaos-swarm` is the full form:
`STOKER_MINUTES` says how long blows fall, `STOKER_TASKS` how many tasks there are, and `STOKER_SEED` makes another plan
and another schedule.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker.client import task as client_task
from stoker.client.client import Client, Json, Unreachable
from stoker.core.errors import Broken, Unavailable
from tests.process.blow import Battle, battle, schedule
from tests.process.stand import Stand, standing
from tests.process.trail import Trail
from tests.process.verdict import Ends, judge
from tests.process.wave import Planned, Wave

pytestmark = pytest.mark.xdist_group("swarm-chaos")

MINUTES = float(os.environ.get("STOKER_MINUTES", "0.07"))
TASKS = int(os.environ.get("STOKER_TASKS") or round(2_500 * MINUTES))
SEED = int(os.environ.get("STOKER_SEED", "1"))
LONG = MINUTES >= 1
WORKERS = 4 if LONG else 3
LEASE_S = 3.0 if LONG else 2.0
PAUSE_S = 1.6 if LONG else 0.4
"""Between two blows."""
LONGEST_S = 6.0 if LONG else 2.0
GROUP = "chaos"
WAVES = max(4, round(2 * MINUTES))
SAY_S = 10.0 if LONG else 2.0
STALLED_S = 90.0
"""Nothing has ended for so long although nothing is done to it any more: it never will."""
AWAY = (Unreachable, Unavailable, Broken)


@dataclass
class Campaign:
    stand: Stand
    battle: Battle
    trail: Trail
    dice: random.Random
    sent: list[Planned] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    told: Json = field(default_factory=dict)
    """The latest figures of the server."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> int:
        return len(self.sent) - self.ended

    @property
    def ended(self) -> int:
        states = self.told.get("states", {})
        return int(states.get("terminated", 0) + states.get("cancelled", 0))

    async def feed(self) -> None:
        """A wave goes out when its time has come, and when what was sent before is nearly done."""
        size = -(-TASKS // WAVES)
        for number in range(WAVES):
            wave = Wave(number, min(size, TASKS - len(self.sent)), self.dice, LONGEST_S)
            while self.age_s < 0.9 * 60 * MINUTES * number / WAVES or self.left > 2 * size:
                await asyncio.sleep(0.1)
            if wave.tasks:
                await self._send(wave)

    async def _send(self, wave: Wave) -> None:
        """Until it is accepted. Sent again with the same key, it is stored once."""
        bodies = list(wave.bodies(self.trail, GROUP))
        client = self.stand.client.again()
        while True:
            try:
                await asyncio.to_thread(client_task.add_many, client, bodies, key=f"wave-{wave.number}")
                break
            except AWAY:
                await asyncio.sleep(0.2)
        self.sent += wave.tasks

    async def watch(self) -> None:
        client, said_at = self.stand.client.again(), 0.0
        while True:
            await asyncio.to_thread(self.look, client)
            if self.age_s - said_at >= SAY_S:
                said_at = self.age_s
                print(self.line(), flush=True)
            await asyncio.sleep(0.5)

    def look(self, client: Client) -> None:
        try:
            self.told = client.get(client.at("tasks", "statistics"), {"group": GROUP})
        except AWAY:
            # It is away just now.
            return

    def line(self) -> str:
        blows = ", ".join(f"{n}× {kind.value}" for kind, n in sorted(self.battle.struck.items(), key=str))
        lost, retries = self.told.get("lost", 0), self.told.get("retries", 0)
        return (
            f"{self.age_s:6.0f} s: {self.ended:,} of {len(self.sent):,} tasks ended, {retries:,} further attempts, "
            f"{lost:,} lost; {blows or 'no blow yet'}"
        )

    async def under_fire(self) -> None:
        for blow in schedule(random.Random(SEED), WORKERS, LEASE_S, PAUSE_S):
            await asyncio.sleep(blow.after_s)
            if self.age_s > 60 * MINUTES:
                return
            await self.battle.strike(blow)

    async def run(self) -> Json:
        """The figures, when everything has ended."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.watch())
            feeding = tasks.create_task(self.feed())
            await self._moves(lambda: self.ended > 0)
            self.began = time.monotonic()
            await self.under_fire()
            await feeding
            await self.battle.calm()
            await self._moves(lambda: self.left == 0)
            watching.cancel()
        self.look(self.stand.client)
        print(self.line(), flush=True)
        return self.told

    async def _moves(self, enough: Callable[[], bool]) -> None:
        """Until it is enough; it has to go on."""
        moved_at, before = time.monotonic(), self.ended
        while not enough():
            if self.ended != before:
                moved_at, before = time.monotonic(), self.ended
            assert time.monotonic() < moved_at + STALLED_S, f"it does not go on: {self.line()}\n{self.told}"
            await asyncio.sleep(0.1)


def test_blows_by_a_schedule_lose_nothing_and_double_nothing(new_home: Callable[[], Path], tmp_path: Path) -> None:
    """The graph is whole afterwards, whoever was killed, frozen or away."""
    trail = Trail(tmp_path / "trail")
    print(f"\n{TASKS:,} tasks, blows for {MINUTES:g} minutes, seed {SEED}", flush=True)
    with (
        standing(new_home(), local=False, STOKER_LEASE=f"{LEASE_S:g}s") as stand,
        battle(stand, tmp_path, WORKERS, "--cpus", "16", "--memory", "8GB") as fought,
    ):
        campaign = Campaign(stand, fought, trail, random.Random(SEED))
        told = asyncio.run(campaign.run())
        ends = asyncio.run(Ends.read(stand.database_url, campaign.sent, trail.notes()))
        judge(ends, told)
        print(verdict(ends, campaign), flush=True)


def verdict(ends: Ends, campaign: Campaign) -> str:
    states = [task["state"] for task in ends.tasks.values()]
    unnoticed = len(ends.records.keys() - ends.notes.begun.keys())
    return (
        f"judged after {campaign.age_s:.0f} s: {len(states):,} tasks, {len(ends.successes):,} succeeded, "
        f"{states.count('cancelled'):,} cancelled; {len(ends.records):,} attempts, {unnoticed:,} of them lost before "
        f"they began, {len(ends.notes.beside):,} beside one whose lease was over"
    )
