"""The table of the managed task, one sentence of the contract a test."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.ids import ManagedJobId, derived
from stoker.core.machine import Effect, Event, Refused, TimeUp
from stoker.core.managed_task import (
    ENDED,
    LAST_WORDS,
    MANAGED_TASK,
    UNENDED,
    CancelAsked,
    CleanedUp,
    ControllerBroke,
    DependencyFailed,
    Impossible,
    Lack,
    LaunchRun,
    MachineLost,
    ManagedTask,
    ManagedTaskId,
    NoCapacity,
    NothingToRun,
    Preempted,
    ProgramEnded,
    RunNews,
    RunStarted,
    S,
    Scheduled,
    Source,
    StopRun,
)

TASK = ManagedTask(ManagedTaskId(UUID(int=7)), ManagedJobId(UUID(int=1)), 0, "train")


def walk(task: ManagedTask, *events: Event, now: float = 0.0) -> tuple[ManagedTask, list[Effect]]:
    """Each event a second after the last."""
    effects: list[Effect] = []
    for seconds, event in enumerate(events, start=1):
        step = MANAGED_TASK.step(task, event, now + seconds)
        task, effects = step.record, effects + list(step.effects)
    return task, effects


def running(task: ManagedTask = TASK, now: float = 0.0) -> ManagedTask:
    task, _ = walk(task, Scheduled(), RunStarted(attempt=task.attempt + 1), now=now)
    return task


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """Somebody adds an event and forgets a state: this list says what nobody has thought about."""
    never_for_ended = {(state.name, event) for state in ENDED for event in ("Scheduled", "NothingToRun")}
    assert MANAGED_TASK.refused() == never_for_ended | {
        ("PENDING", "NothingToRun"),
        ("STARTING", "NothingToRun"),
        ("RUNNING", "NothingToRun"),
        ("RECOVERING", "NothingToRun"),
        ("CANCELLING", "NothingToRun"),
        ("STARTING", "Scheduled"),
        ("RUNNING", "Scheduled"),
        ("RECOVERING", "Scheduled"),
        ("CANCELLING", "Scheduled"),
        ("STARTING", "DependencyFailed"),
        ("RUNNING", "DependencyFailed"),
        ("RECOVERING", "DependencyFailed"),
        ("STARTING", "ProgramEnded"),
        ("RUNNING", "Impossible"),
    }


def test_no_row_stands_behind_one_that_always_holds() -> None:
    assert MANAGED_TASK.shadowed() == []


def test_the_ended_statuses_are_those_nothing_leaves() -> None:
    assert MANAGED_TASK.finished == ENDED


def test_scheduled_makes_it_starting_and_launches_its_first_run() -> None:
    """The job got its slot; the run's id follows from task and number, so a repeated launch is the same run."""
    task, effects = walk(TASK, Scheduled())
    assert (task.state, task.attempt, task.launched) == (S.STARTING, 1, True)
    assert effects == [LaunchRun(1)]
    assert task.run_id == derived(task.id, 1)


def test_a_task_with_nothing_to_run_succeeds_without_a_machine() -> None:
    """A pipeline ends with a step that only marks the end."""
    task, effects = walk(replace(TASK, has_commands=False), NothingToRun(), NothingToRun())
    assert (task.state, task.attempt, effects) == (S.SUCCEEDED, 0, [])
    with pytest.raises(Refused):
        walk(TASK, NothingToRun())


def test_no_capacity_backs_off_without_a_run_and_longer_each_time() -> None:
    """No GPU anywhere: it is asked for again after 15 s, then after 30 s."""
    task, _ = walk(TASK, Scheduled(), NoCapacity(attempt=1))
    assert (task.state, task.launched, task.recovering, task.resume_at) == (S.PENDING, False, False, 2 + 15)
    task, _ = walk(task, TimeUp(), now=16)
    assert task.resume_at is None
    task, effects = walk(task, Scheduled(), NoCapacity(attempt=2), now=20)
    assert (task.state, task.resume_at, effects) == (S.PENDING, 22 + 30, [LaunchRun(2)])
    assert task.recovery_count == 0


