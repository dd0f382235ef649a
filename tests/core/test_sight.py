"""What a provider says of a machine is news of its instance, or is none."""

import pytest

from stoker.core.instance_facts import Gone, PreemptionNoticed, S
from stoker.core.machine import Event
from stoker.core.sight import Sight, Stage, Way, news_of
from tests.core.living import an_instance

GONE, UP = Sight(Stage.GONE, message="taken"), Sight(Stage.UP, Way("dummy:1", "t"))
LEAVING = Sight(Stage.UP, taken_in_s=30.0)


@pytest.mark.parametrize(
    ("state", "sight", "event"),
    [
        *((state, GONE, Gone("taken")) for state in (S.PROVISIONING, S.IDLE, S.BUSY)),
        *((state, LEAVING, PreemptionNoticed(30.0)) for state in (S.PROVISIONING, S.IDLE, S.BUSY)),
        *((state, UP, None) for state in S),
        *((state, sight, None) for state in (S.PENDING, S.TERMINATING) for sight in (GONE, LEAVING)),
    ],
)
def test_news_is_what_the_instance_does_not_know_yet(state: S, sight: Sight, event: Event | None) -> None:
    """A launch under way has its own answer, and a machine that leaves surprises nobody by being gone."""
    assert news_of(an_instance(state=state), sight) == event


def test_jobs_in_their_grace_hear_that_their_machine_is_gone_before_its_time() -> None:
    leaving = an_instance(state=S.TERMINATING, held={1: (0,)}, destroy_at=60.0)
    assert news_of(leaving, Sight(Stage.GONE)) == Gone("the machine is gone")


def test_a_notice_that_comes_too_late_is_one_of_nothing() -> None:
    assert news_of(an_instance(state=S.IDLE), Sight(Stage.UP, taken_in_s=-1.0)) == PreemptionNoticed(0.0)
