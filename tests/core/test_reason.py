"""The two tables of reasons, written out a second time as the contract has them."""

import pytest

from stoker.core.reason import CONSEQUENCES, LIMITS, SENTENCES, JobReason, RunReason

JOBS = """
FAILED_TO_START_DUE_TO_NO_CAPACITY FAILED no-capacity
INTERRUPTED_BY_NO_CAPACITY FAILED interruption
INSTANCE_UNREACHABLE FAILED error
WAITING_INSTANCE_LIMIT_EXCEEDED FAILED error
WAITING_RUNNER_LIMIT_EXCEEDED FAILED error
VOLUME_ERROR FAILED error
GATEWAY_ERROR FAILED error
CREATING_CONTAINER_ERROR FAILED error
PORTS_BINDING_FAILED FAILED error
EXECUTOR_ERROR FAILED error
CONTAINER_EXITED_WITH_ERROR FAILED error
OUT_OF_MEMORY FAILED error
SETUP_FAILED FAILED error
LOG_QUOTA_EXCEEDED FAILED error
DONE_BY_RUNNER DONE None
TERMINATED_BY_USER TERMINATED None
TERMINATED_BY_SERVER TERMINATED None
SCALED_DOWN TERMINATED None
MAX_DURATION_EXCEEDED TERMINATED None
INACTIVITY_DURATION_EXCEEDED TERMINATED None
TERMINATED_DUE_TO_UTILIZATION_POLICY TERMINATED None
ABORTED_BY_USER ABORTED None
"""
RUNS = """
ALL_JOBS_DONE DONE_BY_RUNNER DONE
JOB_FAILED TERMINATED_BY_SERVER FAILED
RETRY_LIMIT_EXCEEDED TERMINATED_BY_SERVER FAILED
SERVER_ERROR TERMINATED_BY_SERVER FAILED
GATEWAY_ERROR TERMINATED_BY_SERVER FAILED
JOB_TERMINATED TERMINATED_BY_SERVER TERMINATED
STOPPED_BY_USER TERMINATED_BY_USER TERMINATED
ABORTED_BY_USER ABORTED_BY_USER TERMINATED
"""


def lines_of(table: str) -> list[str]:
    return table.strip().splitlines()


@pytest.mark.parametrize("line", lines_of(JOBS))
def test_how_a_job_ends_and_which_retry_event_it_is(line: str) -> None:
    reason, ends, event = line.split()
    assert CONSEQUENCES[JobReason(reason)] == (ends, None if event == "None" else event)


@pytest.mark.parametrize("line", lines_of(RUNS))
def test_what_a_runs_reason_means_for_its_jobs_and_its_end(line: str) -> None:
    reason, jobs, ends = line.split()
    sentence = SENTENCES[RunReason(reason)]
    assert (sentence.jobs, sentence.ends) == (jobs, ends)


def test_no_reason_is_left_out() -> None:
    assert {line.split()[0] for line in lines_of(JOBS)} == set(JobReason) == set(CONSEQUENCES)
    assert {line.split()[0] for line in lines_of(RUNS)} == set(RunReason) == set(SENTENCES)


def test_the_limits_are_duration_inactivity_and_utilisation() -> None:
    assert {reason.value for reason in LIMITS} == {
        "MAX_DURATION_EXCEEDED",
        "INACTIVITY_DURATION_EXCEEDED",
        "TERMINATED_DUE_TO_UTILIZATION_POLICY",
    }
