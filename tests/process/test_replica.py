"""Two servers on one database: when one is killed, the other does all of its work, and nothing is done twice."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.engine.replica import DEAD_AFTER_S
from stoker.store.postgres import Embedded
from tests.process.crowd import Yard, numbers
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("survival")

TAKEN_OVER_S = 10.0


@contextmanager
def postgres(home: Path) -> Iterator[str]:
    server = asyncio.run(Embedded.start(home))
    try:
        yield server.url
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(home, ignore_errors=True)


def test_a_killed_server_is_replaced_by_the_other_and_nothing_is_doubled(
    new_home: Callable[[], Path], own_stand: Callable[..., Stand], yard: Yard
) -> None:
    """The first one has the machine. Its jobs are in every state when it is killed, and the second one is asked for
    more in that very moment."""
    with postgres(new_home()) as url:
        shared = {"STOKER_DATABASE_URL": url, "STOKER_LOGS": str(yard.file("logs"))}
        first, second = own_stand(**shared), own_stand(local=False, **shared)
        try:
            first.start()
            second.start()
            second.known_as(first)
            takeover(first, second, yard)
        finally:
            first.clear()
            second.clear()


def takeover(first: Stand, second: Stand, yard: Yard) -> None:
    running, ending = [f"running-{number}" for number in range(4)], "ending"
    for stand, name in zip((first, second, first, second), running, strict=True):
        stand.submit(name, yard.note(name), "seq 200", yard.gate(name), "seq 201 400")
    trap = f"trap 'echo asked; {yard.gate(ending)}; exit 0' TERM"
    first.submit(ending, yard.note(ending), trap, "seq 200", "sleep 1000 & wait", stop_duration="1h")
    for name in (*running, ending):
        first.reaches(name, "RUNNING")
        until(lambda name=name: yard.began(name) and first.written(name) == numbers(1, 200), f"{name} runs")  # type: ignore[misc]
    first.stop(ending)
    fresh = [f"fresh-{number}" for number in range(3)]
    for name in fresh:
        first.submit(name, yard.note(name), "seq 200")
    first.kill_server()
    killed_at = time.monotonic()
    second.submit("asked-for", yard.note("asked-for"), "seq 200")
    for name in (*running[:2], ending):
        yard.open(name)
    for name in (*running[:2], *fresh, "asked-for", ending):
        assert second.finished(name)["status"] == ("TERMINATED" if name == ending else "DONE")
    took_s = time.monotonic() - killed_at
    assert took_s <= DEAD_AFTER_S + TAKEN_OVER_S, f"it took {took_s:.1f} s"
    assert second.get(running[2])["status"] == "RUNNING"
    first.start()
    for name in running[2:]:
        yard.open(name)
        assert first.finished(name)["status"] == "DONE"
    for name in running:
        assert second.log(name) == numbers(1, 400)
    for name in (*fresh, "asked-for"):
        assert first.log(name) == numbers(1, 200)
    assert second.log(ending) == numbers(1, 200) + b"asked\n"
    for name in (*running, *fresh, ending, "asked-for"):
        assert len(yard.began(name)) == 1, name
        assert len(first.get(name)["jobs"]) == 1
    until(lambda: not first.tasks(), "the host has forgotten every task")
