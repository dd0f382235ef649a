"""The verdict over a campaign can be against it: each thing that must not be is planted and found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.conftest import Json
from tests.process.trail import ALWAYS, FAILED, Notes
from tests.process.verdict import Ends, judge
from tests.process.wave import Planned

A, B, C, D, E = "abcde"
PLANNED = {
    A: Planned(A, most=3),
    B: Planned(B, (A,), fails=1, most=3),
    C: Planned(C, (A,), fails=ALWAYS, most=1),
    D: Planned(D, (B, C)),
    E: Planned(E, (B,), exclusive=True),
}


def ends() -> Ends:
    """The first was lost once, the second tried twice, the third failed for good, and the fourth waited for it."""
    notes = Notes()
    for line in ("+a1", "+a2", "-a2", "+b1", "+c1", "-b1", "-c1", "+b2", "-b2", "+e1", "-e1"):
        say(notes, line)
    records = [
        (A, 1, 0.0, 5.0, None, "lost"), (A, 2, 6.0, 7.0, 0, "ended"), (B, 1, 8.0, 9.0, FAILED, "ended"),
        (B, 2, 10.0, 11.0, 0, "ended"), (C, 1, 8.0, 9.0, FAILED, "ended"), (E, 1, 12.0, 13.0, 0, "ended"),
    ]  # fmt: skip
    names = ("task", "attempt", "claimed_at", "time_terminated", "exit_status", "outcome")
    executions: dict[str, list[Any]] = {}
    for record in records:
        executions.setdefault(record[0], []).append(dict(zip(names, record, strict=True)))
    tasks = {
        id: {
            "state": "terminated",
            "worker_id": None,
            "retry_count": len(rows),
            "pending_dependency_count": 0,
            "exit_status": rows[-1]["exit_status"],
        }
        for id, rows in executions.items()
    }
    tasks[D] = tasks[A] | {"state": "cancelled", "retry_count": 0, "pending_dependency_count": 1, "exit_status": None}
    return Ends(dict(PLANNED), tasks, executions, notes)


def say(notes: Notes, line: str) -> None:
    one, place = (line[1], int(line[2])), len(notes.begun) + len(notes.ended)
    (notes.begun if line[0] == "+" else notes.ended)[one] = place
    if line[0] == "-":
        notes.codes[one] = PLANNED[one[0]].code(one[1])


def figures() -> Json:
    return {
        "total": 5, "succeeded": 3, "failed": 1, "held": 0, "lost": 1, "retries": 2,
        "states": {"terminated": 4, "cancelled": 1, "running": 0}, "exit_codes": {"0": 3, str(FAILED): 2},
    }  # fmt: skip


def test_a_campaign_in_which_all_went_well_is_not_condemned() -> None:
    judge(ends(), figures())


def vanished(one: Ends) -> None:
    del one.tasks[E]


def still_running(one: Ends) -> None:
    one.tasks[E] = {**one.tasks[E], "state": "running"}


def given_up_early(one: Ends) -> None:
    one.executions[B].pop()
    one.tasks[B] = {**one.tasks[B], "retry_count": 1, "exit_status": FAILED}


def done_again_after_success(one: Ends) -> None:
    one.executions[E].append({**one.executions[E][0], "attempt": 2})
    one.tasks[E] = {**one.tasks[E], "retry_count": 2}


def begun_twice(one: Ends) -> None:
    one.notes.twice.append("begin a 1")


def begun_unknown_to_history(one: Ends) -> None:
    one.notes.begun[E, 2] = 99


def ended_otherwise_than_told(one: Ends) -> None:
    del one.notes.codes[A, 2]


def exit_code_of_another(one: Ends) -> None:
    one.notes.codes[A, 2] = FAILED


def begun_too_early(one: Ends) -> None:
    one.notes.begun[B, 1] = 0


def released_although_a_dependency_failed(one: Ends) -> None:
    one.tasks[D] = {**one.tasks[E], "retry_count": 0}


def cancelled_for_no_reason(one: Ends) -> None:
    one.tasks[E] = {**one.tasks[E], "state": "cancelled"}


def beside_a_lease_that_held(one: Ends) -> None:
    one.notes.beside.add((B, 2))


def beside_though_exclusive(one: Ends) -> None:
    one.notes.beside.add((E, 1))


def claimed_before_the_older_one_was_lost(one: Ends) -> None:
    one.executions[A][1] = {**one.executions[A][1], "claimed_at": 4.0}


@pytest.mark.parametrize(
    "plant",
    [
        vanished, still_running, given_up_early, done_again_after_success, begun_twice, begun_unknown_to_history,
        ended_otherwise_than_told, exit_code_of_another, begun_too_early, released_although_a_dependency_failed,
        cancelled_for_no_reason, beside_a_lease_that_held, beside_though_exclusive,
        claimed_before_the_older_one_was_lost,
    ],
)  # fmt: skip
def test_what_must_not_be_is_found(plant: Callable[[Ends], None]) -> None:
    one = ends()
    plant(one)
    with pytest.raises(AssertionError):
        judge(one, figures())


@pytest.mark.parametrize("figure", ["total", "succeeded", "failed", "held", "lost", "retries"])
def test_a_figure_that_is_wrong_is_found(figure: str) -> None:
    with pytest.raises(AssertionError):
        judge(ends(), figures() | {figure: 17})


def test_a_second_attempt_beside_one_whose_lease_was_over_is_no_fault() -> None:
    one = ends()
    one.notes.beside.add((A, 2))
    judge(one, figures())
