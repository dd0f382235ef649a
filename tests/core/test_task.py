"""Each sentence of lifecycles §7, told to the table and to the pure graph."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import TaskId, WorkerId
from stoker.core.machine import Event, Refused
from stoker.core.task import (
    AVAILABLE,
    CANCELLED,
    ENDED,
    HELD,
    INACTIVE,
    PENDING_CANCELLATION,
    RUNNING,
    TASK,
    TERMINATED,
    Acquired,
    CancelAsked,
    Claimed,
    ContinuationChanged,
    DependencyFailed,
    Ended,
    GivenBack,
    LetGo,
    MadeAvailable,
    Outcome,
    Passed,
    Released,
    State,
    Stopped,
    Task,
    WorkerLost,
)

NOW = 1000.0
ANN, BOB = WorkerId(UUID(int=0xA)), WorkerId(UUID(int=0xB))
A, B, C, D = (TaskId(UUID(int=n)) for n in range(1, 5))


def graph(*edges: tuple[TaskId, TaskId], barriers: tuple[TaskId, ...] = (), **fields: Any) -> Graph:
    """The tasks of these edges (at least A): those that nobody names are available."""
    made = Graph()
    ids = dict.fromkeys([A, *(id for edge in edges for id in edge)])
    named = {target for _, target in edges}
    tasks = [
        Task(id, INACTIVE if id in named else AVAILABLE, NOW, has_command=id not in barriers, **fields) for id in ids
    ]
    made.create(tasks, [Edge(*edge) for edge in edges], NOW)
    return made


def states(made: Graph) -> list[State]:
    return [made.tasks[id].state for id in sorted(made.tasks)]


def claimed(made: Graph, worker: WorkerId = ANN) -> Held:
    (held,) = made.claim(worker, 1, NOW)
    return held


def test_each_pair_is_a_row_stale_or_refused() -> None:
    """The refused list is written by hand: a new row or event must be thought about here too."""
    news = ("Ended", "Stopped", "GivenBack", "WorkerLost")
    assert TASK.refused() == {
        *(("INACTIVE", event) for event in ("Released", "MadeAvailable", "Passed", "Claimed", *news)),
        *(("AVAILABLE", event) for event in ("Acquired", "Released", "MadeAvailable", "Passed", "Claimed")),
        *(
            (state, event)
            for state in ("RUNNING", "PENDING_CANCELLATION", "TERMINATED", "CANCELLED")
            for event in ("Acquired", "MadeAvailable", "Passed", "Claimed")
        ),
        # An open edge ends in an inactive or cancelled task, so these would mean that a count is wrong.
        *((state, "Released") for state in ("RUNNING", "PENDING_CANCELLATION", "TERMINATED")),
        *((state, "DependencyFailed") for state in ("AVAILABLE", "RUNNING", "PENDING_CANCELLATION", "TERMINATED")),
        *((state, "ContinuationChanged") for state in ("PENDING_CANCELLATION", "TERMINATED", "CANCELLED")),
        # A worker stops what it was asked to stop, and nothing else.
        ("RUNNING", "Stopped"),
    }


def test_no_row_is_shadowed() -> None:
    assert TASK.shadowed() == []


def test_what_has_ended_never_leaves_its_state() -> None:
    assert TASK.finished == {TERMINATED, CANCELLED}


def test_available_never_becomes_inactive() -> None:
    assert not [row for row in TASK.rows if row.target is INACTIVE and row.source is not INACTIVE]


def test_created_inactive_or_available_and_nothing_else() -> None:
    with pytest.raises(UserError, match="running"):
        Graph().create([Task(A, RUNNING, NOW)], [], NOW)
    assert TASK.initial == (INACTIVE, AVAILABLE)


def test_with_open_dependencies_only_inactive() -> None:
    made = Graph()
    with pytest.raises(Conflict, match="available"):
        made.create([Task(A, AVAILABLE, NOW), Task(B, AVAILABLE, NOW)], [Edge(A, B)], NOW)
    assert made.tasks == {}


def test_creating_acquires_each_continuation_which_must_be_inactive() -> None:
    made = graph((A, C))
    made.create([Task(B, AVAILABLE, NOW)], [Edge(B, C)], NOW)
    assert made.tasks[C].pending_dependency_count == 2
    with pytest.raises(Conflict, match="available"):
        made.create([Task(D, AVAILABLE, NOW)], [Edge(D, C), Edge(D, A)], NOW)
    assert D not in made.tasks and made.tasks[C].pending_dependency_count == 2


def test_success_releases_and_zero_makes_available() -> None:
    made = graph((A, C), (B, C))
    assert made.news(ANN, claimed(made), Ended(0), NOW)
    assert states(made) == [TERMINATED, AVAILABLE, INACTIVE]
    made.news(ANN, claimed(made), Ended(0), NOW)
    assert states(made) == [TERMINATED, TERMINATED, AVAILABLE]


def test_a_user_makes_it_available_only_at_zero() -> None:
    made = graph((A, B))
    with pytest.raises(Conflict, match="inactive"):
        made.make_available([B], NOW)
    made.create([Task(C, INACTIVE, NOW)], [], NOW)
    made.make_available([C], NOW)
    assert made.tasks[C].state is AVAILABLE
    with pytest.raises(Conflict, match="available"):
        made.make_available([C], NOW)


def test_a_barrier_terminates_at_once_after_releasing_its_continuations() -> None:
    made = graph((A, B), (B, C), (C, D), barriers=(A, B, C))
    assert states(made) == [TERMINATED, TERMINATED, TERMINATED, AVAILABLE]
    assert made.executions == {}


def test_a_claim_has_one_winner_counts_and_opens_a_record() -> None:
    made = graph()
    held = claimed(made)
    assert made.claim(BOB, 1, NOW) == []
    task = made.tasks[A]
    assert (task.state, task.retry_count, task.worker) == (RUNNING, 1, ANN)
    assert made.executions[held].worker == ANN


def test_highest_priority_first_then_lowest_id() -> None:
    made = Graph()
    made.create([Task(id, AVAILABLE, NOW, priority=p) for id, p in ((A, 0), (B, 5), (C, 5))], [], NOW)
    assert [held.task for held in made.claim(ANN, 3, NOW)] == [B, C, A]


def test_failure_is_tried_again_while_retry_count_is_below_max_and_the_record_stays() -> None:
    made = graph((A, B), max_retry_count=2)
    made.news(ANN, claimed(made), Ended(7), NOW)
    assert states(made) == [AVAILABLE, INACTIVE]
    made.news(BOB, claimed(made, BOB), Ended(8), NOW)
    assert states(made) == [TERMINATED, CANCELLED]
    assert [record.exit_status for record in made.executions.values()] == [7, 8]


@pytest.mark.parametrize("limit", [0, 1])
def test_max_retry_count_1_means_no_second_attempt(limit: int) -> None:
    made = graph(max_retry_count=limit)
    made.news(ANN, claimed(made), Ended(1), NOW)
    assert states(made) == [TERMINATED]


def test_final_failure_cancels_transitively() -> None:
    made = graph((A, B), (B, C), (C, D))
    made.news(ANN, claimed(made), Ended(None), NOW)
    assert states(made) == [TERMINATED, CANCELLED, CANCELLED, CANCELLED]


def test_no_dependency_of_an_available_task_is_left_that_could_fail() -> None:
    """Why (AVAILABLE, DependencyFailed) is refused: all that named it has succeeded, and nobody may name it now.

    Lifecycles §7 says that a failed dependency cancels what is inactive or available; by invariant 5 the second of
    these cannot meet one, so to hear of it would mean that a count is wrong.
    """
    made = graph((A, C), (B, C))
    for _ in (A, B):
        made.news(ANN, claimed(made), Ended(0), NOW)
    assert states(made) == [TERMINATED, TERMINATED, AVAILABLE]
    assert {edge.source for edge in made.edges if made.tasks[edge.source].state not in ENDED} == set()
    made.create([Task(D, AVAILABLE, NOW)], [], NOW)
    with pytest.raises(Conflict):
        made.add_continuations([Edge(D, C)], NOW)
    with pytest.raises(Refused):
        TASK.step(made.tasks[C], DependencyFailed(), NOW)


def test_a_dependency_that_ends_after_its_continuation_was_cancelled_changes_nothing() -> None:
    made = graph((A, C), (B, C))
    made.cancel([C], NOW)
    for status in (0, 1):
        made.news(ANN, claimed(made), Ended(status), NOW)
    assert states(made) == [TERMINATED, TERMINATED, CANCELLED]


def test_a_lost_worker_moves_the_task_on_while_an_attempt_is_left() -> None:
    made = graph((A, B), max_retry_count=2)
    first = claimed(made)
    made.lose(ANN, NOW)
    assert states(made) == [AVAILABLE, INACTIVE]
    claimed(made, BOB)
    made.lose(BOB, NOW)
    assert states(made) == [TERMINATED, CANCELLED]
    assert {record.outcome for record in made.executions.values()} == {Outcome.LOST}
    assert made.tasks[A].crash_count == 2
    assert not made.news(ANN, first, Ended(0), NOW), "its late updates are refused"


def test_given_back_unstarted_leaves_no_record_and_costs_no_attempt() -> None:
    made = graph(max_retry_count=1)
    assert made.news(ANN, claimed(made), GivenBack(), NOW)
    assert states(made) == [AVAILABLE]
    assert made.tasks[A].retry_count == 0
    assert made.executions == {}


def test_a_repeated_give_back_does_not_take_the_next_attempt_away() -> None:
    """The answer to a give-back is lost, the worker claims the task again, and the repeated message arrives."""
    made = graph()
    first = claimed(made)
    made.news(ANN, first, GivenBack(), NOW)
    claimed(made)
    assert not made.news(ANN, first, GivenBack(), NOW)
    assert made.tasks[A].state is RUNNING


def test_a_cancelled_running_task_waits_for_its_worker_which_is_told() -> None:
    made = graph((A, B))
    held = claimed(made)
    assert made.cancel([A], NOW) == {(ANN, held)}
    assert states(made) == [PENDING_CANCELLATION, INACTIVE]


@pytest.mark.parametrize(
    ("event", "task", "continuation"),
    [
        (Ended(0), TERMINATED, AVAILABLE),
        (Ended(1), TERMINATED, CANCELLED),
        (Ended(None), TERMINATED, CANCELLED),
        (Stopped(None), CANCELLED, CANCELLED),
        (Stopped(0), CANCELLED, CANCELLED),
        (WorkerLost(), CANCELLED, CANCELLED),
        (GivenBack(), CANCELLED, CANCELLED),
    ],
)
def test_pending_cancellation_is_never_tried_again(event: Event, task: State, continuation: State) -> None:
    made = graph((A, B), max_retry_count=9)
    held = claimed(made)
    made.cancel([A], NOW)
    made.news(ANN, held, event, NOW)
    assert states(made) == [task, continuation]


def test_cancelling_what_is_inactive_or_available_cancels_its_continuations() -> None:
    made = graph((A, B), (B, C))
    made.cancel([B], NOW)
    assert states(made) == [AVAILABLE, CANCELLED, CANCELLED]
    made.cancel([A], NOW)
    assert states(made) == [CANCELLED, CANCELLED, CANCELLED]


@pytest.mark.parametrize("state", [PENDING_CANCELLATION, *ENDED])
def test_cancelling_an_ended_or_pending_task_does_nothing_and_succeeds(state: State) -> None:
    task = Task(A, state, NOW)
    assert TASK.step(task, CancelAsked(), NOW).record is task


def test_added_and_removed_while_the_graph_runs_and_removing_releases() -> None:
    made = graph((A, B))
    claimed(made)
    made.create([Task(C, INACTIVE, NOW)], [], NOW)
    made.add_continuations([Edge(A, C), Edge(B, C)], NOW)
    assert made.tasks[C].pending_dependency_count == 2
    made.remove_continuations([Edge(A, C)], NOW)
    assert states(made) == [RUNNING, INACTIVE, INACTIVE]
    made.remove_continuations([Edge(B, C), Edge(A, B)], NOW)
    assert states(made) == [RUNNING, AVAILABLE, AVAILABLE]


def test_adding_an_edge_twice_counts_once() -> None:
    made = graph((A, B))
    made.add_continuations([Edge(A, B), Edge(A, B)], NOW)
    assert made.tasks[B].pending_dependency_count == 1


@pytest.mark.parametrize(
    ("edges", "error"),
    [
        ([Edge(C, B)], "circle"),
        ([Edge(C, C)], "circle"),
        ([Edge(B, A)], "available"),
        ([Edge(B, D)], "no task"),
        ([Edge(B, C), Edge(C, B)], "circle"),
    ],
)
def test_a_cycle_or_a_continuation_that_is_not_inactive_is_refused_and_nothing_changes(
    edges: list[Edge], error: str
) -> None:
    made = graph((A, B), (B, C))
    before = replace(made, edges=set(made.edges), tasks=dict(made.tasks))
    with pytest.raises(UserError, match=error):
        made.add_continuations(edges, NOW)
    assert made == before


@pytest.mark.parametrize("ends", [True, False])
def test_a_source_that_has_ended_or_is_pending_cancellation_is_refused(ends: bool) -> None:
    made = graph((A, B))
    held = claimed(made)
    made.create([Task(C, INACTIVE, NOW), Task(D, INACTIVE, NOW)], [Edge(A, C)], NOW)
    made.cancel([A], NOW)
    if ends:
        made.news(ANN, held, Ended(1), NOW)
    with pytest.raises(Conflict):
        made.add_continuations([Edge(A, D)], NOW)
    with pytest.raises(Conflict):
        made.remove_continuations([Edge(A, B)], NOW)


def test_removing_an_edge_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotFound):
        graph((A, B)).remove_continuations([Edge(B, A)], NOW)


def test_what_a_heartbeat_does_not_list_goes_back() -> None:
    made = graph()
    made.claim(ANN, 1, NOW, claim=1)
    made.heartbeat(ANN, [], claim=1, now=NOW)
    assert states(made) == [AVAILABLE]
    assert made.tasks[A].retry_count == 0


def test_a_heartbeat_written_before_the_claim_was_answered_takes_nothing_away() -> None:
    """The claim overtakes the heartbeat on another connection: the worker runs what the heartbeat cannot list."""
    made = graph()
    made.claim(ANN, 1, NOW, claim=2)
    made.heartbeat(ANN, [], claim=1, now=NOW)
    assert states(made) == [RUNNING]


@pytest.mark.parametrize("state", [state for state in State if state not in HELD])
def test_no_worker_has_a_task_that_is_not_held(state: State) -> None:
    for row in TASK.rows:
        if row.source in HELD and row.target is state:
            task = Task(A, State(row.source.value), NOW, worker=ANN, attempt=1, retry_count=1)
            assert row.then(task, row.event(), NOW).fields["worker"] is None


EVENTS: tuple[Event, ...] = (
    Acquired(),
    Released(),
    ContinuationChanged(),
    MadeAvailable(),
    Passed(),
    Claimed(ANN),
    Ended(0),
    Ended(1),
    Stopped(),
    GivenBack(),
    WorkerLost(),
    CancelAsked(),
    LetGo(),
    DependencyFailed(),
)


@given(
    st.sampled_from([INACTIVE, AVAILABLE]), st.booleans(), *2 * [st.integers(0, 3)], st.lists(st.sampled_from(EVENTS))
)
def test_whatever_happens_to_one_task_its_record_makes_sense(
    initial: State, has_command: bool, limit: int, crash_limit: int, events: list[Event]
) -> None:
    task = Task(A, initial, NOW, has_command=has_command, max_retry_count=limit, crash_limit=crash_limit)
    for event in events:
        before = task
        try:
            task = TASK.step(task, event, NOW).record
        except Refused:
            continue
        assert (task.worker is not None) == (task.state in HELD)
        assert task.pending_dependency_count >= 0
        assert 0 <= task.retry_count <= max(limit, 1)
        assert task.attempt >= max(before.attempt, task.retry_count)
        assert not task.held or (task.state is AVAILABLE and task.crash_count >= crash_limit)
        assert before.state not in ENDED or task == before
