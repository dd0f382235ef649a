"""What people see of a start that takes long: how far its image has come, or for what else its host waits."""

from uuid import UUID

from stoker.core.shim_task import S
from stoker.engine.pulls import Pulls
from stoker.wire.shim import TaskInfo

RUN, JOB = UUID(int=1), UUID(int=2)


def said(**more: object) -> str:
    pulls = Pulls()
    pulls.heard(RUN, TaskInfo.model_validate({"id": JOB, "fence": 1} | more))
    assert pulls.of_job(JOB) == pulls.of_run(RUN)
    return pulls.of_job(JOB)


def test_an_image_that_comes_and_how_far_it_is() -> None:
    assert said(state=S.PULLING) == "its image is pulled"
    far = said(state=S.PULLING, pulled_bytes=1 << 20, pull_total_bytes=10 << 20)
    assert far == "its image is pulled: 1 MB of 10 MB"


def test_what_a_start_waits_for_is_said_and_how_a_task_ended_is_said_elsewhere() -> None:
    assert said(state=S.CREATING, message="The disk is full.") == "The disk is full."
    assert said(state=S.PULLING, message="The engine is away.") == "The engine is away."
    for state in (S.RUNNING, S.TERMINATED):
        assert said(state=state, message="It ended so.") == ""
    assert said(state=S.CREATING, ending=True, message="It was stopped.") == ""
