"""A task that takes one worker after the other down is put aside, and what is remembered of how it ended."""

from typing import Any
from uuid import UUID

import pytest

from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import TaskId, WorkerId
from stoker.core.machine import Event, Refused
from stoker.core.task import (
    AVAILABLE,
    CANCELLED,
    INACTIVE,
    PENDING_CANCELLATION,
    RUNNING,
    TASK,
    TERMINATED,
    Claimed,
    Ended,
    GivenBack,
    LetGo,
    State,
    Stopped,
    Task,
    WorkerLost,
)

NOW = 1000.0
ANN = WorkerId(UUID(int=0xA))
A, B = (TaskId(UUID(int=n)) for n in (1, 2))


def graph(**fields: Any) -> Graph:
    made = Graph()
    made.create([Task(A, AVAILABLE, NOW, **fields), Task(B, INACTIVE, NOW)], [Edge(A, B)], NOW)
    return made


def lost(made: Graph, times: int) -> None:
    for _ in range(times):
        made.claim(ANN, 1, NOW)
        made.lose(ANN, NOW)


def running(**fields: Any) -> Task:
    return Task(A, RUNNING, NOW, worker=ANN, attempt=1, retry_count=1, **fields)


def test_the_loss_that_reaches_the_limit_puts_it_aside_and_nobody_can_claim_it() -> None:
    made = graph(max_retry_count=9, crash_limit=3)
    lost(made, 2)
    assert not made.tasks[A].held
    lost(made, 1)
    assert (made.tasks[A].state, made.tasks[A].held, made.tasks[A].crash_count) == (AVAILABLE, True, 3)
    assert made.tasks[B].state is INACTIVE, "what waits for it goes on waiting"
    assert made.claim(ANN, 1, NOW) == []
    with pytest.raises(Refused):
        TASK.step(made.tasks[A], Claimed(ANN), NOW)


def test_let_go_it_is_claimed_again_and_the_next_loss_puts_it_aside_again() -> None:
    made = graph(max_retry_count=9, crash_limit=2)
    lost(made, 2)
    made.let_go([A], NOW + 5)
    assert not made.tasks[A].held
    assert made.tasks[A].entered_at == NOW, "it has been available all the time"
    assert made.claim(ANN, 1, NOW) == [Held(A, 3)]
    made.lose(ANN, NOW)
    assert made.tasks[A].held


def test_one_that_was_put_aside_can_be_cancelled_and_is_held_no_more() -> None:
    made = graph(max_retry_count=9, crash_limit=1)
    lost(made, 1)
    made.cancel([A], NOW)
    assert [made.tasks[id].state for id in (A, B)] == [CANCELLED, CANCELLED]
    assert not made.tasks[A].held


@pytest.mark.parametrize("limit", [1, 2])
def test_without_an_attempt_left_a_loss_is_the_end_whatever_the_limit_of_crashes(limit: int) -> None:
    made = graph(max_retry_count=1, crash_limit=limit)
    lost(made, 1)
    assert (made.tasks[A].state, made.tasks[A].held) == (TERMINATED, False)
    assert made.tasks[B].state is CANCELLED


def test_failures_and_tasks_that_were_given_back_are_no_crashes() -> None:
    made = graph(max_retry_count=9, crash_limit=1)
    for event in (Ended(1), GivenBack(), Ended(None)):
        (held,) = made.claim(ANN, 1, NOW)
        made.news(ANN, held, event, NOW)
    assert (made.tasks[A].state, made.tasks[A].held, made.tasks[A].crash_count) == (AVAILABLE, False, 0)


def test_a_lost_worker_ends_a_pending_cancellation_and_nothing_is_put_aside() -> None:
    task = TASK.step(running(max_retry_count=9, crash_limit=1), WorkerLost(), NOW).record
    assert task.held
    pending = Task(A, PENDING_CANCELLATION, NOW, worker=ANN, attempt=1, retry_count=1, max_retry_count=9, crash_limit=1)
    ended = TASK.step(pending, WorkerLost(), NOW).record
    assert (ended.state, ended.held) == (CANCELLED, False)


@pytest.mark.parametrize("state", State)
def test_letting_go_what_is_not_held_does_nothing_and_succeeds(state: State) -> None:
    task = Task(A, state, NOW)
    assert TASK.step(task, LetGo(), NOW).record is task


@pytest.mark.parametrize("event", [Ended(0), Ended(7), Ended(None)])
def test_the_task_remembers_how_its_last_attempt_ended(event: Ended) -> None:
    assert TASK.step(running(exit_status=3, max_retry_count=9), event, NOW).record.exit_status == event.exit_status


@pytest.mark.parametrize(
    ("event", "remembered"), [(Stopped(143), 143), (Stopped(None), None), (WorkerLost(), None), (GivenBack(), 3)]
)
def test_a_lost_attempt_has_no_status_and_one_that_never_began_changes_none(
    event: Event, remembered: int | None
) -> None:
    pending = Task(A, PENDING_CANCELLATION, NOW, worker=ANN, attempt=2, retry_count=2, exit_status=3)
    assert TASK.step(pending, event, NOW).record.exit_status == remembered
