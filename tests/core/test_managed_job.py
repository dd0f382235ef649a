"""Managed jobs as whole aggregates: order, slots, and what one event does to all tasks."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core import managed_job as mj
from stoker.core import managed_task as mt
from stoker.core.commitment import Outcome
from stoker.core.errors import Broken, UserError
from stoker.core.ids import ManagedJobId, ProjectId
from stoker.core.machine import Event, TimeUp
from stoker.core.managed_job import Aggregate, S, Submitted, TaskWanted, create, schedule, step
from stoker.core.managed_task import CancelAsked, CleanedUp, NoCapacity, Preempted, ProgramEnded, RunStarted, Scheduled

PROJECT = ProjectId(UUID(int=99))
PIPELINE = (TaskWanted("prepare"), TaskWanted("train"), TaskWanted("report"))
BRANCHES = (TaskWanted("left", ("prepare",)), TaskWanted("right", ("prepare",)))
DIAMOND = (TaskWanted("prepare"), *BRANCHES, TaskWanted("join", ("left", "right")))


def job_id(number: int) -> ManagedJobId:
    return ManagedJobId(UUID(int=number))


class Story:
    """One job and the clock beside it; `tell` addresses a task by name, or the job."""

    def __init__(self, *wanted: TaskWanted, submitted: bool = True) -> None:
        self.now = 0.0
        self.all = create(job_id(1), PROJECT, "nightly", wanted, 0.0)
        self.look(Outcome())
        if submitted:
            self.tell(Submitted())

    def tell(self, event: Event, name: str = "", *, after_s: float = 1.0) -> None:
        self.now += after_s
        self.all, outcome = step(self.all, self.task(name).id if name else self.all.job.id, event, self.now)
        self.look(outcome)

    def look(self, outcome: Outcome) -> None:
        self.state, self.statuses = self.all.job.state, " ".join(task.state for task in self.all.tasks)
        self.moves = [f"{move.kind}: {move.before.state} > {move.after.state}" for move in outcome.moved]
        self.wishes = [(wish.record.name, wish.effect) for wish in outcome.wishes]

    def task(self, name: str) -> mt.ManagedTask:
        return next(task for task in self.all.tasks if task.name == name)

    def run(self, name: str) -> None:
        self.tell(RunStarted(attempt=self.task(name).attempt), name)

    def end(self, name: str, exit_code: int = 0) -> None:
        self.tell(ProgramEnded(exit_code, attempt=self.task(name).attempt), name)


def forked(*running: str) -> Story:
    """A diamond whose two branches are launched, and of which these run."""
    story = Story(*DIAMOND)
    story.tell(Scheduled())
    story.end("prepare")
    story.tell(Scheduled())
    for name in running:
        story.run(name)
    return story


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """What a job can never hear from its own tasks; hearing it would be a bug of ours."""
    never = {
        "INACTIVE": "LaunchesOut TasksWait RunsRemain BackoffRemains",
        "WAITING": "LaunchesOut TasksWait RunsRemain BackoffRemains",
        "LAUNCHING": "TasksWait",
        "ALIVE": "LaunchesOut",
        "ALIVE_BACKOFF": "LaunchesOut RunsRemain",
        "ALIVE_WAITING": "LaunchesOut",
        "DONE": "LaunchesOut TasksWait RunsRemain BackoffRemains AllEnded",
    }
    assert mj.MANAGED_JOB.refused() == {(state, event) for state, events in never.items() for event in events.split()}
    assert mj.MANAGED_JOB.shadowed() == []


BAD = {
    "no tasks": (),
    "same name": (TaskWanted("a"), TaskWanted("a")),
    "no task of this job": (TaskWanted("a", ("b",)),),
    "depends on itself": (TaskWanted("a", ("a",)),),
    "in a circle": (TaskWanted("a", ("c",)), TaskWanted("b", ("a",)), TaskWanted("c", ("b",))),
}


@pytest.mark.parametrize("words", BAD)
def test_a_graph_that_could_never_end_is_refused_at_creation(words: str) -> None:
    """A typing error in a job's file is told at once, not by a job that waits for ever."""
    with pytest.raises(UserError, match=words):
        create(job_id(1), PROJECT, "nightly", BAD[words], 0.0)


