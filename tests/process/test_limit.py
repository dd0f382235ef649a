"""Limits of time, as they are configured: across restarts of the server, and on hosts that hang."""

import os
import signal
import time
from typing import Any

import pytest

from stoker.engine import watch
from stoker.transport import http
from stoker.wire import duration, utilization
from tests.process.house import House, until

pytestmark = pytest.mark.xdist_group("house")

WAITS = "echo up; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 2.0)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(http, "ANSWER_S", 2.0)


async def up(house: House, run: Any) -> Any:
    job = await house.job(run, "RUNNING")
    await until(lambda: "up" in house.on_disk(job["id"]), "its commands run")
    return job


async def test_max_duration_is_kept_while_the_server_is_away_and_told_when_it_is_back(house: House) -> None:
    async with house.serving():
        await house.machine()
        run = await house.submit(WAITS, max_duration="5s")
        job = await up(house, run)
    left = time.time()
    result = await until(lambda: house.result(job["id"]), "its host stops it")
    assert (result["failure"], result["signal"]) == ("max_duration", 15)
    assert result["ended_at"] - left < 15.0
    async with house.serving():
        assert (await house.ended(run))["state"] == "TERMINATED"
        (ended,) = await house.jobs(run)
        assert (ended["reason"], ended["exit_signal"]) == ("MAX_DURATION_EXCEEDED", 15)
        assert "max_duration of 5 s" in ended["message"]


async def test_max_duration_is_the_same_reason_whoever_is_first(house: House) -> None:
    """Server and runner count beside each other."""
    async with house.serving():
        await house.machine()
        runs = [await house.submit(WAITS, max_duration="2s") for _ in range(4)]
        for run in runs:
            assert (await house.ended(run))["state"] == "TERMINATED"
            (ended,) = await house.jobs(run)
            assert (ended["reason"], ended["state"]) == ("MAX_DURATION_EXCEEDED", "TERMINATED")
            assert ended["exited_at"] - ended["running_at"] < 10.0


async def test_start_timeout_counts_on_while_the_server_is_away(house: House) -> None:
    async with house.serving():
        run = await house.submit(WAITS, start_timeout="4s")
        assert (await house.jobs(run))[0]["state"] == "SUBMITTED"
    async with house.serving():
        assert (await house.ended(run))["state"] == "FAILED"
        (ended,) = await house.jobs(run)
        assert ended["reason"] == "WAITING_INSTANCE_LIMIT_EXCEEDED"
        assert ended["entered_at"] - ended["submitted_at"] >= 4.0


async def test_a_grace_of_nothing_kills_at_once_and_a_long_one_is_cut_by_an_abort(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was accepted before there was a limit on it."""
    monkeypatch.setattr(duration, "LONGEST_GRACE_S", 365 * 24 * 3600.0)
    async with house.serving():
        await house.machine()
        quick = await house.submit(DEAF, stop_duration="0s")
        long = await house.submit(DEAF, stop_duration="7d")
        older = await house.submit(DEAF, stop_duration="365d")
        jobs = [await up(house, run) for run in (quick, long, older)]
        for run in (quick, long, older):
            await house.stop(run)
        await house.ended(quick)
        (ended,) = await house.jobs(quick)
        assert (ended["reason"], ended["exit_signal"]) == ("TERMINATED_BY_USER", 9)
        for run, job in ((long, jobs[1]), (older, jobs[2])):
            assert (await house.jobs(run))[0]["state"] == "TERMINATING"
            assert house.processes(job["id"])
            await house.stop(run, abort=True)
            await house.ended(run)
            assert (await house.jobs(run))[0]["state"] == "ABORTED"
            assert house.processes(job["id"]) == []


async def test_a_grace_goes_on_where_it_was_after_a_restart_of_the_server(house: House) -> None:
    async with house.serving():
        await house.machine()
        run = await house.submit(DEAF, stop_duration="6s")
        job = await up(house, run)
        await house.stop(run)
        await house.job(run, "TERMINATING")
    async with house.serving():
        await house.ended(run)
        (ended,) = await house.jobs(run)
        assert (ended["reason"], ended["exit_signal"]) == ("TERMINATED_BY_USER", 9)
        assert ended["exited_at"] - job["running_at"] >= 5.0
        assert house.processes(job["id"]) == []


async def test_a_job_whose_runner_hangs_is_ended_all_the_same(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(WAITS, stop_duration="1s")
        job = await up(house, run)
        os.kill(machine.runner(job["id"]), signal.SIGSTOP)
        await house.stop(run)
        assert (await house.ended(run))["state"] == "TERMINATED"
        assert (await house.jobs(run))[0]["reason"] == "TERMINATED_BY_USER"
        assert house.processes(job["id"]) == []
        await until(lambda: not machine.tasks(), "nothing is left of it")


async def test_a_job_whose_host_hangs_while_it_stops_ends_as_its_reason_says_once_it_answers(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(WAITS, stop_duration="1s", max_duration="1h")
        job = await up(house, run)
        shim = machine.shim()
        os.kill(shim, signal.SIGSTOP)
        try:
            await house.stop(run)
            await until(lambda: removing(house, run), "its grace is over, and nobody answers")
            assert (await house.jobs(run))[0]["state"] == "TERMINATING", "it is not forgotten while it may run"
        finally:
            os.kill(shim, signal.SIGCONT)
        assert (await house.ended(run))["state"] == "TERMINATED"
        assert (await house.jobs(run))[0]["reason"] == "TERMINATED_BY_USER"
        assert house.processes(job["id"]) == []


async def removing(house: House, run: Any) -> bool:
    job = (await house.jobs(run))[0]
    return job["cleanup"] == "remove" and job["unreachable_since"] is not None


async def test_a_job_that_idles_is_ended_with_the_numbers(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "SHORTEST_S", 1.0)
    async with house.serving():
        await house.machine()
        run = await house.submit("sleep 600", utilization_policy={"min_cpu_utilization": 50, "time_window": "4s"})
        assert (await house.ended(run))["state"] == "TERMINATED"
        (ended,) = await house.jobs(run)
        assert ended["reason"] == "TERMINATED_DUE_TO_UTILIZATION_POLICY"
        assert "CPU was used below 50 %" in ended["message"]
