"""`kill -9` of engines and of PostgreSQL under load: what was acknowledged is there, and nothing is there twice.

Two load processes (`load.py`) share one PostgreSQL that really syncs. Again and again something is killed at a random
moment and started again. Then the faults stop, everything settles, and the tables are compared with what the callers
were told and with what the agents noted. `STOKER_KILLS=50` is the full form, `STOKER_SEED` another order of kills.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from stoker.store.cluster import Cluster
from stoker.store.database import Database, Record
from stoker.store.installation import account
from stoker.store.migration import migrate
from stoker.store.postgres import Embedded
from tests.process.load import MARK, OPEN_RUNS, Kind, exit_code, kind_of

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("STOKER_KILLS", "10"))
SEED = int(os.environ.get("STOKER_SEED", "1"))
FLOWS = 40
"""So many new acknowledgements, and the load flows: the next kill may come."""
PATIENCE_S = 60.0
FINISHED = {"DONE", "FAILED", "TERMINATED", "ABORTED"}
LIVE = {"PROVISIONING", "PULLING", "RUNNING", "TERMINATING"}
POSTGRES = "postgres"


@dataclass
class Ledger:
    """What the load processes wrote so far."""

    path: Path
    runs: set[UUID] = field(default_factory=set)
    stops: set[UUID] = field(default_factory=set)
    did: Counter[tuple[str, UUID]] = field(default_factory=Counter)
    fences: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Which processes acted with which fence."""
    trouble: list[str] = field(default_factory=list)
    up: set[int] = field(default_factory=set)
    """Processes that have begun."""
    _read: int = 0

    def look(self) -> int:
        """Reads on; how many acknowledgements there are."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            self._read += len(whole)
            for line in whole.decode().splitlines():
                # A line that a kill cut short says nothing.
                if line.endswith(MARK):
                    self._take(*line.removesuffix(MARK).split(" "))
        return len(self.runs) + len(self.stops)

    def _take(self, what: str, *words: str) -> None:
        match what:
            case "run":
                self.runs.add(UUID(words[0]))
            case "stop":
                self.stops.add(UUID(words[0]))
            case "did":
                self.did[words[0], UUID(words[1])] += 1
                self.fences[int(words[2])].add(words[3])
            case "up":
                self.up.add(int(words[1]))
            case "trouble":
                self.trouble.append(" ".join(words))


@dataclass
class Stage:
    """The processes, and the hand that kills them."""

    server: Embedded
    home: Path
    ledger: Ledger
    dice: random.Random
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)

    def start(self, name: str) -> None:
        """Every other life has a name of its own: then the survivor has to find out that the old one is dead."""
        self.lives[name] += 1
        alias = name if self.lives[name] % 2 else f"{name}-{self.lives[name]}"
        command = [sys.executable, "-m", "tests.process.load", self.server.url, alias, str(self.ledger.path)]
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    async def kill(self, victim: str) -> None:
        self.killed[victim] += 1
        if victim == POSTGRES:
            for pid in Cluster(self.home, account(os.geteuid())).processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self.server.revive()
            return
        process = self.processes[victim]
        assert process.poll() is None, f"{victim} ended by itself:\n{self.said(victim)}"
        process.kill()
        process.wait()
        self.start(victim)

    async def flows(self) -> None:
        before = self.ledger.look()
        await until(lambda: self.ledger.look() >= before + FLOWS, f"the load flows again, after {self.killed}")

    def all_up(self) -> bool:
        self.ledger.look()
        return {process.pid for process in self.processes.values()} <= self.ledger.up

    def tell(self, number: signal.Signals) -> None:
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended by itself:\n{self.said(name)}"
            process.send_signal(number)

    def said(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")[-4000:]

    def sweep(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


async def until(happened: Callable[[], object], what: str, deadline_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.01)


@pytest.fixture
def home(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "kill"
    yield home
    shutil.rmtree(home, ignore_errors=True)


async def test_what_was_acknowledged_survives_kills_and_nothing_happens_twice(home: Path) -> None:
    begun = time.monotonic()
    server = await Embedded.start(home)
    stage = Stage(server, home, Ledger(home / "ledger"), random.Random(SEED))
    try:
        async with await Database.connect(server.url, pool_size=1) as database:
            await migrate(database)
        for name in ("a", "b"):
            stage.start(name)
        for victim in victims(stage.dice):
            await stage.flows()
            await asyncio.sleep(stage.dice.uniform(0.0, 1.0))
            await stage.kill(victim)
        under_fire_s = time.monotonic() - begun
        await stage.flows()
        await until(stage.all_up, "both engines are up")
        async with await Database.connect(server.url, pool_size=2) as database:
            await settled(stage, database)
            await judge(stage.ledger, database)
            print(await report(stage, database, under_fire_s, time.monotonic() - begun))
    finally:
        stage.sweep()
        await server.stop()


def victims(dice: random.Random) -> list[str]:
    """Each as often as the others, in any order."""
    chosen = [("a", "b", POSTGRES)[place % 3] for place in range(KILLS)]
    dice.shuffle(chosen)
    return chosen


async def settled(stage: Stage, database: Database) -> None:
    """No more faults and no new runs: what is open comes to its end, and both engines stop in good order."""
    stage.tell(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while open_runs := await asked(database, OPEN_RUNS) + await asked(database, "SELECT count(*) FROM outbox"):
        if time.monotonic() > deadline:
            async with database.connection() as connection:
                left = await connection.fetch("SELECT id, state, entered_at FROM run WHERE state NOT IN "
                                              "('TERMINATED', 'FAILED', 'DONE') LIMIT 5")  # fmt: skip
                wishes = await connection.fetch("SELECT * FROM outbox LIMIT 5")
            raise AssertionError(f"{open_runs} runs and wishes never end, such as {left} {wishes}")
        await asyncio.sleep(0.05)
    stage.tell(signal.SIGINT)
    await until(lambda: all(one.poll() is not None for one in stage.processes.values()), "the engines stop")
    for name, process in stage.processes.items():
        assert process.returncode == 0, stage.said(name)
    stage.ledger.look()


async def asked(database: Database, statement: str) -> int:
    async with database.connection() as connection:
        count: int = await connection.fetchval(statement)
    return count


async def judge(ledger: Ledger, database: Database) -> None:
    async with database.connection() as connection:
        runs = {row["id"]: row for row in await connection.fetch("SELECT id, name, state, reason FROM run")}
        jobs = {row["id"]: row for row in await connection.fetch("SELECT * FROM job ORDER BY attempt")}
        instances = {row["id"]: row for row in await connection.fetch("SELECT id, state, held FROM instance")}
        lines = await connection.fetch("SELECT kind, id, event, source, target FROM journal ORDER BY seq")
        assert await connection.fetchval("SELECT count(*) FROM outbox") == 0
        assert await connection.fetchval("SELECT count(*) FROM replica") == 0
    assert ledger.trouble == []
    assert ledger.runs, "a load that was never acknowledged proves nothing"
    assert_acknowledged_is_there(ledger, runs)
    assert_runs_ended_as_they_should(runs, jobs)
    assert {row["state"]: row["held"] for row in instances.values()} == {"IDLE": "{}"}
    assert_journal_gives_the_tables(lines, {"run": runs, "job": jobs, "instance": instances})
    assert_one_live_submission(lines, jobs)
    assert_performed_and_applied_once(ledger, lines)


def assert_acknowledged_is_there(ledger: Ledger, runs: dict[UUID, Record]) -> None:
    assert ledger.runs - runs.keys() == set()
    assert ledger.stops - runs.keys() == set()
    assert [name for name, count in Counter(row["name"] for row in runs.values()).items() if count > 1] == []
    for id in ledger.stops:
        assert runs[id]["reason"] == "STOPPED_BY_USER"


def assert_runs_ended_as_they_should(runs: dict[UUID, Record], jobs: dict[UUID, Record]) -> None:
    outcomes = {
        Kind.QUICK: ("DONE", "ALL_JOBS_DONE"),
        Kind.FLAKY: ("DONE", "ALL_JOBS_DONE"),
        Kind.TIMED: ("TERMINATED", "JOB_TERMINATED"),
        Kind.HELD: ("TERMINATED", "STOPPED_BY_USER"),
    }
    for id, run in runs.items():
        assert (run["state"], run["reason"]) == outcomes[kind_of(id)], id
    submissions: dict[tuple[UUID, int, int], list[Record]] = defaultdict(list)
    for job in jobs.values():
        assert job["state"] in FINISHED
        submissions[job["run_id"], job["replica"], job["node"]].append(job)
    assert len(submissions) == sum(kind_of(id).value.size for id in runs)
    for (run_id, _, _), tries in submissions.items():
        assert [one["attempt"] for one in tries] == list(range(1, len(tries) + 1))
        assert [one["latest"] for one in tries] == [False] * (len(tries) - 1) + [True]
        # A program that failed was tried once more, and nothing else was.
        failed = exit_code(tries[0]["id"], 1, kind_of(run_id)) != 0
        assert len(tries) == 1 + failed, tries


def assert_journal_gives_the_tables(lines: list[Record], tables: dict[str, dict[UUID, Record]]) -> None:
    """Each entry begins where the one before it ended, and the last one ends where the table is."""
    states: dict[str, dict[UUID, str]] = {kind: {} for kind in tables}
    for line in lines:
        known = states[line["kind"]]
        assert known.get(line["id"]) == line["source"], line
        assert line["source"] not in FINISHED, line
        known[line["id"]] = line["target"]
    for kind, table in tables.items():
        assert states[kind] == {id: row["state"] for id, row in table.items()}


def assert_one_live_submission(lines: list[Record], jobs: dict[UUID, Record]) -> None:
    live: dict[tuple[UUID, int, int], UUID] = {}
    for line in lines:
        if line["kind"] != "job":
            continue
        job = jobs[line["id"]]
        place = job["run_id"], job["replica"], job["node"]
        if line["target"] in FINISHED:
            live.pop(place, None)
        elif line["target"] in LIVE:
            assert live.setdefault(place, job["id"]) == job["id"], f"two live submissions of {place}"
    assert live == {}


def assert_performed_and_applied_once(ledger: Ledger, lines: list[Record]) -> None:
    """Whatever came of an effect, somebody performed it first; and however often that was, it came once."""
    causes = {"TaskAccepted": "StartTask", "RunnerAccepted": "SubmitJob", "Launched": "Launch"}
    applied = Counter((line["event"], line["id"]) for line in lines)
    for (event, id), count in applied.items():
        if event in causes:
            assert count == 1, (event, id)
            assert ledger.did[causes[event], id] >= 1, (event, id)
    for line in lines:
        if line["event"] == "Released":
            assert ledger.did["RemoveTask", line["id"]] >= 1 or not ledger.did["StartTask", line["id"]]
    # A fence belongs to one owner: what two processes did with the same one, nobody could have told apart.
    assert {fence: pids for fence, pids in ledger.fences.items() if len(pids) > 1} == {}


async def report(stage: Stage, database: Database, under_fire_s: float, all_s: float) -> str:
    ledger = stage.ledger
    entries = await asked(database, "SELECT count(*) FROM journal")
    runs = await asked(database, "SELECT count(*) FROM run")
    again = sum(count - 1 for count in ledger.did.values())
    return (
        f"\n{sum(stage.killed.values())} kills in {under_fire_s:.0f} s ({dict(sorted(stage.killed.items()))}), "
        f"{len(ledger.up)} lives of engines, settled and judged after {all_s:.0f} s\n"
        f"{len(ledger.runs)} runs and {len(ledger.stops)} stops acknowledged, {runs} runs there, "
        f"{entries} journal entries, {sum(ledger.did.values())} effects performed, {again} of them again"
    )