def test_a_list_without_dependencies_is_a_pipeline_task_after_task() -> None:
    """prepare, train, report: each queues for a slot of its own, the job is DONE after the last."""
    story = Story(*PIPELINE)
    for name, queue in (("prepare", S.WAITING), ("train", S.ALIVE_WAITING), ("report", S.ALIVE_WAITING)):
        assert story.state is queue
        story.tell(Scheduled())
        assert (story.state, story.wishes) == (S.LAUNCHING, [(name, mt.LaunchRun(1))])
        story.run(name)
        assert story.state is S.ALIVE
        story.end(name)
    assert (story.state, mj.shown_status(story.all)) == (S.DONE, mt.S.SUCCEEDED)


def test_when_the_job_gets_its_slot_all_ready_tasks_are_launched() -> None:
    """Both branches of a diamond start together; the join waits for the later one."""
    story = forked()
    assert story.wishes == [("left", mt.LaunchRun(1)), ("right", mt.LaunchRun(1))]
    story.run("left")
    story.run("right")
    assert (story.state, story.all.job.live_runs) == (S.ALIVE, 2)
    story.end("left")
    assert (story.state, story.statuses) == (S.ALIVE, "SUCCEEDED SUCCEEDED RUNNING PENDING")
    story.end("right")
    assert (story.state, story.all.job.live_runs) == (S.ALIVE_WAITING, 0)


def test_what_becomes_ready_while_the_job_holds_its_slot_is_launched_under_it() -> None:
    """Left is preempted while right still looks for a machine that takes twenty minutes: it does not wait for it."""
    story = Story(TaskWanted("left"), TaskWanted("right", ("start",)), TaskWanted("start", has_commands=False))
    story.tell(Scheduled())
    story.run("left")
    story.tell(Preempted(attempt=1), "left")
    assert (story.state, story.wishes) == (S.LAUNCHING, [("left", mt.LaunchRun(2))])


def test_a_run_that_was_over_before_anybody_looked_is_still_told_link_by_link() -> None:
    """/bin/true: the first news of the run is its end. The next task queues for its own slot all the same."""
    story = Story(*PIPELINE)
    story.tell(Scheduled())
    story.end("prepare")
    assert story.statuses == "SUCCEEDED PENDING PENDING"
    assert story.moves == [
        "managed_task: STARTING > RUNNING",
        "managed_job: LAUNCHING > ALIVE",
        "managed_task: RUNNING > SUCCEEDED",
        "managed_job: ALIVE > ALIVE_WAITING",
    ]


def test_no_capacity_backs_off_without_holding_any_slot() -> None:
    """LAUNCHING, ALIVE_BACKOFF, ALIVE_WAITING, LAUNCHING: the way of a job for which there is no machine."""
    story = Story(*PIPELINE)
    story.tell(Scheduled())
    story.tell(NoCapacity(attempt=1), "prepare")
    assert (story.state, mj.deadline(story.all.job)) == (S.ALIVE_BACKOFF, story.now + 15)
    assert not mj.holds_alive(story.all.job)
    story.tell(TimeUp(), after_s=15)
    assert (story.state, mj.deadline(story.all.job)) == (S.ALIVE_WAITING, None)
    story.tell(Scheduled())
    assert (story.state, story.wishes) == (S.LAUNCHING, [("prepare", mt.LaunchRun(2))])


def test_a_recovery_queues_like_a_first_launch() -> None:
    """Preempted: the job gives its alive slot back with its machine and waits by the same rule as all."""
    story = Story(*PIPELINE)
    story.tell(Scheduled())
    story.run("prepare")
    story.tell(Preempted(attempt=1), "prepare")
    assert (story.state, story.statuses) == (S.ALIVE_WAITING, "RECOVERING PENDING PENDING")
    assert not mj.holds_alive(story.all.job)


def test_a_branch_that_backs_off_does_not_hide_one_that_runs() -> None:
    """There is a CPU for left and no GPU for right: the job is alive, and comes back for right in time."""
    story = forked("left")
    story.tell(NoCapacity(attempt=1), "right")
    assert (story.state, mj.deadline(story.all.job)) == (S.ALIVE, story.now + 15)
    story.tell(TimeUp(), after_s=15)
    assert story.state is S.ALIVE_WAITING
    assert mj.holds_alive(story.all.job), "left still has its machine"
    story.tell(Scheduled())
    story.tell(NoCapacity(attempt=2), "right")
    story.end("left")
    assert (story.state, story.all.job.live_runs) == (S.ALIVE_BACKOFF, 0)


