"""The table of the run: the derivation in its order, stop and abort, the backoff, and each row once."""

from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from stoker.core.backoff import DELAYS_S
from stoker.core.ids import RunId
from stoker.core.job_facts import AskStop, Exited, Placed, Released, RunnerAccepted, TaskAccepted
from stoker.core.job_facts import S as J
from stoker.core.machine import Event, TimeUp
from stoker.core.policy import Policy, StopCriteria
from stoker.core.reason import SENTENCES, JobReason, RunReason
from stoker.core.retry import FIRST_TRY, Budget, Fate
from stoker.core.run import RUN, deadline
from stoker.core.run_facts import (
    ACTIVE,
    FINISHED,
    AbortAsked,
    Broke,
    CutGrace,
    EndJobs,
    EndReplica,
    HoldAsked,
    JobsChanged,
    PauseAsked,
    ReleaseAsked,
    ReplicasWanted,
    Resubmit,
    ResumeAsked,
    Revised,
    Run,
    S,
    Scale,
    StopAsked,
    Swept,
    Tally,
    TellOwner,
    TriggerAsked,
)
from stoker.core.schedule import Overlap, Schedule
from tests.core.living import ALWAYS, PROJECT_ID, RUN_ID, Life, machine, walk

MASTER = Policy(stop_criteria=StopCriteria.MASTER_DONE)
SKIP, QUEUE = (Policy(schedule=Schedule(("0 * * * *",), overlap=overlap)) for overlap in (Overlap.SKIP, Overlap.QUEUE))
PAUSED = Policy(schedule=Schedule(("0 * * * *",), paused=True))
HELD = Policy(hold=True)
WAITING = Tally(submitted=1)
UNFINISHED = (S.PENDING, *ACTIVE, S.TERMINATING)
LOOK = JobsChanged(replica=0, replica_active=0, replica_retry=False)
FAILED = JobsChanged(0, 0, False, fate=Fate.FAILED, reason=JobReason.EXECUTOR_ERROR, exit_code=3)
RETRIED = JobsChanged(1, 0, True, fate=Fate.RETRY, budget=Budget(2, 0.0))


def a_run(state: S, policy: Policy | None = None, **fields: Any) -> Run:
    return Run(RUN_ID, PROJECT_ID, "r", policy or Policy(), 0.0, state, **fields)


class Case(NamedTuple):
    run: Run
    event: Event
    to: S


def derivations(state: S) -> list[Case]:
    """One situation a rule; what later rules want is there as well, so the order is what decides."""
    crowd: dict[str, Any] = {"running": 1, "starting": 1, "submitted": 1}
    return [
        Case(a_run(state, MASTER, tally=Tally(**crowd, failed=1, master_done=True)), FAILED, S.TERMINATING),
        Case(a_run(state, MASTER, tally=Tally(**crowd, done=1, retry=1, master_done=True)), RETRIED, S.TERMINATING),
        Case(a_run(state, tally=Tally(**crowd, retry=1)), RETRIED, state),
        Case(a_run(state, tally=Tally(running=1, retry=1)), JobsChanged(0, 1, True), state),
        Case(a_run(state, tally=Tally(**crowd, done=1)), LOOK, S.RUNNING),
        Case(a_run(state, tally=Tally(starting=1, submitted=1, done=1)), LOOK, S.PROVISIONING),
        Case(a_run(state, tally=Tally(submitted=1, done=1)), LOOK, S.SUBMITTED),
        Case(a_run(state, tally=Tally(done=2, gone=1)), LOOK, S.TERMINATING),
        Case(a_run(state, tally=Tally(done=1, retry=1)), LOOK, S.PENDING),
        Case(a_run(state, tally=Tally(gone=2), replicas=0), LOOK, S.PENDING),
    ]


