"""Links, engines, agents, hosts and the server are hit again and again while runs are on three hosts; then all adds up.

Runs are submitted all the time while blows fall by a schedule. Then there is peace, everything comes to its end, the
fleet is deleted, and tables, logs, what the programs noted and what is left on the hosts are looked at. `make
chaos-hosts` is the full form: `STOKER_MINUTES` says how long blows fall, `STOKER_RUNS` how many runs there are, and
`STOKER_SEED` makes another plan and another schedule.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stoker.client import log as client_log
from stoker.client import run as client_run
from stoker.client.client import Client, Json, Unreachable
from stoker.client.log import Which
from stoker.core.errors import Broken, NotFound, Unavailable
from stoker.wire.frame import decode
from tests.hosts.blow import Battle, schedule
from tests.hosts.land import Land
from tests.hosts.plan import Planned, plans
from tests.hosts.quay import SHIM, Quay, Traces
from tests.hosts.verdict import Ends, judge
from tests.machine import as_root
from tests.process.stand import Stand
from tests.process.trail import Attempt, Trail

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

MINUTES = float(os.environ.get("STOKER_MINUTES", "0.4"))
RUNS = int(os.environ.get("STOKER_RUNS") or max(12, round(200 / 15 * MINUTES)))
SEED = int(os.environ.get("STOKER_SEED", "1"))
LONG = MINUTES >= 1
HOSTS = 3
PAUSE_S = 5.0 if LONG else 2.0
"""Between two blows."""
LONGEST_CUT_S = 45.0 if LONG else 5.0
LONGEST_RUN_S = 40.0 if LONG else 10.0
SAY_S = 15.0 if LONG else 5.0
STALLED_S = 150.0 if LONG else 60.0
"""Nothing has ended for so long although nothing is done to it any more: it never will."""
FLEET = "office"
AWAY = (Unreachable, Unavailable, Broken)
IMPATIENT = """
from stoker.engine import ssh as tending, watch
from stoker.transport import ssh, tunnel
ssh.KEEPALIVE_S, ssh.CONNECT_S, tunnel.LONGEST_DELAY_S = 0.3, 2.0, 1.0
watch.SILENT_AFTER_S, watch.LONGEST_RETRY_S, tending.TEND_S, tending.AGAIN_S = 1.0, 0.5, 0.5, 0.5
from stoker.cli.main import main
main()
"""
"""The server of the short form: it notices in one second what takes it fifteen, and so on; the rules are the same."""


@dataclass
class Campaign:
    stand: Stand
    battle: Battle
    trail: Trail
    planned: list[Planned]
    sent: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)
    _stopping: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began

    async def asked(self, ask: Callable[[Client], Any]) -> Any:
        """Until the server is there to answer; each question may be asked again."""
        client = self.stand.client.again()
        while True:
            try:
                return await asyncio.to_thread(ask, client)
            except AWAY:
                await asyncio.sleep(0.2)

    async def feed(self) -> None:
        for number, one in enumerate(self.planned):
            while self.age_s < 0.9 * 60 * MINUTES * number / len(self.planned):
                await asyncio.sleep(0.05)
            configuration, key = one.configuration(), str(uuid4())
            await self.asked(lambda client: client_run.submit(client, configuration, expected=None, key=key))  # noqa: B023
            self.sent.add(one.name)
            if one.stop_after_s is not None:
                self._stopping.add(asyncio.create_task(self._stop(one.name, one.stop_after_s)))
        await asyncio.gather(*self._stopping)

    async def _stop(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.asked(lambda client: client_run.stop(client, [name], abort=False))

    async def watch(self) -> None:
        said_at = 0.0
        while True:
            runs = await self.asked(lambda client: list(client_run.listed(client)))
            self.ended = {run["name"] for run in runs if client_run.finished(run)}
            if self.age_s - said_at >= SAY_S:
                said_at = self.age_s
                print(self.line(), flush=True)
            await asyncio.sleep(0.5)

    def line(self) -> str:
        blows = ", ".join(f"{n}× {kind.value}" for kind, n in sorted(self.battle.struck.items(), key=str))
        return f"{self.age_s:6.0f} s: {len(self.ended)} of {len(self.sent)} runs ended; {blows or 'no blow yet'}"

    async def under_fire(self) -> None:
        for blow in schedule(random.Random(SEED), HOSTS, PAUSE_S, LONGEST_CUT_S):
            await asyncio.sleep(blow.after_s)
            if self.age_s > 60 * MINUTES:
                return
            self.battle.strike(blow)

    async def run(self) -> dict[str, dict[str, list[str]]]:
        """By host, what is left on it when all runs have ended and the fleet is gone."""
        before = await self._prepare()
        self.began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.watch())
            feeding = tasks.create_task(self.feed())
            await self.under_fire()
            await self.battle.calm()
            await feeding
            await self._moves()
            watching.cancel()
        print(self.line(), flush=True)
        await self._until(self._all_idle, "all that the runs had on the hosts is given back")
        self.logs = await self._logs()
        await self.asked(lambda client: client.ask("DELETE", client.at("fleets", FLEET)))
        await self._until(self._gone, "the fleet is gone")
        quays = self.battle.quays
        return {quay.host.ip: quay.traces().beyond(then) for quay, then in zip(quays, before, strict=True)}

    async def _prepare(self) -> list[Traces]:
        quays = self.battle.quays
        for quay in quays:
            await asyncio.to_thread(quay.boot)
        for quay in quays:
            await asyncio.to_thread(quay.engine_is_up)
            await asyncio.to_thread(quay.make_image, quay.shared / "tree")
        before = [quay.traces() for quay in quays]
        land = quays[0].host.land
        told = {"user": "root", "identity_file": "land.key", "hosts": [quay.host.ip for quay in quays]}
        configuration = {"type": "fleet", "name": FLEET, "ssh_config": told, "blocks": 4}
        body = {"configuration": configuration, "keys": {"land.key": land.key.read_text()}}
        await asyncio.to_thread(self.stand.start)
        await self.asked(lambda client: client.post(client.at("fleets"), body))
        await self._until(self._all_idle, "the hosts are there")
        return before

    async def _instances(self) -> list[Json]:
        found: list[Json] = await self.asked(lambda client: list(client.items(client.at("instances"))))
        return found

    async def _all_idle(self) -> bool:
        """And each with its engine."""
        found = await self._instances()
        return [one["status"] for one in found if one["resources"]["docker"]] == ["IDLE"] * HOSTS

    async def _gone(self) -> bool:
        try:
            await self.asked(lambda client: client.get(client.at("fleets", FLEET)))
        except NotFound:
            return True
        return False

    async def _until(self, happened: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + STALLED_S
        while not await happened():
            assert time.monotonic() < deadline, f"waited in vain: {what}\n{await self._story()}"
            await asyncio.sleep(0.1)

    async def _moves(self) -> None:
        """Until everything has ended; it has to go on."""
        moved_at, before = time.monotonic(), len(self.ended)
        while len(self.ended) < len(self.planned):
            if len(self.ended) != before:
                moved_at, before = time.monotonic(), len(self.ended)
            assert time.monotonic() < moved_at + STALLED_S, f"it does not go on: {self.line()}\n{await self._story()}"
            await asyncio.sleep(0.1)

    async def _story(self) -> str:
        """What there is to know of runs that do not end, and of the hosts."""
        lines = [repr(one) for one in await self._instances()]
        for name in sorted(self.sent - self.ended):
            run = await self.asked(lambda client: client_run.get(client, name))  # noqa: B023
            lines += [name, *map(repr, run["jobs"])]
        for quay in self.battle.quays:
            lines += [quay.host.ip, quay.host.run(f"tail -n 8 {SHIM}/shim.log", check=False) or "no log"]
        return "\n".join([*lines, self.stand.said()])

    async def _logs(self) -> dict[Attempt, bytes]:
        """Of each submission, as people read them."""
        logs: dict[Attempt, bytes] = {}
        for one in self.planned:
            jobs = await self.asked(lambda client: list(client.items(client.at("runs", one.name, "jobs"))))  # noqa: B023
            for job in jobs:
                which = Which(job=job["id"])
                pieces = await self.asked(lambda client: list(client_log.backlog(client, one.name, which)))  # noqa: B023
                frames = b"".join(piece.frames for piece in pieces)
                logs[one.job(job["node"]), job["submission"]] = b"".join(frame.data for frame in decode(frames))
        return logs


@pytest.fixture
def campaign(new_home: Callable[[], Path], shire: Land, bundles: Path) -> Any:
    home = new_home()
    home.mkdir(mode=0o711)
    (home / "bundle").symlink_to(bundles / "bundle")
    stand = Stand(home, local=False)
    if not LONG:
        stand.program = ("-c", IMPATIENT)
    shared = shire.root / f"shared-{uuid4().hex[:6]}"
    trail = Trail(shared)
    for place, mode in ((shared, 0o1777), (shared / "locks", 0o1777), (shared / "lines", 0o666)):
        place.chmod(mode)
    # One is started by cron after a reboot, the others by the server; of one the containers go on without their engine.
    quays = [Quay(shire.host(cron=number == 0, boot=False), shared, lasting=number != 1) for number in range(HOSTS)]
    planned = list(plans(RUNS, random.Random(SEED), LONGEST_RUN_S))
    try:
        yield Campaign(stand, Battle(stand, quays), trail, planned)
    finally:
        stand.clear()
        for quay in quays:
            quay.host.switch_off()


def test_blows_by_a_schedule_lose_nothing_and_double_nothing(campaign: Campaign) -> None:
    print(f"\n{RUNS} runs on {HOSTS} hosts, blows for {MINUTES:g} minutes, seed {SEED}", flush=True)
    left = asyncio.run(campaign.run())
    stand, trail, losses = campaign.stand, campaign.trail, campaign.battle.losses
    ends = asyncio.run(Ends.read(stand.database_url, campaign.planned, trail.notes(), campaign.logs, losses))
    ends.left = left
    judge(ends)
    print(verdict(ends, campaign), flush=True)


def verdict(ends: Ends, campaign: Campaign) -> str:
    states = Counter(run["state"] for run in ends.runs.values())
    told = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    lost = sum(map(ends.lost, ends.jobs))
    boxes = sum(one.container for one in ends.planned.values())
    size = sum(map(len, ends.logs.values()))
    return (
        f"judged after {campaign.age_s:.0f} s: {len(ends.runs)} runs, {boxes} of them in containers: {told}; "
        f"{len(ends.jobs)} submissions, {len(ends.notes.begun)} began, {lost} lost with their host or its engine; "
        f"{size:,} bytes of logs"
    )