def test_time_that_is_not_up_changes_nothing() -> None:
    """A timer set for an earlier deadline fires late."""
    task, _ = walk(TASK, Scheduled(), NoCapacity(attempt=1))
    assert MANAGED_TASK.step(task, TimeUp(), 16.9).row is None


def test_a_machine_lost_before_it_ran_is_a_launch_that_failed() -> None:
    """The spot machine was taken back while the image was pulled: nothing ran, so nothing is recovered."""
    for lost in (Preempted(attempt=1), MachineLost(attempt=1)):
        task, _ = walk(TASK, Scheduled(), lost)
        assert (task.state, task.recovery_count, task.resume_at) == (S.PENDING, 0, 17)


def test_preempted_makes_it_recovering_at_once_and_says_its_source() -> None:
    """The provider takes the machine back at three in the morning."""
    task, effects = walk(running(), Preempted(attempt=1))
    assert (task.state, task.recovering, task.launched, task.resume_at) == (S.RECOVERING, True, False, None)
    assert (task.recovery_count, task.recovery_source, effects) == (1, Source.PREEMPTED, [])


def test_a_recovery_without_capacity_is_pending_in_recovery_then_recovering_again() -> None:
    """One preemption, three tries to find another machine: users see one recovery."""
    task, _ = walk(running(), MachineLost(attempt=1), Scheduled(), NoCapacity(attempt=2))
    assert (task.state, task.recovering) == (S.PENDING, True)
    task, _ = walk(task, TimeUp(), Scheduled(), now=100)
    assert (task.state, task.attempt) == (S.RECOVERING, 3)
    task, _ = walk(task, RunStarted(attempt=3))
    assert (task.state, task.recovering, task.recovery_count) == (S.RUNNING, False, 1)
    assert task.recovery_source is Source.MACHINE_LOST


def test_the_backoff_goes_on_after_a_short_run_and_starts_anew_after_ten_minutes() -> None:
    """Machines that are taken back after a minute are as scarce as none."""
    once = running(walk(TASK, Scheduled(), NoCapacity(attempt=1))[0], now=100)
    short, _ = walk(once, Preempted(attempt=2), Scheduled(), NoCapacity(attempt=3), now=160)
    assert short.resume_at == 163 + 30
    long, _ = walk(once, Preempted(attempt=2), Scheduled(), NoCapacity(attempt=3), now=800)
    assert long.resume_at == 803 + 15


def test_some_nodes_without_capacity_while_others_run_is_a_recovery_that_waits() -> None:
    """Seven of eight nodes came up, the eighth never: the run ended as no capacity after it had run."""
    task, _ = walk(running(), NoCapacity(attempt=1))
    assert (task.state, task.recovery_source, task.resume_at) == (S.RECOVERING, Source.NO_CAPACITY, 16)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (ProgramEnded(0, attempt=1), S.SUCCEEDED),
        (ProgramEnded(1, attempt=1), S.FAILED),
        (ProgramEnded(1, setup_failed=True, attempt=1), S.FAILED_SETUP),
        (ProgramEnded(0, setup_failed=True, attempt=1), S.FAILED_SETUP),
        (ProgramEnded(0, machine_gone=True, attempt=1), S.SUCCEEDED),
    ],
)
def test_the_program_ended(end: ProgramEnded, state: S) -> None:
    task, effects = walk(running(), end)
    assert (task.state, task.exit_code, task.launched, effects) == (state, end.exit_code, False, [])


def test_the_providers_word_that_the_machine_is_gone_beats_the_jobs_word_that_it_failed() -> None:
    """A machine that is shut down kills the program first, and the program's last word is an error."""
    task, _ = walk(running(), ProgramEnded(143, machine_gone=True, attempt=1))
    assert (task.state, task.recovery_source, task.restarts_on_errors) == (S.RECOVERING, Source.MACHINE_LOST, 0)