ENDED = {RunReason.ALL_JOBS_DONE: S.DONE, RunReason.JOB_FAILED: S.FAILED, RunReason.STOPPED_BY_USER: S.TERMINATED}
STOPPED: dict[str, Any] = {"reason": RunReason.STOPPED_BY_USER}
DONE: dict[str, Any] = {"reason": RunReason.ALL_JOBS_DONE, "tally": Tally(done=1)}
NEVER = {(S.SUBMITTED, S.TERMINATING, RETRIED), (S.SUBMITTED, S.RUNNING, LOOK)}
"""A job is PROVISIONING before it runs or is done, and the run with it: `run.NEVER` says the same."""
CASES = [
    *(case for state in ACTIVE for case in derivations(state) if (state, case.to, case.event) not in NEVER),
    *(Case(a_run(state), StopAsked(), S.TERMINATING) for state in (S.PENDING, *ACTIVE)),
    *(Case(a_run(state), AbortAsked(), S.TERMINATING) for state in (S.PENDING, *ACTIVE)),
    *(Case(a_run(state), Broke(RunReason.SERVER_ERROR), S.TERMINATING) for state in (S.PENDING, *ACTIVE)),
    *(Case(a_run(state, QUEUE, trigger_at=0.0), TimeUp(), state) for state in ACTIVE),
    *(Case(a_run(state, SKIP, trigger_at=0.0), TimeUp(), state) for state in ACTIVE),
    *(Case(a_run(state), ReplicasWanted(2), state) for state in ACTIVE),
    Case(a_run(S.PENDING, resume_at=0.0), TimeUp(), S.SUBMITTED),
    Case(a_run(S.PENDING, SKIP, trigger_at=0.0), TimeUp(), S.SUBMITTED),
    Case(a_run(S.PENDING, replicas=0), ReplicasWanted(1), S.SUBMITTED),
    Case(a_run(S.PENDING, resume_at=9.0), ReplicasWanted(3), S.PENDING),
    Case(a_run(S.PENDING, QUEUE, resume_at=9.0), TriggerAsked(), S.PENDING),
    Case(a_run(S.PENDING, SKIP, resume_at=9.0), TriggerAsked(), S.PENDING),
    Case(a_run(S.PENDING, SKIP), TriggerAsked(), S.SUBMITTED),
    *(Case(a_run(state, QUEUE), TriggerAsked(), state) for state in (*ACTIVE, S.TERMINATING)),
    *(Case(a_run(state, SKIP), TriggerAsked(), state) for state in (*ACTIVE, S.TERMINATING)),
    *(Case(a_run(state, SKIP), PauseAsked(), state) for state in UNFINISHED),
    *(Case(a_run(state, PAUSED), ResumeAsked(), state) for state in UNFINISHED),
    *(Case(a_run(state, tally=WAITING), HoldAsked(), state) for state in (S.PENDING, *ACTIVE)),
    *(Case(a_run(state, HELD), ReleaseAsked(), state) for state in UNFINISHED),
    *(Case(a_run(state), Revised(MASTER, version=0), state) for state in (S.PENDING, *ACTIVE)),
    Case(a_run(S.TERMINATING, SKIP), Revised(SKIP, version=0), S.TERMINATING),
    Case(a_run(S.TERMINATING, SKIP, **DONE), StopAsked(), S.TERMINATING),
    Case(a_run(S.TERMINATING, SKIP, **DONE), AbortAsked(), S.TERMINATING),
    Case(a_run(S.TERMINATING, **STOPPED), AbortAsked(), S.TERMINATING),
    Case(a_run(S.TERMINATING, **STOPPED), Swept(), S.TERMINATING),
    Case(a_run(S.TERMINATING, SKIP, **DONE), LOOK, S.PENDING),
    *(Case(a_run(S.TERMINATING, reason=reason), LOOK, to) for reason, to in ENDED.items()),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.run.state}-{type(case.event).__name__}-{case.to}")
def test_the_transition(case: Case) -> None:
    """The rows of the contract's table, one situation each."""
    step = RUN.step(case.run, case.event, 1.0)
    assert step.row is not None
    assert step.record.state is case.to


def test_every_row_has_its_case() -> None:
    """A row that no situation reaches is a row nobody has thought through."""
    reached = {RUN.step(case.run, case.event, 1.0).row for case in CASES}
    assert [row.name for row in RUN.rows if row not in reached] == []
    assert RUN.shadowed() == []


def test_no_pair_is_refused() -> None:
    """Cancel is accepted at once in any state, and everything else that is late means nothing."""
    assert RUN.refused() == set()
    assert RUN.finished == FINISHED


