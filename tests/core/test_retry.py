"""May it be tried again? Events, tries, duration, and exit codes that cost nothing."""

import pytest

from stoker.core.reason import CONSEQUENCES, LIMITS, JobReason, RetryEvent
from stoker.core.retry import FIRST_TRY, HEALTHY_AFTER_S, Budget, Fate, Retry, Verdict, judge

EXITED = JobReason.CONTAINER_EXITED_WITH_ERROR
EVERYTHING = frozenset(RetryEvent)
BY_OTHERS = {JobReason.DONE_BY_RUNNER, JobReason.SCALED_DOWN, *LIMITS}


def fate(retry: Retry | None, reason: JobReason = EXITED, budget: Budget = FIRST_TRY, now: float = 0.0) -> Fate:
    return judge(retry, reason, 1, budget, now).fate


@pytest.mark.parametrize("reason", sorted(set(JobReason) - BY_OTHERS))
def test_without_retry_configured_nothing_is_tried_again(reason: JobReason) -> None:
    assert fate(None, reason) is Fate.FAILED


@pytest.mark.parametrize("reason", JobReason)
@pytest.mark.parametrize("event", RetryEvent)
def test_only_a_reason_whose_event_is_listed_is_tried_again(reason: JobReason, event: RetryEvent) -> None:
    """`on_events: [interruption]` survives preemption and still shows a bug at once."""
    again = fate(Retry(frozenset({event})), reason) is Fate.RETRY
    assert again == (CONSEQUENCES[reason].retry is event)


@pytest.mark.parametrize("retry", [None, Retry(EVERYTHING)])
def test_done_limits_and_scaling_are_no_failures(retry: Retry | None) -> None:
    assert fate(retry, JobReason.DONE_BY_RUNNER) is Fate.DONE
    assert fate(retry, JobReason.SCALED_DOWN) is Fate.GONE
    assert {fate(retry, reason) for reason in LIMITS} == {Fate.LIMIT}


def test_max_attempts_counts_tries() -> None:
    """`max_attempts: 3` is three tries, the first one included; the budget travels with the submissions."""
    retry, budget = Retry(EVERYTHING, max_attempts=3), FIRST_TRY
    fates = []
    for _ in range(3):
        verdict = judge(retry, EXITED, 1, budget, 0.0)
        fates.append(verdict.fate)
        budget = verdict.budget
    assert fates == [Fate.RETRY, Fate.RETRY, Fate.EXHAUSTED]


def test_one_attempt_means_no_second_one() -> None:
    assert fate(Retry(EVERYTHING, max_attempts=1)) is Fate.EXHAUSTED


def test_the_duration_counts_from_the_first_failure_of_a_series() -> None:
    """`duration: 1h`: it may fail for an hour on end."""
    retry = Retry(EVERYTHING, duration_s=3600)
    first = judge(retry, EXITED, 1, FIRST_TRY, 1000.0)
    assert first == Verdict(Fate.RETRY, Budget(2, 1000.0, streak=1))
    assert fate(retry, budget=first.budget, now=4600.0) is Fate.RETRY
    assert fate(retry, budget=first.budget, now=4601.0) is Fate.EXHAUSTED
    assert judge(retry, EXITED, 1, first.budget, 2000.0).budget == Budget(3, 1000.0, streak=2)


def test_ten_healthy_minutes_begin_a_new_series_but_give_no_tries_back() -> None:
    used = Budget(3, 1000.0, streak=2)
    assert used.ran(HEALTHY_AFTER_S - 1) == used
    assert used.ran(HEALTHY_AFTER_S) == Budget(3, None, streak=0)
    assert HEALTHY_AFTER_S == 600.0


def test_chosen_exit_codes_restart_it_without_using_the_budget() -> None:
    """A trainer exits with 42 to be started again from its checkpoint, as often as it likes."""
    retry = Retry(on_events=frozenset(), max_attempts=1, on_exit_codes=frozenset({42}))
    assert judge(retry, EXITED, 42, FIRST_TRY, 9.0) == Verdict(Fate.RETRY, Budget(1, None, streak=1))
    assert judge(retry, EXITED, 43, FIRST_TRY, 9.0).fate is Fate.FAILED


def test_a_chosen_exit_code_counts_also_when_memory_ran_out() -> None:
    """137 is on their list: whether the kernel or a person killed it, it is the same 137."""
    retry = Retry(on_exit_codes=frozenset({137}))
    assert judge(retry, JobReason.OUT_OF_MEMORY, 137, FIRST_TRY, 0.0).fate is Fate.RETRY


def test_a_setup_that_fails_is_not_the_program_and_has_no_chosen_exit_code() -> None:
    retry = Retry(on_exit_codes=frozenset({42}))
    assert judge(retry, JobReason.SETUP_FAILED, 42, FIRST_TRY, 0.0).fate is Fate.FAILED
