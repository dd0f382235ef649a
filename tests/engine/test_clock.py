"""A clock that is set an hour forward or back hurts nobody: the time of the cluster goes on evenly."""

from typing import Any

import pytest

from stoker.engine import clock
from stoker.engine.clock import SLEW, DatabaseClock

BEAT_S = 2.0
HOUR_S = 3600.0


class Host:
    """Where a server runs beside its database; `set` is what a person does to its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, alone: bool = True) -> None:
        self.up_s, self.wall_s, self.alone = 100.0, 1_800_000_000.0, alone
        self.clock = DatabaseClock(_Nothing(), lambda: self.alone)  # type: ignore[arg-type]
        monkeypatch.setattr(clock, "steady", lambda: self.up_s)

    def set(self, by_s: float) -> None:
        self.wall_s += by_s

    def passes(self, seconds: float) -> None:
        self.up_s += seconds
        self.wall_s += seconds

    def beat(self) -> None:
        self.clock._told(self.wall_s, self.up_s)

    def lives(self, seconds: float) -> float:
        """How long that was by the clock of the cluster."""
        began, left_s = self.clock.now(), seconds
        while left_s > 0:
            self.passes(BEAT_S)
            self.beat()
            left_s -= BEAT_S
        return self.clock.now() - began


class _Nothing:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError("nobody asks a database here")


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_an_hour_that_is_set_is_not_an_hour_that_passed(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    """A job with a minute left has about a minute left, and no wish is put off for an hour."""
    host = Host(monkeypatch)
    host.beat()
    host.lives(60.0)
    host.set(by_s)
    assert 60.0 * (1 - SLEW) - 1 <= host.lives(60.0) <= 60.0 * (1 + SLEW) + 1


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_in_the_end_it_tells_the_time_of_day_again(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    host = Host(monkeypatch)
    host.beat()
    host.set(by_s)
    host.lives(HOUR_S / SLEW + 60.0)
    assert host.clock.now() == pytest.approx(host.wall_s, abs=0.01)


def test_time_never_goes_back_for_a_replica_that_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    host.beat()
    host.set(-HOUR_S)
    for _ in range(100):
        assert host.lives(BEAT_S) > 0


def test_a_drift_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    host.beat()
    host.set(0.5)
    host.lives(BEAT_S)
    assert host.clock.now() == pytest.approx(host.wall_s)


def test_replicas_agree_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that catches up slowly gives that up when another one comes, who knows only the database's clock."""
    host = Host(monkeypatch)
    host.beat()
    host.set(HOUR_S)
    host.lives(60.0)
    assert host.clock.now() < host.wall_s - HOUR_S / 2
    host.alone = False
    host.lives(BEAT_S)
    assert host.clock.now() == pytest.approx(host.wall_s)


def test_the_first_word_of_the_database_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    host.beat()
    assert host.clock.now() == host.wall_s