def test_only_the_terminating_phase_assigns_a_finished_status() -> None:
    assert {row.source for row in RUN.rows if row.target in FINISHED} == {S.TERMINATING}
    for case in CASES:
        for state in FINISHED:
            assert RUN.step(a_run(state), case.event, 1.0).row is None


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        (Fate.FAILED, RunReason.JOB_FAILED),
        (Fate.EXHAUSTED, RunReason.RETRY_LIMIT_EXCEEDED),
        (Fate.LIMIT, RunReason.JOB_TERMINATED),
    ],
)
@pytest.mark.parametrize("state", ACTIVE)
def test_a_job_that_may_not_be_retried_ends_the_run(state: S, fate: Fate, reason: RunReason) -> None:
    """Rule 1, before everything else; the run keeps which job's end decided it."""
    event = JobsChanged(0, 0, False, fate=fate, reason=JobReason.SETUP_FAILED, exit_code=7)
    run, effects, _ = walk(RUN, a_run(state, tally=Tally(running=5)), event)
    assert (run.state, run.reason) == (S.TERMINATING, reason)
    assert (run.cause, run.exit_code) == (JobReason.SETUP_FAILED, 7)
    assert effects == [EndJobs(JobReason.TERMINATED_BY_SERVER)]


def test_the_master_decides_only_when_the_configuration_says_so() -> None:
    """Rule 2: with `all-done`, a master that is done leaves the workers alone."""
    tally = Tally(running=3, done=1, master_done=True)
    run, effects, _ = walk(RUN, a_run(S.RUNNING, MASTER, tally=tally), LOOK)
    assert (run.reason, effects) == (RunReason.ALL_JOBS_DONE, [EndJobs(JobReason.DONE_BY_RUNNER)])
    assert walk(RUN, a_run(S.RUNNING, tally=tally), LOOK)[0].state is S.RUNNING


def test_a_failed_replica_beside_an_active_one_is_tried_again_in_place() -> None:
    """The run's state is left to its other jobs; the replica goes on with the budget of the job that failed."""
    run, effects, _ = walk(RUN, a_run(S.RUNNING, tally=Tally(running=1, retry=1)), RETRIED)
    assert (run.state, effects) == (S.RUNNING, [EndReplica(1, Budget(2, 0.0)), Resubmit(in_place=True)])


def test_the_only_replica_is_ended_as_a_whole_before_the_run_waits() -> None:
    """Nodes that still run, or are done already, are of no use without the one that failed."""
    for event in (JobsChanged(0, 3, True, fate=Fate.RETRY), JobsChanged(0, 0, True, replica_done=1, fate=Fate.RETRY)):
        tally = Tally(running=event.replica_active, done=event.replica_done, retry=1)
        run, effects, _ = walk(RUN, a_run(S.RUNNING, tally=tally), event)
        assert (run.state, effects) == (S.RUNNING, [EndReplica(0, FIRST_TRY)])


def test_when_nothing_matches_it_is_unchanged() -> None:
    """Rule 9: replicas are wanted and none is there yet."""
    run = a_run(S.SUBMITTED, replicas=2, tally=Tally(gone=1))
    assert RUN.step(run, LOOK, 1.0).row is None


@pytest.mark.parametrize("reason", RunReason)
def test_how_the_run_ends_follows_from_its_reason(reason: RunReason) -> None:
    """And only once every submission has finished, earlier ones too."""
    run = a_run(S.TERMINATING, reason=reason, tally=Tally(stopped=1, unfinished=1))
    assert RUN.step(run, LOOK, 1.0).row is None
    run, _, _ = walk(RUN, a_run(S.TERMINATING, reason=reason, tally=Tally(stopped=1)), LOOK)
    assert run.state.value == SENTENCES[reason].ends.value


@pytest.mark.parametrize("reason", [RunReason.SERVER_ERROR, RunReason.GATEWAY_ERROR])
def test_what_the_server_broke_is_said(reason: RunReason) -> None:
    run, effects, _ = walk(RUN, a_run(S.RUNNING), Broke(reason, "the gateway has no certificate"))
    assert (run.reason, run.message) == (reason, "the gateway has no certificate")
    assert effects == [EndJobs(JobReason.TERMINATED_BY_SERVER)]


