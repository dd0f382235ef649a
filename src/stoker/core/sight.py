"""What a provider says of one of our machines, and which news of its instance that is."""

from dataclasses import dataclass
from enum import Enum

from stoker.core.ids import ProjectId
from stoker.core.instance_facts import LIVE, Gone, Instance, PreemptionNoticed, S
from stoker.core.machine import Event


class Stage(Enum):
    COMING = "coming"
    UP = "up"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Way:
    """How a machine is reached: its shim by `address` and `token`, its programs by those of other nodes at `ip`."""

    address: str
    token: str
    ip: str = "127.0.0.1"
    one_project: bool = False
    """Its agent runs without root, so it serves only the project that comes first."""
    project_id: ProjectId | None = None
    """That project, where one has come already."""


@dataclass(frozen=True, slots=True)
class Sight:
    stage: Stage
    way: Way | None = None
    """As soon as the provider knows it."""
    taken_in_s: float | None = None
    """Set once the provider has said that it will take the machine back, and when. A length of time and no moment,
    since the provider's clock is not ours."""
    message: str = ""


def news_of(instance: Instance, sight: Sight) -> Event | None:
    """None when it is nothing new. A launch that is under way has its own answer: PENDING hears nothing from here."""
    if instance.state is S.PENDING:
        return None
    if sight.stage is Stage.GONE:
        # Nobody waits for a machine that leaves, unless jobs on it still have their grace.
        waits = instance.state in LIVE or instance.destroy_at is not None
        return Gone(sight.message or "the machine is gone") if waits else None
    if sight.taken_in_s is not None and instance.state in LIVE:
        return PreemptionNoticed(max(0.0, sight.taken_in_s))
    return None
