"""Runs with more jobs than one commit loads: orders reach a page, and sweeps the rest."""

from typing import Any

import pytest

from stoker.core.family import Family, bear, found, step
from stoker.core.ids import JobId
from stoker.core.job_facts import (
    FINISHED,
    CleanedUp,
    Cleanup,
    Exited,
    Job,
    NoCapacity,
    Placed,
    RunnerAccepted,
    TaskAccepted,
)
from stoker.core.job_facts import S as J
from stoker.core.machine import Event, TimeUp
from stoker.core.policy import Policy
from stoker.core.reason import JobReason, RunReason
from stoker.core.retry import Fate
from stoker.core.run_facts import AbortAsked, ReplicasWanted, Run, S, StopAsked, Sweep, Swept
from tests.core.living import ALWAYS, PROJECT_ID, RUN_ID, check_family, machine

GONE = (CleanedUp(Cleanup.STOP), CleanedUp(Cleanup.REMOVE))


class Shelf:
    """A run with more jobs than a commit loads: pages as the store loads them."""

    PAGE = 256

    def __init__(self, **policy: Any) -> None:
        family, _ = bear(found(RUN_ID, PROJECT_ID, "big", Policy(**policy), 0.0), 0.0)
        self.run: Run = family.run
        self.jobs: dict[JobId, Job] = family.jobs
        self.sweeps = 0
        self.cuts: list[bool] = []
        self.now = 0.0

    def page(self) -> dict[JobId, Job]:
        meant = [
            job
            for job in self.jobs.values()
            if (job.latest and job.fate is Fate.RETRY)
            or (job.state not in FINISHED and (job.state is not J.TERMINATING or self.in_grace(job)))
        ]
        meant.sort(key=lambda job: (job.fate is not Fate.RETRY, job.state, job.id))
        return {job.id: job for job in meant[: self.PAGE]}

    @staticmethod
    def in_grace(job: Job) -> bool:
        return job.cleanup is Cleanup.STOP and job.reason is not JobReason.ABORTED_BY_USER

    def step(self, target: JobId | None, event: Event, loaded: dict[JobId, Job]) -> None:
        family = Family(self.run, dict(loaded), partial=len(loaded) == self.PAGE)
        outcome = step(family, target, event, self.now)
        self.run = family.run
        self.jobs |= family.jobs
        sweeps = [(wish.record, wish.effect) for wish in outcome.wishes if isinstance(wish.effect, Sweep)]
        assert all(run.phase == self.run.phase for run, _ in sweeps), "nobody would find this wish current"
        self.sweeps += len(sweeps)
        self.cuts += [sweep.cut for _, sweep in sweeps]

    def tell(self, job: Job, event: Event) -> None:
        self.step(job.id, event, {job.id: self.jobs[job.id]})

    def ask(self, event: Event) -> None:
        self.step(None, event, self.page())

    def swept(self) -> int:
        """Sweeps to the end; how often."""
        rounds = 0
        while self.sweeps:
            self.sweeps -= 1
            rounds += 1
            assert rounds < 40, "it sweeps without end"
            self.ask(Swept(cut=self.cuts.pop(0)))
        check_family(Family(self.run, self.jobs))
        return rounds


def running_shelf(**policy: Any) -> Shelf:
    shelf = Shelf(replicas=2_000, **policy)
    for job in list(shelf.jobs.values()):
        for event in (Placed(machine(job.replica + 1), (0,)), TaskAccepted(), RunnerAccepted()):
            shelf.tell(job, event)
    return shelf


@pytest.mark.parametrize("word", [StopAsked(), AbortAsked()])
def test_a_big_run_is_ended_page_by_page(word: Event) -> None:
    """2,000 replicas, 256 a commit: the first page at once, the rest by sweeps, and then no sweep more."""
    shelf = running_shelf(stop_duration_s=3600)
    shelf.ask(word)
    assert (shelf.run.state, shelf.run.tally.stopped, shelf.sweeps) == (S.TERMINATING, 256, 1)
    assert shelf.swept() <= 8
    assert {job.state for job in shelf.jobs.values()} == {J.TERMINATING}
    for job in list(shelf.jobs.values()):
        for event in GONE:
            shelf.tell(job, event)
    assert shelf.run.state is S.TERMINATED


def test_an_abort_cuts_the_grace_of_every_page() -> None:
    shelf = running_shelf(stop_duration_s=3600)
    shelf.ask(StopAsked())
    shelf.swept()
    shelf.ask(AbortAsked())
    shelf.swept()
    assert {(job.cleanup, job.reason) for job in shelf.jobs.values()} == {(Cleanup.REMOVE, JobReason.ABORTED_BY_USER)}


@pytest.mark.parametrize("swept_first", [True, False])
def test_an_abort_cuts_the_grace_of_every_page_of_a_run_that_failed(swept_first: bool) -> None:
    """One job failed and the others are being stopped, with an hour of grace that the user does not want to wait."""
    shelf = running_shelf(stop_duration_s=3600)
    shelf.tell(next(iter(shelf.jobs.values())), Exited(1))
    if swept_first:
        shelf.swept()
    shelf.ask(AbortAsked())
    shelf.swept()
    assert shelf.run.reason is RunReason.JOB_FAILED
    assert {job.cleanup for job in shelf.jobs.values()} == {Cleanup.REMOVE}


def test_one_failure_ends_a_big_run_of_which_only_the_failed_replica_was_loaded() -> None:
    shelf = running_shelf()
    shelf.tell(next(iter(shelf.jobs.values())), Exited(1))
    assert (shelf.run.reason, shelf.run.tally.running, shelf.sweeps) == (RunReason.JOB_FAILED, 1_999, 1)
    shelf.swept()
    assert shelf.run.tally.active == 0


def test_a_big_replica_that_waits_is_resubmitted_as_a_whole_and_nothing_twice() -> None:
    """600 nodes: no capacity for one ends them all, and after the backoff each gets one new submission."""
    shelf = Shelf(nodes=600, retry=ALWAYS)
    first = next(iter(shelf.jobs))
    shelf.step(first, NoCapacity("full"), shelf.jobs)
    assert (shelf.run.state, shelf.run.tally.retry) == (S.PENDING, 600)
    assert shelf.run.resume_at is not None
    shelf.now = shelf.run.resume_at
    shelf.step(None, TimeUp(), shelf.jobs)
    assert (shelf.run.state, shelf.sweeps) == (S.SUBMITTED, 0)
    assert (shelf.run.tally.submitted, shelf.run.tally.retry, len(shelf.jobs)) == (600, 0, 1_200)


def test_scaling_makes_nothing_when_only_a_part_is_loaded() -> None:
    """Replicas that are not on this page are not missing."""
    shelf = running_shelf()
    family = Family(shelf.run, shelf.page(), partial=True)
    assert not family.complete
    step(family, None, ReplicasWanted(2_100), 1.0)
    assert len(family.jobs) == 256
    whole = Family(shelf.run, dict(shelf.jobs))
    assert whole.complete
    step(whole, None, ReplicasWanted(2_100), 1.0)
    assert len(whole.jobs) == 2_100


def test_time_is_up_for_a_page_only() -> None:
    """A deadline that is not its own finds nothing to do."""
    shelf = Shelf(replicas=300)
    before = shelf.run
    shelf.ask(TimeUp())
    assert (shelf.run, shelf.sweeps) == (before, 0)