@pytest.mark.parametrize("state", [S.PENDING, *ACTIVE])
def test_an_abort_also_reaches_what_is_in_its_grace_already(state: S) -> None:
    """A replica was scaled down with an hour of grace: the abort does not wait for it."""
    run, effects, _ = walk(RUN, a_run(state), AbortAsked())
    assert run.reason is RunReason.ABORTED_BY_USER
    assert effects == [EndJobs(JobReason.ABORTED_BY_USER), CutGrace()]


def test_an_abort_after_a_stop_is_an_abort_and_after_a_failure_still_a_failure() -> None:
    run, effects, _ = walk(RUN, a_run(S.TERMINATING, **STOPPED), AbortAsked(), AbortAsked())
    assert (run.reason, effects) == (RunReason.ABORTED_BY_USER, [CutGrace()])
    run, effects, _ = walk(RUN, a_run(S.TERMINATING, reason=RunReason.JOB_FAILED), AbortAsked())
    assert (run.reason, effects) == (RunReason.JOB_FAILED, [CutGrace()])


def test_a_stop_never_softens_an_abort() -> None:
    run = a_run(S.TERMINATING, reason=RunReason.ABORTED_BY_USER)
    assert RUN.step(run, StopAsked(), 1.0).row is None


def test_the_backoff_is_fifteen_seconds_to_ten_minutes_with_a_tenth_of_jitter() -> None:
    """15 s, 30 s, 1, 2, 5, 10, 10 … minutes; the run's id is its dice."""
    delays = []
    run = a_run(S.RUNNING, tally=Tally(retry=1))
    for _ in range(8):
        run, _, _ = walk(RUN, run, RETRIED, now=1000.0)
        assert run.resume_at is not None
        assert deadline(run) == run.resume_at
        delays.append(run.resume_at - 1000.0)
        run, effects, _ = walk(RUN, run, TimeUp(), now=run.resume_at)
        assert (run.state, run.resume_at, effects) == (S.SUBMITTED, None, [Resubmit(), Scale()])
    for delay, plain in zip(delays, [*DELAYS_S, 600.0, 600.0], strict=True):
        assert 0.9 * plain <= delay <= 1.1 * plain


def test_runs_that_failed_together_do_not_come_back_together() -> None:
    waits = set()
    for n in range(50):
        run = Run(RunId(UUID(int=n * 7919)), PROJECT_ID, "r", Policy(), 0.0, S.RUNNING, tally=Tally(retry=1))
        waits.add(walk(RUN, run, RETRIED)[0].resume_at)
    assert len(waits) > 40


TAKEN = JobsChanged(
    1, 0, True, fate=Fate.RETRY, reason=JobReason.INTERRUPTED_BY_NO_CAPACITY, budget=Budget().charged(0.0)
)


def test_a_run_whose_machine_was_taken_is_back_at_once_and_the_second_time_in_a_row_waits() -> None:
    run = a_run(S.RUNNING, tally=Tally(retry=1))
    first, _, _ = walk(RUN, run, TAKEN, now=100.0)
    assert (first.state, first.resume_at, first.backoff_step) == (S.PENDING, 100.0, 0)
    again, _, _ = walk(RUN, run, replace(TAKEN, budget=TAKEN.budget.charged(0.0)), now=100.0)
    assert again.resume_at is not None and again.resume_at > 110
    failing, _, _ = walk(RUN, replace(run, backoff_step=1), TAKEN, now=100.0)
    assert failing.resume_at is not None and failing.resume_at > 110, "it failed a moment ago for another reason"


def test_of_several_nodes_the_one_that_was_interrupted_decides_for_all() -> None:
    """The last to end was only stopped, because another node lost its machine."""
    taken = replace(TAKEN, replica_active=1)
    ending, effects, _ = walk(RUN, a_run(S.RUNNING, tally=Tally(running=1, retry=1)), taken, now=100.0)
    assert [type(one) for one in effects] == [EndReplica]
    stopped = replace(TAKEN, reason=JobReason.TERMINATED_BY_SERVER)
    waiting, _, _ = walk(RUN, replace(ending, tally=Tally(retry=2)), stopped, now=101.0)
    assert waiting.resume_at == 101.0
    resumed, _, _ = walk(RUN, waiting, TimeUp(), now=101.0)
    assert (resumed.state, resumed.cause) == (S.SUBMITTED, None)


