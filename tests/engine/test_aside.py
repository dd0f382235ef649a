"""What failed is left alone for a while, longer each time, and is never forgotten too early."""

from uuid import uuid4

import pytest
import structlog

from stoker.core.errors import Broken, Conflict
from stoker.core.ids import RunId
from stoker.core.limits import LONGEST_DELAY_S
from stoker.core.machine import TimeUp
from stoker.engine.aside import FIRST_S, Aside
from stoker.engine.change import Change, of_run
from stoker.engine.draft import Answer

ID = RunId(uuid4())
CHANGE = Change(facts=(of_run(ID, TimeUp()),))


class Hands:
    """A clock that is set."""

    at = 1000.0

    def now(self) -> float:
        return self.at


def failing(error: Exception | None) -> list[tuple[Change, Answer | None]]:
    return [(CHANGE, Answer((False,), error))]  # type: ignore[arg-type]


def test_what_fails_again_and_again_waits_longer_each_time_up_to_a_limit() -> None:
    clock = Hands()
    aside = Aside(clock)
    waits = []
    for _ in range(20):
        aside.learn(failing(Broken("a bug")))
        assert aside.ids() == {ID}
        after_s = aside.again_after_s()
        assert after_s is not None
        waits.append(round(after_s, 3))
        clock.at += after_s + 0.001
        assert (aside.ids(), aside.again_after_s()) == (frozenset(), None)
    assert waits[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert waits[-1] == LONGEST_DELAY_S == max(waits)


def test_what_comes_through_is_forgotten() -> None:
    aside = Aside(Hands())
    aside.learn(failing(Broken("a bug")))
    aside.learn([(CHANGE, Answer((True,)))])
    assert (aside.ids(), aside.again_after_s()) == (frozenset(), None)


def test_what_is_never_spoken_of_again_is_forgotten() -> None:
    """The record ended meanwhile: nobody has anything to say to it."""
    clock = Hands()
    aside = Aside(clock)
    for _ in range(10):
        aside.learn(failing(Broken("a bug")))
    clock.at += 3 * LONGEST_DELAY_S
    aside.learn([])
    aside.learn(failing(Broken("a bug")))
    assert aside.again_after_s() == FIRST_S


def test_what_another_commit_holds_has_not_failed() -> None:
    aside = Aside(Hands())
    aside.learn([(CHANGE, None)])
    assert aside.ids() == frozenset()


@pytest.mark.parametrize("error", [None, Conflict("late", code="stale")])
def test_once_is_a_race_and_again_and_again_is_not(error: Exception | None) -> None:
    """A record that moved between plan and commit is planned anew at once, before others take its place. But a deadline
    that its table does not serve would be told without end."""
    aside = Aside(Hands())
    assert aside.learn(failing(error)) == (1, 0, "")
    assert aside.ids() == frozenset()
    assert aside.learn(failing(error)) == (1, 0, "")
    assert aside.ids() == {ID}


def test_our_own_fault_is_counted_each_time_and_logged_once_with_the_record() -> None:
    aside = Aside(Hands())
    with structlog.testing.capture_logs() as logs:
        failures = [aside.learn(failing(Broken("a bug"))) for _ in range(3)]
    assert failures == [(1, 1, "a bug")] * 3
    (line,) = logs
    assert (line["record"], line["kind"], line["said"], line["log_level"]) == (str(ID), "run", "TimeUp", "error")