def test_a_failed_task_never_starts_those_depending_on_it_and_leaves_the_others_alone() -> None:
    """Left fails: join is cancelled with it, right runs to its end, then the job is DONE and shows the failure."""
    story = forked("left", "right")
    story.end("left", 1)
    assert (story.state, story.statuses) == (S.ALIVE, "SUCCEEDED FAILED RUNNING CANCELLED")
    assert story.task("join").message == "task left did not succeed"
    story.end("right")
    assert (story.state, mj.shown_status(story.all)) == (S.DONE, mt.S.FAILED)
    pipeline = Story(*PIPELINE)
    pipeline.tell(Scheduled())
    pipeline.tell(mt.Impossible(mt.Lack.PRECHECKS, attempt=1), "prepare")
    assert (pipeline.state, pipeline.statuses) == (S.DONE, "FAILED_PRECHECKS CANCELLED CANCELLED")


def test_the_job_shows_the_first_task_in_order_that_has_not_succeeded() -> None:
    """In the order of dependencies, also where the file lists them otherwise."""
    story = Story(TaskWanted("last", ("first",)), TaskWanted("first"))
    story.tell(Scheduled())
    story.run("first")
    assert mj.shown_status(story.all) is mt.S.RUNNING
    story.end("first")
    assert mj.shown_status(story.all) is mt.S.PENDING


def test_tasks_with_nothing_to_run_need_no_slot() -> None:
    """A job of markers alone is done when it is submitted; but not before."""
    story = Story(TaskWanted("a", has_commands=False), TaskWanted("b", has_commands=False), submitted=False)
    assert story.statuses == "PENDING PENDING"
    story.tell(Submitted())
    assert (story.state, story.statuses, story.wishes) == (S.DONE, "SUCCEEDED SUCCEEDED", [])
    mixed = Story(TaskWanted("a", has_commands=False), TaskWanted("b"))
    assert (mixed.state, mixed.statuses) == (S.WAITING, "SUCCEEDED PENDING")


@pytest.mark.parametrize("submitted", [False, True])
def test_cancel_before_the_first_launch_ends_it_at_once(submitted: bool) -> None:
    story = Story(*PIPELINE, submitted=submitted)
    story.tell(CancelAsked())
    assert (story.state, story.statuses, story.wishes) == (S.DONE, "CANCELLED CANCELLED CANCELLED", [])
    story.tell(CancelAsked())
    assert story.moves == []


def test_cancel_stops_what_is_out_and_holds_the_alive_slot_until_machines_are_cleaned_up() -> None:
    story = forked("left")
    story.tell(CancelAsked())
    assert story.wishes == [("left", mt.StopRun(1)), ("right", mt.StopRun(1))]
    assert (story.state, story.statuses) == (S.ALIVE, "SUCCEEDED CANCELLING CANCELLING CANCELLED")
    story.tell(CleanedUp(attempt=1), "right")
    assert mj.holds_alive(story.all.job)
    story.end("left")
    assert (story.state, story.statuses) == (S.DONE, "SUCCEEDED SUCCEEDED CANCELLED CANCELLED")
    waits = forked("left", "right")
    waits.tell(Preempted(attempt=1), "right")
    waits.tell(CancelAsked())
    assert (waits.state, waits.statuses) == (S.ALIVE, "SUCCEEDED CANCELLING CANCELLED CANCELLED")


def test_a_broken_task_keeps_the_job_alive_until_its_run_is_gone() -> None:
    """FAILED_CONTROLLER is an end, but its machine still costs money: the slot is not given away before."""
    story = Story(*PIPELINE)
    story.tell(Scheduled())
    story.run("prepare")
    story.tell(mt.ControllerBroke("unreadable"), "prepare")
    assert (story.state, story.wishes) == (S.ALIVE, [("prepare", mt.StopRun(1))])
    story.tell(CleanedUp(attempt=1), "prepare")
    assert (story.state, story.statuses) == (S.DONE, "FAILED_CONTROLLER CANCELLED CANCELLED")
    story.tell(mt.ControllerBroke("late"), "train")
    assert (story.state, story.task("train").controller_error) == (S.DONE, "late")