@pytest.mark.parametrize("ran_s", [599.0, 600.0])
def test_the_backoff_starts_anew_once_a_job_ran_for_ten_minutes(ran_s: float) -> None:
    """Also when the healthy one was retried in place, and the next one fails when nobody else is active."""
    healthy = ran_s >= 600
    event = JobsChanged(1, 0, True, fate=Fate.RETRY, ran_s=ran_s)
    waiting, _, _ = walk(RUN, a_run(S.RUNNING, tally=Tally(retry=1), backoff_step=4), event)
    assert waiting.backoff_step == (1 if healthy else 5)
    in_place, _, _ = walk(RUN, a_run(S.RUNNING, tally=Tally(running=1, retry=1), backoff_step=4), event)
    assert in_place.backoff_step == (0 if healthy else 4)


def test_the_owner_is_told_when_it_runs_and_when_it_ends_and_not_in_between() -> None:
    owned: dict[str, Any] = {"owner_id": UUID(int=5)}
    _, effects, _ = walk(RUN, a_run(S.PROVISIONING, tally=Tally(running=1), **owned), LOOK, LOOK)
    assert effects == [TellOwner()]
    _, effects, _ = walk(RUN, a_run(S.TERMINATING, reason=RunReason.JOB_FAILED, **owned), LOOK)
    assert effects == [TellOwner()]
    _, effects, _ = walk(RUN, a_run(S.RUNNING, tally=Tally(starting=1), **owned), LOOK)
    assert effects == []


def test_accepted_it_is_submitted_with_its_jobs_in_the_same_commit() -> None:
    life = Life(replicas=2, nodes=2)
    assert (life.run.state, life.states()) == (S.SUBMITTED, [J.SUBMITTED] * 4)


@pytest.mark.parametrize("policy", [{"replicas": 0, "service": True}, {"schedule": SKIP.schedule}])
def test_accepted_with_a_schedule_or_no_replicas_it_is_pending(policy: dict[str, Any]) -> None:
    life = Life(**policy)
    assert (life.run.state, life.jobs) == (S.PENDING, [])


def test_a_stop_carries_out_the_first_pass_at_once() -> None:
    """Not at the next tick of a loop: the very commit asks the runner to stop."""
    life = Life().starts()
    outcome = life.ask(StopAsked())
    assert [type(wish.effect) for wish in outcome.wishes] == [AskStop]
    assert (life.run.state, life.job().reason) == (S.TERMINATING, JobReason.TERMINATED_BY_USER)


def test_a_stop_of_what_has_not_begun_ends_in_the_same_commit() -> None:
    life = Life(replicas=3)
    life.ask(StopAsked())
    assert (life.run.state, set(life.states())) == (S.TERMINATED, {J.TERMINATED})


def test_the_states_follow_the_jobs_forth_and_back() -> None:
    """SUBMITTED, PROVISIONING and RUNNING become each other: here a second replica starts after the first failed."""
    life = Life(replicas=2, retry=ALWAYS).starts()
    seen = [life.run.state]
    for job in (life.job(0), life.job(1)):
        life.tell(job, Exited(1))
        seen.append(life.run.state)
    for event in (Placed(machine(3), (0,)), TaskAccepted(), RunnerAccepted()):
        life.tell(life.job(1), event)
        seen.append(life.run.state)
    assert seen == [S.RUNNING, S.RUNNING, S.SUBMITTED, S.PROVISIONING, S.PROVISIONING, S.RUNNING]


def test_nothing_of_a_job_is_a_wish_of_the_run() -> None:
    """Orders are carried out in the commit: none of them ever reaches the outbox."""
    life = Life(retry=ALWAYS, nodes=2).starts()
    life.tell(life.job(0, 1), Exited(1))
    life.ask(AbortAsked())
    assert {wish.kind for wish in life.wishes} == {"job"}
    assert all(not isinstance(one.event, Released) for one in life.sends)
