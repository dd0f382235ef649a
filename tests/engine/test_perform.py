"""What performers make of an agent's answer, where the simulation has no such agent."""

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from stoker.core.errors import Conflict, StokerError, Unavailable, UserError
from stoker.core.ids import InstanceId, JobId
from stoker.core.job_facts import (
    AgentFailed,
    CleanedUp,
    Cleanup,
    Exited,
    RemoveTask,
    RunnerAccepted,
    StartTask,
    SubmitJob,
    TaskAccepted,
)
from stoker.core.limits import LONGEST_GRACE_S
from stoker.core.reason import JobReason
from stoker.core.shim_task import S
from stoker.engine.change import Change
from stoker.engine.perform import JobPerformers
from stoker.store.outbox import Errand
from stoker.wire.runner import Result
from stoker.wire.shim import TaskInfo, Terminate

HERE = InstanceId(uuid4())
ERRAND = Errand(uuid4(), 7, "job", uuid4(), uuid4(), 1, "PROVISIONING", "StartTask", "{}", 0)


class Agent:
    """A shim and a runner that answer everything with one error."""

    def __init__(self, error: StokerError) -> None:
        self.error = error

    async def refuse(self, *_: object) -> Any:
        raise self.error

    submit = run = task = refuse

    async def shim(self, instance_id: InstanceId) -> "Agent":
        return self

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> "Agent":
        return self


class Orders:
    async def place(self, job_id: JobId) -> InstanceId:
        return HERE

    async def task(self, errand: Errand, job: Any) -> Any: ...

    async def job(self, errand: Errand) -> Any:
        return SimpleNamespace(max_duration_s=60.0)


async def performed(error: StokerError, effect: StartTask | SubmitJob) -> Change:
    performers = JobPerformers(Agent(error), Orders(), None, None, None)  # type: ignore[arg-type]
    performers._remember(ERRAND.target, "socket")
    if isinstance(effect, StartTask):
        return await performers.start_task(ERRAND, effect)
    return await performers.submit_job(ERRAND, effect)


@pytest.mark.parametrize("effect", [StartTask(), SubmitJob()], ids=["task", "job"])
async def test_what_an_agent_will_never_do_fails_the_job_in_its_words(effect: StartTask | SubmitJob) -> None:
    """Asked again and again, it would fail ten minutes later, for a reason that is not the true one."""
    for error in (Conflict("it serves another project", code="one_project"), UserError("no such runtime")):
        (fact,) = (await performed(error, effect)).facts
        assert fact.event == AgentFailed(JobReason.EXECUTOR_ERROR, error.sentence, attempt=1)


@pytest.mark.parametrize("effect", [StartTask(), SubmitJob()], ids=["task", "job"])
async def test_an_order_that_was_overtaken_has_nothing_to_say(effect: StartTask | SubmitJob) -> None:
    assert await performed(Conflict("later", code="fenced"), effect) == Change()


@pytest.mark.parametrize("effect", [StartTask(), SubmitJob()], ids=["task", "job"])
@pytest.mark.parametrize("error", [Unavailable("away"), Conflict("stopped before", code="stopped")], ids=str)
async def test_what_may_pass_is_tried_again(effect: StartTask | SubmitJob, error: StokerError) -> None:
    with pytest.raises(type(error)):
        await performed(error, effect)


class Ready(Agent):
    """A shim whose runner is there at once; the runner answers as it is told to."""

    def __init__(self, error: StokerError | None) -> None:
        super().__init__(error or Unavailable("never said"))
        self.takes = error is None

    async def submit(self, *_: object) -> Any:
        return TaskInfo(id=ERRAND.target, fence=7, state=S.RUNNING, socket="socket")

    async def run(self, *_: object) -> Any:
        if not self.takes:
            raise self.error


async def test_a_runner_that_is_there_at_once_is_given_its_job_in_the_same_errand() -> None:
    performers = JobPerformers(Ready(None), Orders(), None, None, None)  # type: ignore[arg-type]
    change = await performers.start_task(ERRAND, StartTask())
    assert [fact.event for fact in change.facts] == [TaskAccepted(attempt=1), RunnerAccepted(60.0, attempt=1)]


class Along(Ready):
    """A shim whose runner has taken the job that came with its task's order."""

    async def submit(self, *_: object) -> Any:
        return TaskInfo(id=ERRAND.target, fence=7, state=S.RUNNING, socket="socket", job_taken=True)


async def test_a_job_that_was_taken_with_its_task_is_not_sent_again() -> None:
    performers = JobPerformers(Along(UserError("asked")), Orders(), None, None, None)  # type: ignore[arg-type]
    change = await performers.start_task(ERRAND, StartTask())
    assert [fact.event for fact in change.facts] == [TaskAccepted(attempt=1), RunnerAccepted(60.0, attempt=1)]


async def test_a_runner_that_does_not_take_its_job_at_once_is_asked_by_the_next_wish() -> None:
    """The task was taken all the same, and what the runner will never do is said by whoever asks it next."""
    for error in (Unavailable("away"), UserError("too long")):
        performers = JobPerformers(Ready(error), Orders(), None, None, None)  # type: ignore[arg-type]
        change = await performers.start_task(ERRAND, StartTask())
        assert [fact.event for fact in change.facts] == [TaskAccepted(attempt=1)]


class Ending(Agent):
    """A shim whose task has ended; it says in which order things were done to it."""

    def __init__(self) -> None:
        super().__init__(Unavailable("never said"))
        self.done: list[Any] = []
        self.graces_s: list[float] = []

    async def terminate(self, id: object, order: Terminate, wait_s: float) -> TaskInfo:
        self.graces_s.append(order.grace_s)
        result = Result(exit_code=137, signal=9, ended_at=0.0, log_end=0)
        return TaskInfo(id=ERRAND.target, fence=7, state=S.TERMINATED, result=result)

    async def remove(self, *_: object) -> None:
        self.done.append("removed")

    async def collect(self, *_: object) -> None:
        self.done.append("logs")

    async def tell(self, change: Change) -> None:
        self.done += [fact.event for fact in change.facts]


async def test_how_a_program_ended_is_committed_before_its_task_is_forgotten() -> None:
    """A crash of the server in between must not lose it; where it is known, nothing is said twice."""
    exited = Exited(137, 9, attempt=1)
    for known, order in ((False, ["logs", exited, "removed"]), (True, ["logs", "removed"])):
        shim = Ending()
        performers = JobPerformers(shim, Orders(), shim, shim.tell, float)  # type: ignore[arg-type]
        change = await performers.remove_task(ERRAND, RemoveTask(known=known))
        assert [fact.event for fact in change.facts] == [CleanedUp(Cleanup.REMOVE, attempt=1)]
        assert shim.done == order


async def test_whoever_may_have_begun_unheard_is_removed_with_its_grace() -> None:
    """Of a program that runs nobody has heard when the link was cut while it started: it is asked, and not killed."""
    shim = Ending()
    performers = JobPerformers(shim, Orders(), shim, shim.tell, float)  # type: ignore[arg-type]
    for grace_s in (120.0, 0.0, 1e9):
        await performers.remove_task(ERRAND, RemoveTask(grace_s=grace_s))
    assert shim.graces_s == [120.0, 0.0, LONGEST_GRACE_S]