def test_a_broken_task_that_waited_leaves_the_job_to_the_others() -> None:
    """Right breaks in the queue while left backs off: nothing is ready, so the job waits for left."""
    story = forked("right")
    story.tell(NoCapacity(attempt=1), "left")
    story.tell(Preempted(attempt=1), "right")
    story.tell(mt.ControllerBroke("unreadable"), "right")
    assert (story.state, mj.deadline(story.all.job)) == (S.ALIVE_BACKOFF, story.task("left").resume_at)


def test_a_slot_given_too_late_is_not_taken() -> None:
    """The plan was made, the user cancelled, then the plan was committed."""
    story = Story(*PIPELINE)
    story.tell(CancelAsked())
    story.tell(Scheduled())
    assert (story.state, story.moves) == (S.DONE, [])


@pytest.mark.parametrize(("event", "name"), [(Scheduled(), "prepare"), (mj.AllEnded(), ""), (RunStarted(), "prepare")])
def test_what_only_the_job_may_say_is_not_taken_from_outside(event: Event, name: str) -> None:
    """A task that is scheduled without its job would hold no slot; news without attempt could be of any run."""
    with pytest.raises(Broken):
        Story(*PIPELINE).tell(event, name)
    with pytest.raises(Broken, match="has no task"):
        step(Story(*PIPELINE).all, UUID(int=12345), CancelAsked(), 1.0)


def waiting(number: int, priority: int = 0, live_runs: int = 0) -> mj.ManagedJob:
    state = S.ALIVE_WAITING if live_runs else S.WAITING
    return mj.ManagedJob(job_id(number), PROJECT, "job", priority, state, live_runs=live_runs)


def test_highest_priority_first_lowest_id_on_a_tie() -> None:
    jobs = [waiting(3), waiting(2), waiting(4, priority=5), replace(waiting(1), state=S.ALIVE_WAITING)]
    assert schedule(jobs, 0, 0, 3, 9) == (job_id(4), job_id(1), job_id(2))


def test_never_over_the_limits() -> None:
    jobs = [waiting(number) for number in range(1, 9)]
    assert len(schedule(jobs, 2, 2, 4, 9)) == 2
    assert len(schedule(jobs, 0, 2, 8, 5)) == 3
    assert schedule(jobs, 5, 0, 4, 9) == ()
    assert schedule([replace(jobs[0], state=S.ALIVE_BACKOFF)], 0, 0, 9, 9) == ()


def test_a_job_that_holds_its_alive_slot_needs_no_second_one() -> None:
    """All alive slots are taken; a branch of a living job still recovers, also past a more important newcomer."""
    assert schedule([waiting(1, priority=9), waiting(2, live_runs=1)], 0, 4, 2, 4) == (job_id(2),)


GRAPHS = (
    PIPELINE,
    DIAMOND,
    (TaskWanted("a", max_restarts_on_errors=1), TaskWanted("b", recover_on_exit_codes=frozenset({42}))),
    (TaskWanted("root", has_commands=False), TaskWanted("x", ("root",)), TaskWanted("y", ("root",))),
)
NEWS = (
    *(RunStarted(),) * 4, *(ProgramEnded(0),) * 2, ProgramEnded(42), ProgramEnded(1, setup_failed=True), NoCapacity(),
    Preempted(), mt.MachineLost(), ProgramEnded(1, machine_gone=True), mt.Impossible(), CleanedUp(),
)  # fmt: skip


def some_event(data: st.DataObject, task: mt.ManagedTask) -> Event:
    """Of this run or of the last one; now and then somebody cancels or something of ours breaks."""
    if data.draw(st.integers(0, 9)) == 0:
        return data.draw(st.sampled_from([CancelAsked(), mt.ControllerBroke("bug")]))
    news = data.draw(st.sampled_from(NEWS if task.state is not mt.S.RUNNING else NEWS[4:-2]))
    attempt = data.draw(st.sampled_from([task.attempt] * 4 + [task.attempt - 1]))
    told: Event = replace(news, attempt=max(1, attempt), jitter=data.draw(st.floats(0, 1, exclude_max=True)))
    return told


