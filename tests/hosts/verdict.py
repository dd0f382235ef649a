"""What must hold after a campaign over hosts: runs, their tries, their logs and what the programs noted agree.

The plan says what each program does in each try, the notes what happened, the tables what the server believes. Only
what was on a host when that was lost may have come to another end, and even that may have ended as planned.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import asyncpg

from tests.hosts.blow import Loss
from tests.hosts.plan import STOPPED, Planned
from tests.process.trail import Attempt, Notes

Row = dict[str, Any]

RUNS = "SELECT id::text, name, state, reason FROM run"
JOBS = """
SELECT job.id::text, run.name AS run, job.node, job.attempt, job.state, job.reason, job.message, job.exit_code,
       job.submitted_at, job.entered_at, instance.location AS host
FROM job JOIN run ON run.id = job.run_id LEFT JOIN instance ON instance.id = job.instance_id
ORDER BY run.name, job.node, job.attempt
"""
LOST = ("EXECUTOR_ERROR", "INTERRUPTED_BY_NO_CAPACITY", "CREATING_CONTAINER_ERROR")
"""How a try may end whose host was lost."""


@dataclass
class Ends:
    """All that is known of the runs of a campaign in which nothing runs any more."""

    planned: dict[str, Planned]
    runs: dict[str, Row]
    jobs: dict[Attempt, Row]
    """By the name of the job in the trail, and its submission."""
    notes: Notes
    logs: dict[Attempt, bytes]
    losses: Sequence[Loss] = ()
    left: Mapping[str, Any] | None = None
    """By host, what was not there before."""

    @classmethod
    async def read(
        cls, url: str, planned: Sequence[Planned], notes: Notes, logs: dict[Attempt, bytes], losses: Sequence[Loss]
    ) -> "Ends":
        connection = await asyncpg.connect(url)
        try:
            runs = {row["name"]: dict(row) for row in await connection.fetch(RUNS)}
            found = await connection.fetch(JOBS)
        finally:
            await connection.close()
        jobs = {(f"{row['run']}.{row['node']}", row["attempt"]): dict(row) for row in found}
        return cls({one.name: one for one in planned}, runs, jobs, notes, logs, losses)

    def plan(self, one: Attempt) -> Planned:
        return self.planned[self.jobs[one]["run"]]

    def tries(self, name: str) -> list[list[Row]]:
        """Of each try of a run, its nodes."""
        found: dict[int, list[Row]] = defaultdict(list)
        for row in self.jobs.values():
            if row["run"] == name:
                found[row["attempt"]].append(row)
        return [found[number] for number in sorted(found)]

    def excused(self, one: Attempt) -> bool:
        """Its host was lost while it was there."""
        row, container = self.jobs[one], self.plan(one).container
        return any(
            row["host"] == loss.host
            and row["submitted_at"] <= loss.until
            and loss.since <= row["entered_at"]
            and (container or not loss.containers)
            for loss in self.losses
        )

    def lost(self, one: Attempt) -> bool:
        row = self.jobs[one]
        return row["state"] == "FAILED" and row["reason"] in LOST

    def ended(self) -> Iterator[tuple[Attempt, Row]]:
        return ((one, row) for one, row in self.jobs.items() if not self.lost(one))


def assert_every_run_ended_rightly(ends: Ends) -> None:
    assert ends.runs.keys() == ends.planned.keys()
    for name, run in ends.runs.items():
        planned, tries = ends.planned[name], ends.tries(name)
        last = [row["state"] for row in tries[-1]]
        if run["reason"] == "STOPPED_BY_USER":
            assert planned.stop_after_s is not None and run["state"] == "TERMINATED", run
        elif last == ["DONE"] * planned.nodes:
            assert (run["state"], run["reason"]) == ("DONE", "ALL_JOBS_DONE"), run
        else:
            why = "RETRY_LIMIT_EXCEEDED" if planned.most > 1 else "JOB_FAILED"
            assert (run["state"], run["reason"]) == ("FAILED", why), (run, tries)
            assert "FAILED" in last, (run, tries)
            assert len(tries) == planned.most, f"given up too early: {run} {tries}"
        assert len(tries) <= planned.most, (run, tries)
        for before in tries[:-1]:
            assert "FAILED" in [row["state"] for row in before], f"tried again for no reason: {tries}"


def assert_every_try_ended_as_its_program_did(ends: Ends) -> None:
    for one, row in ends.jobs.items():
        planned, told = ends.plan(one).code(row["node"], one[1]), ends.notes.codes.get(one)
        match row["state"], row["reason"]:
            case "DONE", "DONE_BY_RUNNER":
                assert told == planned == row["exit_code"] == 0, (row, told)
            case "FAILED", "CONTAINER_EXITED_WITH_ERROR":
                assert told == planned == row["exit_code"] != 0, (row, told)
            case "FAILED", reason if reason in LOST:
                assert ends.excused(one), f"lost, and its host was not: {row}"
            case "TERMINATED", "TERMINATED_BY_USER":
                assert ends.runs[row["run"]]["reason"] == "STOPPED_BY_USER", row
                assert_stopped(ends, one, told, planned)
            case "TERMINATED", "TERMINATED_BY_SERVER":
                others = [other for other in ends.tries(row["run"])[one[1] - 1] if other["state"] == "FAILED"]
                assert others, f"stopped for nobody: {row}"
                assert_stopped(ends, one, told, planned)
            case _:
                raise AssertionError(f"no such end was planned: {row}")


def assert_stopped(ends: Ends, one: Attempt, told: int | None, planned: int) -> None:
    """It never began, or it heard that it shall stop, or it had just ended by itself."""
    if one in ends.notes.begun and not ends.excused(one):
        assert told in (STOPPED, planned), f"it was not let come to its end: {ends.jobs[one]}"


def assert_none_ran_twice(ends: Ends) -> None:
    notes = ends.notes
    assert notes.twice == [], "a submission was started twice"
    assert notes.beside == set(), f"these ran beside themselves: {notes.beside}"
    assert notes.begun.keys() - ends.jobs.keys() == set(), "begun, and no table tells of it"
    assert notes.ended.keys() <= notes.begun.keys()
    for job, attempts in notes.attempts().items():
        assert attempts == sorted(attempts), f"{job} began in the order {attempts}"
        for before, _ in pairwise(attempts):
            assert notes.codes.get((job, before)) != 0 or ends.plan((job, before)).nodes > 1, f"{job} went on"


def assert_logs_are_whole(ends: Ends) -> None:
    """Byte for byte; of what was lost with its host, and of nothing else, the end may be missing."""
    for one in ends.jobs:
        log, planned, code = ends.logs[one], ends.plan(one), ends.notes.codes.get(one)
        if one not in ends.notes.begun:
            assert log == b"", (one, log[:200])
        elif code is None or ends.lost(one):
            assert ends.excused(one), ends.jobs[one]
            whole = planned.text(one)
            last = f"over {one[0]} {one[1]} ".encode()
            assert whole.startswith(log.partition(last)[0]), (one, len(log), log[-200:])
        else:
            said = planned.lines if code != STOPPED else _said(log)
            assert said <= planned.lines, one
            whole = planned.text(one, said) + f"over {one[0]} {one[1]} {code} {said}\n".encode()
            assert log == whole, (one, len(log), len(whole), log[-200:], whole[-200:])


def _said(log: bytes) -> int:
    """How many lines it says it has printed."""
    last = log.rstrip().rpartition(b" ")[2]
    assert last.isdigit(), log[-200:]
    return int(last)


def assert_nothing_is_left(ends: Ends) -> None:
    assert {host: left for host, left in (ends.left or {}).items() if left} == {}


def judge(ends: Ends) -> None:
    assert_none_ran_twice(ends)
    assert_every_try_ended_as_its_program_did(ends)
    assert_every_run_ended_rightly(ends)
    assert_logs_are_whole(ends)
    assert_nothing_is_left(ends)