def test_max_restarts_on_errors_allows_that_many() -> None:
    """A flaky data loader: two restarts are allowed, the third failure is the end."""
    task = replace(TASK, max_restarts_on_errors=2)
    for attempt in (1, 2):
        task, _ = walk(running(task), ProgramEnded(1, attempt=attempt))
        assert (task.state, task.restarts_on_errors, task.recovery_count) == (S.RECOVERING, attempt, attempt)
        assert task.resume_at is not None
        task, _ = walk(task, TimeUp(), now=task.resume_at)
    task, _ = walk(running(task), ProgramEnded(1, attempt=3))
    assert (task.state, task.recovery_count) == (S.FAILED, 2)


def test_recover_on_exit_codes_restarts_without_using_the_budget() -> None:
    """The program exits with 42 when its node's GPU fell off the bus."""
    task = replace(TASK, recover_on_exit_codes=frozenset({42}))
    task, _ = walk(running(task), ProgramEnded(42, attempt=1))
    assert (task.state, task.restarts_on_errors, task.recovery_source) == (S.RECOVERING, 0, Source.EXIT_CODE)


@pytest.mark.parametrize(("lack", "state"), [(Lack.RESOURCE, "NO_RESOURCE"), (Lack.PRECHECKS, "PRECHECKS")])
def test_what_nothing_can_ever_satisfy_fails_at_once(lack: Lack, state: str) -> None:
    """Nobody sells that GPU, or the credentials are wrong: waiting would not help. Also in a recovery."""
    task, _ = walk(TASK, Scheduled(), Impossible(lack, attempt=1))
    assert task.state.name == f"FAILED_{state}"
    task, _ = walk(running(), Preempted(attempt=1), Scheduled(), Impossible(lack, attempt=2))
    assert task.state.name == f"FAILED_{state}"
    task, _ = walk(TASK, Scheduled(), CancelAsked(), Impossible(lack, attempt=1))
    assert task.state.name == f"FAILED_{state}"


def test_cancel_is_accepted_in_any_unended_state_and_stops_the_run_that_is_out() -> None:
    for task, wishes in (
        (TASK, []),
        (walk(TASK, Scheduled())[0], [StopRun(1)]),
        (running(), [StopRun(1)]),
        (walk(running(), Preempted(attempt=1))[0], []),
        (walk(running(), Preempted(attempt=1), Scheduled())[0], [StopRun(2)]),
    ):
        cancelled, effects = walk(task, CancelAsked())
        assert (cancelled.state, effects) == (S.CANCELLING, wishes)
        assert MANAGED_TASK.step(cancelled, CancelAsked(), 9).row is None


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (CleanedUp(attempt=1), S.CANCELLED),
        (Preempted(attempt=1), S.CANCELLED),
        (MachineLost(attempt=1), S.CANCELLED),
        (NoCapacity(attempt=1), S.CANCELLED),
        (ProgramEnded(143, machine_gone=True, attempt=1), S.CANCELLED),
        (ProgramEnded(0, attempt=1), S.SUCCEEDED),
        (ProgramEnded(1, attempt=1), S.FAILED),
        (ProgramEnded(1, setup_failed=True, attempt=1), S.FAILED_SETUP),
    ],
)
def test_cancelling_ends_as_cancelled_unless_it_ended_before_the_cancel_reached_it(last: Event, state: S) -> None:
    """The user gave up a second before the program was done: its result counts, and it is not tried again."""
    task, _ = walk(running(replace(TASK, max_restarts_on_errors=9)), CancelAsked(), last)
    assert (task.state, task.launched) == (state, False)


def test_a_run_that_somebody_stopped_cancels_its_task() -> None:
    """An administrator stops the run itself: the task does not fight back with a new one."""
    for task in (walk(TASK, Scheduled())[0], running()):
        stopped, effects = walk(task, CleanedUp(attempt=1))
        assert (stopped.state, stopped.launched, effects) == (S.CANCELLING, False, [])


def test_a_task_whose_dependency_failed_never_starts() -> None:
    task, effects = walk(TASK, DependencyFailed("prepare"), CleanedUp())
    assert (task.state, task.message, effects) == (S.CANCELLED, "task prepare did not succeed", [])


