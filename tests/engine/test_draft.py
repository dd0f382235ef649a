"""A batch in memory: what one change leaves to the next."""

from uuid import UUID, uuid4

from stoker.core.errors import Broken
from stoker.core.family import bear, found, step
from stoker.core.ids import InstanceId, ProjectId, RunId
from stoker.core.job_facts import EndAsked, InstanceGone, Job, Placed, RunnerAccepted, TaskAccepted
from stoker.core.machine import Event, TimeUp
from stoker.core.policy import Disconnect, Policy
from stoker.core.reason import JobReason
from stoker.core.run_facts import Run, StopAsked
from stoker.engine.change import Change, of_job, of_run
from stoker.engine.draft import Loaded, draft

HOST = InstanceId(uuid4())


def running() -> tuple[Run, Job]:
    """A job that runs on a host; its agent would stop it by its own clock."""
    policy = Policy(disconnect=Disconnect(10.0, 20.0))
    run = found(RunId(uuid4()), ProjectId(UUID(int=1)), "run", policy, 0.0)
    family, _ = bear(run, 0.0)
    (id,) = family.jobs
    for event in (Placed(HOST, (0,), attempt=1), TaskAccepted(attempt=1), RunnerAccepted(attempt=1)):
        step(family, id, event, 0.0)
    return family.run, family.jobs[id]


def said(run: Run, job: Job, *events: Event) -> list[Change]:
    return [Change(facts=(of_job(job.id, run.id, event),)) for event in events]


def test_a_change_that_needs_an_instance_which_an_earlier_one_made_necessary_waits_for_the_next_batch() -> None:
    run, job = running()
    gone = InstanceGone(HOST, attempt=1)
    end, after, last = said(run, job, EndAsked(JobReason.TERMINATED_BY_USER, attempt=1), gone, TimeUp(attempt=1))
    result, answers = draft(Loaded(runs={run.id: run}, jobs=[job]), [end, after, last], 1.0)
    assert [answer.later for answer in answers] == [False, True, True], "nothing overtakes what waits"
    assert all(answer.error is None for answer in answers)
    assert result.families[run.id].jobs[job.id].state == "TERMINATING"


def test_a_change_that_finds_its_instance_unlocked_alone_is_a_bug_of_ours() -> None:
    run, job = running()
    end = said(run, job, EndAsked(JobReason.TERMINATED_BY_USER, attempt=1))
    ended, _ = draft(Loaded(runs={run.id: run}, jobs=[job]), end, 1.0)
    family = ended.families[run.id]
    found = Loaded(runs={run.id: family.run}, jobs=list(family.jobs.values()))
    _, (answer,) = draft(found, said(run, job, InstanceGone(HOST, attempt=1)), 2.0)
    assert isinstance(answer.error, Broken)
    assert not answer.later


def test_other_families_go_on_beside_one_that_waits() -> None:
    run, job = running()
    other, beside = running()
    changes = said(run, job, EndAsked(JobReason.TERMINATED_BY_USER, attempt=1), InstanceGone(HOST, attempt=1))
    loaded = Loaded(runs={run.id: run, other.id: other}, jobs=[job, beside])
    result, answers = draft(loaded, [*changes, Change(facts=(of_run(other.id, StopAsked()),))], 1.0)
    assert [answer.later for answer in answers] == [False, True, False]
    assert result.families[other.id].run.state == "TERMINATING"
