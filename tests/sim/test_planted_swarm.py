"""The simulation can fail: bugs planted in the swarm's SQL are found within some seeds, and only there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker.store import continuation, report
from stoker.store.continuation import Opened
from tests.sim.campaign import databases, quiet
from tests.sim.history import live

SEEDS = range(1, 61)
"""One story in thirteen meets a report that comes late enough for its fence to matter."""

FENCE = "WHERE t.id = told.task_id AND t.worker_id = told.worker_id AND t.attempt = told.attempt"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    quiet()
    with databases(1) as (url,):
        yield url


def release_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The release of a success is carried out again, as by a retry that forgot what it had done."""
    plain = continuation.release_continuations

    async def twice(*args: Any) -> Opened:
        return await plain(*args) | await plain(*args)

    monkeypatch.setattr(report, "release_continuations", twice)


def remove_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end counts whoever reports it, of whichever attempt."""
    assert FENCE in report.END
    unfenced = "WHERE t.id = told.task_id AND t.worker_id IS NOT NULL"
    monkeypatch.setattr(report, "END", report.END.replace(FENCE, unfenced))


def hand_out_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What took its workers down is claimed again as if nothing were."""
    assert "crash_count + 1 >= crash_limit" in report.LOSE
    monkeypatch.setattr(report, "LOSE", report.LOSE.replace("crash_count + 1 >= crash_limit", "false"))


@pytest.mark.parametrize("plant", [release_twice, remove_the_fence, hand_out_what_is_held])
def test_a_planted_bug_is_found(url: str, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    found: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch)
        for seed in SEEDS:
            if violation := live(seed, url).violation:
                found[seed] = violation
                break
    assert found, f"none of the seeds {SEEDS} found it"
    for seed, violation in found.items():
        assert "task" in violation
        assert live(seed, url).violation == "", "without the bug the same seed is clean"
