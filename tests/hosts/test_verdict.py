"""The verdict over a campaign on hosts can be against it: each thing that must not be is planted and found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.hosts.blow import Loss
from tests.hosts.plan import STOPPED, Planned
from tests.hosts.verdict import Ends, judge
from tests.process.trail import Attempt, Notes

PLANNED = {
    "good": Planned("good"),
    "bad": Planned("bad", codes=(7,)),
    "again": Planned("again", codes=(7, 0), most=4),
    "pair": Planned("pair", nodes=2, container=True),
    "stopped": Planned("stopped", stop_after_s=1.0),
    "moved": Planned("moved", container=True, most=3),
    "never": Planned("never", stop_after_s=0.0),
}
HERE, THERE = "10.0.0.1", "10.0.0.2"


def job(ends: Ends, name: str, state: str, reason: str, code: int | None, **more: Any) -> None:
    """One submission with what its program noted and printed, all of which agree."""
    told: dict[str, Any] = {
        "run": name,
        "node": 0,
        "attempt": 1,
        "host": HERE,
        "submitted_at": 0.0,
        "entered_at": 10.0,
    } | more
    one: Attempt = f"{name}.{told['node']}", told["attempt"]
    exits = None if code in (None, STOPPED) else code
    ends.jobs[one] = told | {"state": state, "reason": reason, "exit_code": exits, "message": ""}
    planned = PLANNED[name]
    ends.logs[one] = b""
    if name != "never":
        begin(ends.notes, one)
        said = 3 if code in (None, STOPPED) else planned.lines
        ends.logs[one] = planned.text(one, said)
        if code is not None:
            ends.logs[one] += f"over {one[0]} {one[1]} {code} {said}\n".encode()
            ends.notes.ended[one], ends.notes.codes[one] = len(ends.notes.begun) + 100, code


def begin(notes: Notes, one: Attempt) -> None:
    notes.begun[one] = len(notes.begun)


def ends() -> Ends:
    """One went well, one failed, one at the second try, one lost its engine; two were stopped, one before it began."""
    made = Ends(dict(PLANNED), {}, {}, Notes(), {}, [Loss(THERE, 5.0, 6.0, containers=True)], {HERE: {}, THERE: {}})
    done, failed = ("DONE", "DONE_BY_RUNNER"), ("FAILED", "CONTAINER_EXITED_WITH_ERROR")
    job(made, "good", *done, 0)
    job(made, "bad", *failed, 7)
    job(made, "again", *failed, 7)
    job(made, "again", *done, 0, attempt=2)
    job(made, "pair", *done, 0)
    job(made, "pair", *done, 0, node=1)
    job(made, "stopped", "TERMINATED", "TERMINATED_BY_USER", STOPPED)
    job(made, "moved", "FAILED", "EXECUTOR_ERROR", None, host=THERE)
    job(made, "moved", *done, 0, attempt=2)
    job(made, "never", "TERMINATED", "TERMINATED_BY_USER", None, host=None)
    for name in PLANNED:
        made.runs[name] = {"name": name, "state": "DONE", "reason": "ALL_JOBS_DONE"}
    made.runs["bad"] |= {"state": "FAILED", "reason": "JOB_FAILED"}
    for name in ("stopped", "never"):
        made.runs[name] |= {"state": "TERMINATED", "reason": "STOPPED_BY_USER"}
    return made


def test_a_campaign_in_which_all_went_well_is_not_condemned() -> None:
    judge(ends())


def vanished(one: Ends) -> None:
    del one.runs["good"]


def success_of_what_failed(one: Ends) -> None:
    one.runs["bad"] |= {"state": "DONE", "reason": "ALL_JOBS_DONE"}


def failure_of_what_succeeded(one: Ends) -> None:
    one.runs["good"] |= {"state": "FAILED", "reason": "JOB_FAILED"}


def done_with_another_code(one: Ends) -> None:
    one.notes.codes["good.0", 1] = 7


def exit_code_of_another(one: Ends) -> None:
    one.jobs["bad.0", 1]["exit_code"] = 9


def stopped_by_nobody(one: Ends) -> None:
    one.planned["stopped"] = Planned("stopped")


def stopped_for_nobody(one: Ends) -> None:
    one.jobs["pair.1", 1] |= {"state": "TERMINATED", "reason": "TERMINATED_BY_SERVER"}


def killed_instead_of_stopped(one: Ends) -> None:
    del one.notes.codes["stopped.0", 1]
    del one.notes.ended["stopped.0", 1]


def given_up_early(one: Ends) -> None:
    del one.jobs["again.0", 2]
    one.runs["again"] |= {"state": "FAILED", "reason": "RETRY_LIMIT_EXCEEDED"}
    del one.notes.begun["again.0", 2], one.notes.ended["again.0", 2], one.notes.codes["again.0", 2]


def done_again_after_success(one: Ends) -> None:
    job(one, "again", "DONE", "DONE_BY_RUNNER", 0, attempt=3)


def lost_without_a_loss(one: Ends) -> None:
    one.losses = ()


def lost_when_another_host_was(one: Ends) -> None:
    one.losses = [Loss(HERE, 5.0, 6.0, containers=False)]


def lost_before_it_came(one: Ends) -> None:
    one.jobs["moved.0", 1]["submitted_at"] = 7.0


def process_lost_with_an_engine(one: Ends) -> None:
    one.planned["moved"] = Planned("moved", most=3)


def started_twice(one: Ends) -> None:
    one.notes.twice.append("begin good.0 1")


def beside_itself(one: Ends) -> None:
    one.notes.beside.add(("moved.0", 2))


def begun_unknown_to_the_tables(one: Ends) -> None:
    begin(one.notes, ("good.0", 2))


def begun_in_another_order(one: Ends) -> None:
    one.notes.begun["moved.0", 1] = 99


def log_cut_short(one: Ends) -> None:
    one.logs["good.0", 1] = one.logs["good.0", 1][:-1]


def log_with_a_line_twice(one: Ends) -> None:
    lines = one.logs["bad.0", 1].splitlines(keepends=True)
    one.logs["bad.0", 1] = b"".join([*lines[:3], *lines[2:]])


def log_with_a_hole(one: Ends) -> None:
    lines = one.logs["moved.0", 1].splitlines(keepends=True)
    one.logs["moved.0", 1] = b"".join([lines[0], *lines[2:]])


def log_of_what_was_stopped_cut_short(one: Ends) -> None:
    lines = one.logs["stopped.0", 1].splitlines(keepends=True)
    one.logs["stopped.0", 1] = b"".join([*lines[:-2], lines[-1]])


def something_left(one: Ends) -> None:
    one.left = {HERE: {"containers": ["0123456789ab"]}, THERE: {}}


@pytest.mark.parametrize(
    "plant",
    [
        vanished, success_of_what_failed, failure_of_what_succeeded, done_with_another_code, exit_code_of_another,
        stopped_by_nobody, stopped_for_nobody, killed_instead_of_stopped, given_up_early, done_again_after_success,
        lost_without_a_loss, lost_when_another_host_was, lost_before_it_came, process_lost_with_an_engine,
        started_twice, beside_itself, begun_unknown_to_the_tables, begun_in_another_order, log_cut_short,
        log_with_a_line_twice, log_with_a_hole, log_of_what_was_stopped_cut_short, something_left,
    ],
)  # fmt: skip
def test_what_must_not_be_is_found(plant: Callable[[Ends], None]) -> None:
    one = ends()
    plant(one)
    with pytest.raises(AssertionError):
        judge(one)


def test_what_was_lost_with_its_host_may_have_ended_as_planned_all_the_same() -> None:
    one = ends()
    one.losses = [*one.losses, Loss(HERE, 1.0, 2.0, containers=False)]
    judge(one)