@pytest.mark.parametrize("state", UNENDED)
def test_failed_controller_keeps_the_outcome_that_was_there_visible(state: S) -> None:
    """A row of ours cannot be read any more: the task ends, its run is stopped, its slot kept until that is done."""
    launched = state in (S.STARTING, S.RUNNING)
    task, effects = walk(replace(TASK, state=state, attempt=3, launched=launched), ControllerBroke("lost its spec"))
    assert (task.state, task.outcome_before, task.controller_error) == (S.FAILED_CONTROLLER, state, "lost its spec")
    assert (effects, task.launched) == ([StopRun(3)] if launched else [], launched)
    task, _ = walk(task, CleanedUp(attempt=3))
    assert (task.state, task.launched) == (S.FAILED_CONTROLLER, False)


@pytest.mark.parametrize("state", sorted(ENDED - {S.FAILED_CONTROLLER}))
def test_an_internal_error_after_the_end_is_added_beside_the_outcome(state: S) -> None:
    """Training succeeded, then our cleanup met a bug: the user still has a success."""
    task, _ = walk(replace(TASK, state=state), ControllerBroke("first"), ControllerBroke("second"))
    assert (task.state, task.controller_error) == (state, "first")


def test_late_news_of_an_earlier_run_falls_on_the_floor() -> None:
    """Run 1 was preempted and run 2 runs; then the message that run 1 failed arrives."""
    task, _ = walk(running(), Preempted(attempt=1))
    for late in (ProgramEnded(1, attempt=1), Preempted(attempt=1), RunStarted(attempt=1), CleanedUp(attempt=1)):
        assert MANAGED_TASK.step(task, late, 9).row is None
    again = running(task)
    assert (again.state, again.attempt) == (S.RUNNING, 2)
    assert MANAGED_TASK.step(again, ProgramEnded(1, attempt=1), 9).row is None


@pytest.mark.parametrize("last", LAST_WORDS)
def test_a_runs_last_word_said_twice_counts_once(last: type[RunNews]) -> None:
    """At least once: every message may be delivered again."""
    task = running() if last is not Impossible else walk(TASK, Scheduled())[0]
    once = MANAGED_TASK.step(task, last(attempt=1), 5).record
    if once.state is S.CANCELLING:
        once = MANAGED_TASK.step(once, CleanedUp(), 5).record
    assert MANAGED_TASK.step(once, last(attempt=1), 6).row is None


def news(attempt: int | None) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.sampled_from(
            [
                *(kind(attempt=attempt) for kind in (RunStarted, NoCapacity, Preempted, MachineLost, CleanedUp)),
                *(ProgramEnded(code, attempt=attempt) for code in (0, 1, 42)),
                ProgramEnded(1, machine_gone=True, attempt=attempt),
                Impossible(Lack.PRECHECKS, attempt=attempt),
            ]
        ),
        st.sampled_from([Scheduled(), CancelAsked(), ControllerBroke("bug"), TimeUp(), DependencyFailed("a")]),
    )


@given(st.data())
def test_any_order_of_events_keeps_outcomes_counts_and_the_one_run(data: st.DataObject) -> None:
    """Messages are dropped, repeated and late; the server is restarted between any two of them (no event)."""
    task = replace(TASK, max_restarts_on_errors=2, recover_on_exit_codes=frozenset({42}))
    recoveries, out = 0, 0
    for now in range(40):
        event = data.draw(news(data.draw(st.sampled_from([task.attempt, max(1, task.attempt - 1)]))))
        try:
            step = MANAGED_TASK.step(task, event, now * 30.0)
        except Refused:
            continue
        recoveries += task.state is S.RUNNING and step.record.state is S.RECOVERING
        if any(isinstance(effect, LaunchRun) for effect in step.effects):
            assert not task.launched, "a second run while one is out"
            out += 1
        if task.state in ENDED:
            assert step.record.state is task.state
        task = step.record
        assert task.recovery_count == recoveries
        assert task.attempt == out
        assert not (task.resume_at is not None and task.launched)
        assert task.restarts_on_errors <= task.max_restarts_on_errors
