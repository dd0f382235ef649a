"""What a run tells the managed task that launched it."""

from typing import Any
from uuid import UUID

import pytest

from stoker.core import managed_task as mt
from stoker.core.policy import Policy
from stoker.core.reason import CONSEQUENCES, JobEnd, JobReason, RunReason
from stoker.core.run_facts import FINISHED, Run, S
from stoker.core.tidings import news_of
from tests.core.living import PROJECT_ID, RUN_ID

USERS = (RunReason.STOPPED_BY_USER, RunReason.ABORTED_BY_USER)
PROGRAMS = {
    JobReason.CONTAINER_EXITED_WITH_ERROR,
    JobReason.OUT_OF_MEMORY,
    JobReason.SETUP_FAILED,
    JobReason.LOG_QUOTA_EXCEEDED,
}


def a_run(state: S, **fields: Any) -> Run:
    return Run(RUN_ID, PROJECT_ID, "r", Policy(), 0.0, state, owner_id=UUID(int=4), owner_attempt=3, **fields)


def news(machine_gone: bool = False, **fields: Any) -> mt.RunNews:
    told = news_of(a_run(fields.pop("state", S.FAILED), **fields), machine_gone)
    assert told is not None
    assert told.attempt == 3, "news without its try could mean another run"
    return told


@pytest.mark.parametrize("state", sorted(set(S) - {S.RUNNING} - FINISHED))
def test_there_is_nothing_to_tell_before_it_runs_or_ends(state: S) -> None:
    """A retry inside the run is no recovery of the managed task."""
    assert news_of(a_run(state), False) is None


def test_it_runs_and_it_is_done() -> None:
    assert isinstance(news(state=S.RUNNING), mt.RunStarted)
    done = news(state=S.DONE, reason=RunReason.ALL_JOBS_DONE)
    assert isinstance(done, mt.ProgramEnded)
    assert done.exit_code == 0


@pytest.mark.parametrize("reason", sorted(USERS))
def test_a_run_that_a_person_stopped_is_cleaned_up(reason: RunReason) -> None:
    assert isinstance(news(state=S.TERMINATED, reason=reason), mt.CleanedUp)


@pytest.mark.parametrize("reason", [RunReason.JOB_FAILED, RunReason.RETRY_LIMIT_EXCEEDED])
@pytest.mark.parametrize("cause", [cause for cause in JobReason if CONSEQUENCES[cause].ends is JobEnd.FAILED])
def test_each_failure_is_the_programs_the_machines_or_the_providers(cause: JobReason, reason: RunReason) -> None:
    """A recovery helps against a lost machine, not against a bug: the managed task has to be told which it was."""
    told = news(reason=reason, cause=cause)
    if cause is JobReason.FAILED_TO_START_DUE_TO_NO_CAPACITY:
        assert isinstance(told, mt.NoCapacity)
    elif cause is JobReason.INTERRUPTED_BY_NO_CAPACITY:
        assert isinstance(told, mt.Preempted)
    else:
        assert isinstance(told, mt.ProgramEnded if cause in PROGRAMS else mt.MachineLost)


def test_the_programs_exit_code_setup_and_the_providers_word_are_passed_on() -> None:
    failed = news(reason=RunReason.JOB_FAILED, cause=JobReason.SETUP_FAILED, exit_code=7, machine_gone=True)
    assert isinstance(failed, mt.ProgramEnded)
    assert (failed.exit_code, failed.setup_failed, failed.machine_gone) == (7, True, True)


def test_a_program_without_an_exit_code_did_not_succeed() -> None:
    ended = news(state=S.TERMINATED, reason=RunReason.JOB_TERMINATED, cause=JobReason.MAX_DURATION_EXCEEDED)
    assert isinstance(ended, mt.ProgramEnded)
    assert ended.exit_code == 1


def test_what_our_server_broke_is_not_the_programs_fault() -> None:
    told = news(reason=RunReason.SERVER_ERROR, message="disk full")
    assert isinstance(told, mt.MachineLost)
    assert told.message == "disk full"
