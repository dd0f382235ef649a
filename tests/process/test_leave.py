"""Machines that leave: what their jobs are told, how long they may go on, and where they run next."""

import time
from typing import Any

import pytest

from tests.process.house import House, until

pytestmark = pytest.mark.xdist_group("house")

AGAIN = {"on_events": ["interruption"], "max_attempts": 3}
WARNED = "USR1@60s"
SAVES = "trap 'read -r end why < $STOKER_DEADLINE_FILE; echo saved: $why; exit 3' USR1"
NOTES = "trap 'read -r end why < $STOKER_DEADLINE_FILE; echo heard: $why $end' USR1"
WAITS = "echo up; while :; do sleep 0.05; done"


async def up(house: House, run: Any, attempt: int = 1) -> Any:
    job = await house.job(run, "RUNNING", attempt)
    await until(lambda: "up" in house.on_disk(job["id"]), "its commands run")
    return job


async def test_without_a_warning_a_preempted_job_runs_elsewhere_at_once(house: House) -> None:
    """Two minutes of notice are two minutes in which it could run on a machine that stays."""
    async with house.serving():
        first = await house.machine()
        run = await house.submit(WAITS, retry=AGAIN)
        old = await up(house, run)
        await house.machine()
        began = time.monotonic()
        await house.noticed(first, 120.0)
        new = await up(house, run, 2)
        assert time.monotonic() - began < 20.0, "not the notice, nor half of it"
        (ended, _) = await house.jobs(run)
        assert ended["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        assert new["instance_id"] != old["instance_id"]
        assert house.processes(old["id"]) == []


async def test_a_warned_job_saves_its_work_and_runs_again(house: House) -> None:
    async with house.serving():
        first = await house.machine()
        run = await house.submit(SAVES, WAITS, retry=AGAIN, warn_signal=WARNED)
        old = await up(house, run)
        await house.machine()
        await house.noticed(first, 60.0)
        await up(house, run, 2)
        (ended, _) = await house.jobs(run)
        assert (ended["reason"], ended["exit_code"]) == ("INTERRUPTED_BY_NO_CAPACITY", 3)
        assert (await house.log(old["id"])).endswith("saved: preemption\n")


async def test_a_warned_job_goes_on_until_its_notice_is_nearly_over(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(NOTES, WAITS, warn_signal=WARNED, stop_duration="1s")
        job = await up(house, run)
        noticed = time.time()
        await house.noticed(machine, 8.0)
        await until(lambda: "heard: preemption" in house.on_disk(job["id"]), "it is warned")
        told_end = int(house.on_disk(job["id"]).partition("heard: preemption ")[2].split()[0])
        assert 6 <= told_end - noticed <= 9, "a second of grace before the machine leaves"
        assert (await house.jobs(run))[0]["state"] == "RUNNING"
        assert (await house.ended(run))["state"] == "FAILED"
        (ended,) = await house.jobs(run)
        assert (ended["reason"], ended["gone"]) == ("INTERRUPTED_BY_NO_CAPACITY", False)
        assert ended["exited_at"] - ended["running_at"] >= 6.0
        assert house.processes(job["id"]) == []


async def test_a_server_that_is_restarted_meanwhile_keeps_the_deadline(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(NOTES, WAITS, warn_signal=WARNED, stop_duration="1s")
        job = await up(house, run)
        await house.noticed(machine, 6.0)
        await until(lambda: "heard: preemption" in house.on_disk(job["id"]), "it is warned")
    async with house.serving():
        assert (await house.ended(run))["state"] == "FAILED"
        (ended,) = await house.jobs(run)
        assert ended["reason"] == "INTERRUPTED_BY_NO_CAPACITY"


async def test_a_drain_warns_and_stops_only_at_its_deadline_and_may_be_called_off(house: House) -> None:
    async with house.serving():
        machine = await house.machine()
        run = await house.submit(NOTES, WAITS, warn_signal=WARNED)
        job = await up(house, run)
        file = machine.place(job["id"]).deadline
        assert not file.exists()
        await house.drain(machine, "1h")
        await until(lambda: file.exists() and "drain" in file.read_text(), "it is told")
        await house.uncordon(machine)
        await until(lambda: not file.exists(), "it is told that it may stay")
        assert "heard" not in house.on_disk(job["id"]), "an hour before is no warning"
        await house.drain(machine, "4s")
        await until(lambda: "heard: drain" in house.on_disk(job["id"]), "it is warned")
        assert (await house.jobs(run))[0]["state"] == "RUNNING"
        assert (await house.ended(run))["state"] == "FAILED"
        (ended,) = await house.jobs(run)
        assert ended["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