def check(before: Aggregate, after: Aggregate, outcome: Outcome) -> None:
    job = after.job
    assert job.live_runs == sum(task.launched for task in after.tasks)
    assert mj.holds_alive(job) or job.state not in (S.LAUNCHING, S.ALIVE)
    assert not mj.holds_alive(job) or job.state in (S.LAUNCHING, S.ALIVE, S.ALIVE_WAITING)
    assert mj.deadline(job) is not None or job.state is not S.ALIVE_BACKOFF
    assert (job.state is S.DONE) == (not job.live_runs and all(task.state in mt.ENDED for task in after.tasks))
    for old, new in zip(before.tasks, after.tasks, strict=True):
        assert old.state not in mt.ENDED or old.state is new.state
        left = [move for move in outcome.moved if move.before.id == new.id and move.before.state is mt.S.RUNNING]
        assert new.recovery_count - old.recovery_count == sum(move.after.state is mt.S.RECOVERING for move in left)
        assert not new.launched or all(after.tasks[index].state is mt.S.SUCCEEDED for index in new.depends_on)
    records: list[mj.ManagedJob | mt.ManagedTask] = [job, *after.tasks]
    were = before.job.version + sum(task.version for task in before.tasks)
    assert sum(record.version for record in records) == were + len(outcome.moved)
    assert job.state is S.DONE or before.job.state is not S.DONE


class Cluster:
    """Some jobs, two launch slots, three alive slots; every step is checked."""

    def __init__(self, data: st.DataObject, graphs: list[tuple[TaskWanted, ...]]) -> None:
        self.jobs, self.now = {}, 0.0
        for number, wanted in enumerate(graphs, start=1):
            priority = data.draw(st.integers(0, 2))
            self.jobs[job_id(number)] = create(job_id(number), PROJECT, "job", wanted, 0.0, priority)
            self.tell(job_id(number), job_id(number), Submitted())

    def tell(self, id: ManagedJobId, target: UUID, event: Event) -> None:
        before = self.jobs[id]
        self.jobs[id], outcome = step(before, target, event, self.now)
        check(before, self.jobs[id], outcome)
        assert self.counts()[0] <= 2
        assert self.counts()[1] <= 3

    def counts(self) -> tuple[int, int]:
        jobs = [whole.job for whole in self.jobs.values()]
        return sum(job.state is S.LAUNCHING for job in jobs), sum(map(mj.holds_alive, jobs))

    def schedule(self) -> None:
        for id in schedule([whole.job for whole in self.jobs.values()], *self.counts(), 2, 3):
            self.tell(id, id, Scheduled())

    def settle(self) -> None:
        """Faults stop: runs start and succeed, wishes to stop are followed, slots are given as they come."""
        for _ in range(30):
            self.now += 700
            self.schedule()
            for id in self.jobs:
                self.tell(id, id, TimeUp())
                for task in self.jobs[id].tasks:
                    stopping = task.state in (mt.S.CANCELLING, mt.S.FAILED_CONTROLLER)
                    self.tell(id, task.id, (CleanedUp if stopping else ProgramEnded)(attempt=task.attempt))
        assert {whole.job.state for whole in self.jobs.values()} == {S.DONE}
        assert self.counts() == (0, 0)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.sampled_from(GRAPHS), min_size=1, max_size=5))
def test_slots_stay_within_limits_and_outcomes_stand_whatever_happens(
    data: st.DataObject, graphs: list[tuple[TaskWanted, ...]]
) -> None:
    """Messages in any order, repeated, of dead runs, at any time; then everything settles."""
    cluster = Cluster(data, graphs)
    for _ in range(data.draw(st.integers(1, 60))):
        cluster.now += data.draw(st.sampled_from([0.0, 1.0, 20.0, 700.0]))
        cluster.schedule()
        id = data.draw(st.sampled_from(sorted(cluster.jobs)))
        task = data.draw(st.sampled_from(cluster.jobs[id].tasks))
        cluster.tell(id, task.id, some_event(data, task))
        cluster.tell(id, id, data.draw(st.sampled_from([*(TimeUp(),) * 19, CancelAsked()])))
    cluster.settle()
