"""Server and host do not reach each other, for less and for longer than a policy allows: never two copies at once."""

import asyncio
import os
import signal
import time
from functools import partial
from typing import Any

import pytest

from stoker.engine import watch
from stoker.transport import http
from stoker.wire import disconnect
from tests.process.house import House, Machine, until

pytestmark = pytest.mark.xdist_group("house")

WAITS = "echo up; while :; do sleep 0.05; done"
AGAIN = {"on_events": ["error"], "max_attempts": 3}
STOP_AFTER_S, FAIL_AFTER_S = 8.0, 14.0
POLICY: dict[str, Any] = {
    "disconnect": {"stop_after": STOP_AFTER_S, "fail_after": FAIL_AFTER_S},
    "stop_duration": "1s",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In life a host that hangs is called unreachable after a minute and more."""
    monkeypatch.setattr(watch, "POLL_S", 2.0)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(http, "ANSWER_S", 2.0)
    monkeypatch.setattr(disconnect, "SHORTEST_S", 5.0)


async def up(house: House, run: Any, attempt: int = 1) -> Any:
    job = await house.job(run, "RUNNING", attempt)
    await until(lambda: "up" in house.on_disk(job["id"]), "its commands run")
    return job


def freeze(machine: Machine) -> int:
    pid = machine.shim()
    os.kill(pid, signal.SIGSTOP)
    return pid


async def test_a_quiet_job_of_a_server_that_is_there_is_not_stopped(house: House) -> None:
    """It prints nothing, so nobody speaks to its runner; the shim passes on that the server is there."""
    async with house.serving():
        await house.machine()
        run = await house.submit(WAITS, **POLICY)
        job = await up(house, run)
        quiet_since = time.monotonic()
        await until(lambda: time.monotonic() > quiet_since + 2 * STOP_AFTER_S, "a long time")
        assert house.result(job["id"]) is None
        assert (await house.jobs(run))[0]["state"] == "RUNNING"


async def test_a_server_that_is_away_for_too_long_finds_the_job_stopped_and_retried(house: House) -> None:
    async with house.serving():
        await house.machine()
        quits = await house.submit(WAITS, **POLICY)
        again = await house.submit(WAITS, retry=AGAIN, **POLICY)
        jobs = [await up(house, run) for run in (quits, again)]
    left = time.time()
    for job in jobs:
        result = await until(partial(house.result, job["id"]), "its host stops it")
        assert result["failure"] == "silence"
        assert STOP_AFTER_S - 4 <= result["ended_at"] - left <= STOP_AFTER_S + 10, "by its own clock"
        assert house.processes(job["id"]) == []
    async with house.serving():
        assert (await house.ended(quits))["state"] == "FAILED"
        (ended,) = await house.jobs(quits)
        assert ended["reason"] == "INSTANCE_UNREACHABLE"
        assert "was not heard for 8 s" in ended["message"]
        assert ended["exited_at"] < left + STOP_AFTER_S + 10, "when it ended, not when we heard"
        await up(house, again, 2)


async def test_a_host_that_is_away_for_less_than_its_policy_changes_nothing(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(WAITS, disconnect={"stop_after": "40s", "fail_after": "1m"})
        job = await up(house, run)
        before = house.processes(job["id"])
        shim = freeze(machine)
        try:
            await until(lambda: unreachable(house, run), "it is shown as unreachable", 30.0)
        finally:
            os.kill(shim, signal.SIGCONT)
        await until(lambda: reachable(house, run), "it is heard again")
        assert set(house.processes(job["id"])) & set(before), "the same program"
        assert (await house.jobs(run))[0]["state"] == "RUNNING"


async def unreachable(house: House, run: Any) -> bool:
    return (await house.jobs(run))[0]["unreachable_since"] is not None


async def reachable(house: House, run: Any) -> bool:
    return not await unreachable(house, run)


async def test_a_host_that_comes_back_after_its_job_was_replaced_is_cleaned_and_never_two_ran(house: House) -> None:
    async with house.serving():
        first = await house.machine()
        run = await house.submit(WAITS, retry=AGAIN, **POLICY)
        old = await up(house, run)
        await house.machine()
        shim = freeze(first)
        try:
            await until(lambda: replaced_alone(house, run, old["id"]), "another one runs", 90.0)
        finally:
            os.kill(shim, signal.SIGCONT)
        (given_up, new) = await house.jobs(run)
        assert (given_up["state"], given_up["reason"]) == ("FAILED", "INSTANCE_UNREACHABLE")
        await until(lambda: not first.tasks(), "the old task is stopped and removed")
        assert (await house.jobs(run))[1]["state"] == "RUNNING"
        assert new["instance_id"] != old["instance_id"]


async def replaced_alone(house: House, run: Any, old: Any) -> bool:
    """Looked at again and again: while one of them runs, the other does not."""
    jobs = await house.jobs(run)
    running = len(jobs) > 1 and bool(house.processes(jobs[1]["id"]))
    assert not (running and house.processes(old)), "two copies at once"
    await asyncio.sleep(0.05)
    return running and jobs[1]["state"] == "RUNNING"
