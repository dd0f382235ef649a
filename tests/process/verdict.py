"""What must hold after a campaign over the swarm: its tables, its figures and what the commands noted agree.

The plan says what each task does in each attempt, the notes on disk what happened, the tables what the server
believes. No certain number of losses is expected: whatever was lost must be told as lost, and nothing else be missing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import asyncpg

from tests.api.conftest import Json
from tests.process.trail import Attempt, Notes, assert_in_order
from tests.process.wave import Planned

Row = dict[str, Any]

TASKS = """
SELECT id::text, state, worker_id, retry_count, pending_dependency_count, exit_status, hold FROM task
"""
EXECUTIONS = """
SELECT task_id::text AS task, attempt, claimed_at, time_terminated, exit_status, outcome FROM execution ORDER BY 1, 2
"""
STOPPED = (-15, -9, None)
"""How an exclusive task may end that its own worker stopped, since its lease could not be renewed."""


@dataclass
class Ends:
    """All that is known of the tasks of a campaign in which nothing runs any more."""

    planned: dict[str, Planned]
    tasks: dict[str, Row]
    executions: dict[str, list[Row]]
    notes: Notes

    @classmethod
    async def read(cls, url: str, planned: Sequence[Planned], notes: Notes) -> "Ends":
        connection = await asyncpg.connect(url)
        try:
            tasks = {row["id"]: dict(row) for row in await connection.fetch(TASKS)}
            executions = defaultdict(list)
            for row in await connection.fetch(EXECUTIONS):
                executions[row["task"]].append(dict(row))
        finally:
            await connection.close()
        return cls({task.id: task for task in planned}, tasks, dict(executions), notes)

    @cached_property
    def records(self) -> dict[Attempt, Row]:
        return {(row["task"], row["attempt"]): row for rows in self.executions.values() for row in rows}

    @cached_property
    def successes(self) -> dict[str, int]:
        """The attempt that counts, of each that succeeded."""
        return {one[0]: one[1] for one, row in self.records.items() if row["exit_status"] == 0}

    def succeeded(self, id: str) -> bool:
        return self.tasks[id]["state"] == "terminated" and (self.planned[id].barrier or id in self.successes)

    def sources(self, id: str) -> Iterator[str]:
        """The commands that it waits for, through barriers."""
        for source in self.planned[id].after:
            if self.planned[source].barrier:
                yield from self.sources(source)
            else:
                yield source


def assert_every_task_ended_once(ends: Ends) -> None:
    assert ends.tasks.keys() == ends.planned.keys()
    for id, task in ends.tasks.items():
        assert task["state"] in ("terminated", "cancelled") and task["worker_id"] is None, task
        rows = ends.executions.get(id, [])
        assert [row for row in rows if row["outcome"] not in ("ended", "lost")] == [], rows
        assert task["retry_count"] == len(rows) <= ends.planned[id].most, (task, rows)
        good = [row["exit_status"] == 0 for row in rows]
        assert not any(good[:-1]), f"{id} went on after it had succeeded: {rows}"
        if task["state"] == "terminated" and not ends.planned[id].barrier:
            assert rows and (good[-1] or len(rows) == ends.planned[id].most), (task, rows)
            assert task["exit_status"] == rows[-1]["exit_status"], (task, rows)


def assert_continuations_followed(ends: Ends) -> None:
    """What waits for a failure is cancelled and was never begun; everything else was released, each time once."""
    for id, task in ends.tasks.items():
        released = all(ends.succeeded(source) for source in ends.planned[id].after)
        assert task["state"] == ("terminated" if released else "cancelled"), (task, ends.planned[id])
        if released:
            assert task["pending_dependency_count"] == 0, task
        else:
            assert id not in ends.executions, task
    waits = {id: tuple(ends.sources(id)) for id in ends.planned}
    assert_in_order(ends.notes, waits)
    # Not even after a success that was reported too late to count.
    for (id, attempt), place in ends.notes.begun.items():
        for source in waits[id]:
            counts = source, ends.successes[source]
            assert ends.notes.ended[counts] < place, f"{id} began in attempt {attempt} before {counts} counted"


def assert_history_tells_what_happened(ends: Ends) -> None:
    """Of every attempt that began there is a record, and one that came to no end is told as lost."""
    notes = ends.notes
    assert notes.twice == []
    assert notes.begun.keys() - ends.records.keys() == set(), "begun, and no history tells of it"
    assert notes.ended.keys() <= notes.begun.keys()
    assert {one: code for one, code in notes.codes.items() if code != ends.planned[one[0]].code(one[1])} == {}
    for one, row in ends.records.items():
        if row["outcome"] == "ended" and notes.codes.get(one) != row["exit_status"]:
            assert ends.planned[one[0]].exclusive and row["exit_status"] in STOPPED, (row, notes.codes.get(one))
            assert one not in notes.codes, row
        if row["outcome"] == "lost":
            assert row["exit_status"] is None and row["time_terminated"] is not None, row


def assert_no_two_at_once(ends: Ends) -> None:
    """Only where the lease of the older attempt was over before the newer one was claimed, and never if exclusive."""
    for id, attempt in ends.notes.beside:
        assert not ends.planned[id].exclusive, f"attempt {attempt} of {id}, which is exclusive, was not alone"
        claimed_at = ends.records[id, attempt]["claimed_at"]
        older = [row for row in ends.executions[id] if row["attempt"] < attempt and row["outcome"] == "lost"]
        assert any(row["time_terminated"] <= claimed_at for row in older), (id, attempt, ends.executions[id])
    for rows in ends.executions.values():
        for before, after in pairwise(rows):
            assert before["time_terminated"] is not None, before
            if before["outcome"] == "lost":
                assert before["time_terminated"] <= after["claimed_at"], (before, after)


def assert_figures_agree(ends: Ends, told: Json) -> None:
    """What is kept up by the commits, what the tables say, and what the commands themselves wrote."""
    states = Counter(task["state"] for task in ends.tasks.values())
    succeeded = sum(map(ends.succeeded, ends.tasks))
    assert {state: n for state, n in told["states"].items() if n} == dict(states)
    assert (told["total"], told["succeeded"], told["held"]) == (len(ends.tasks), succeeded, 0)
    assert told["failed"] == states["terminated"] - succeeded
    records = ends.records.values()
    codes = Counter(str(row["exit_status"]) for row in records if row["exit_status"] is not None)
    assert told["exit_codes"] == dict(codes)
    assert told["lost"] == sum(row["outcome"] == "lost" for row in records)
    assert told["retries"] == sum(len(rows) - 1 for rows in ends.executions.values())
    ended = {one for one, row in ends.records.items() if row["outcome"] == "ended"}
    on_disk = Counter(str(code) for one, code in ends.notes.codes.items() if one in ended)
    assert on_disk["0"] == codes["0"] == len(ends.successes)
    assert sum(on_disk.values()) >= sum(codes.values()) - sum(
        row["exit_status"] in STOPPED and ends.planned[row["task"]].exclusive for row in records
    )


def judge(ends: Ends, told: Json) -> None:
    assert_every_task_ended_once(ends)
    assert_history_tells_what_happened(ends)
    assert_continuations_followed(ends)
    assert_no_two_at_once(ends)
    assert_figures_agree(ends, told)
