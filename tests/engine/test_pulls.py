"""What hosts say of containers, as people are told it: how far an image is, for what else a start waits, its ports."""

from typing import Any
from uuid import UUID, uuid4

from stoker.core.shim_task import S
from stoker.engine.pulls import Pulls
from stoker.wire.shim import PortInfo, TaskInfo

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


def test_ports_are_known_as_long_as_the_container_runs() -> None:
    """Whoever asks between its start and its end, and nobody after that: the port may be another one's by then."""
    pulls, run, id, ports = Pulls(), uuid4(), uuid4(), (PortInfo(inside=8000, on_host=49153),)

    def said(state: S, **more: Any) -> tuple[PortInfo, ...]:
        pulls.heard(run, TaskInfo(id=id, fence=1, state=state, **more))
        return pulls.ports_of(id)

    assert said(S.PULLING, pulled_bytes=1) == ()
    assert said(S.CREATING, ports=ports) == (), "nobody listens there yet"
    assert said(S.RUNNING, ports=ports) == ports
    assert said(S.RUNNING, ports=ports, ending=True) == ()
    assert pulls.ports_of(uuid4()) == ()
