"""What hosts say of containers, as people are told it."""

from typing import Any
from uuid import uuid4

from stoker.core.shim_task import S
from stoker.engine.pulls import Pulls
from stoker.wire.shim import PortInfo, TaskInfo


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
