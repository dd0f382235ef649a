"""Rows of an instance's life, driven over the API on machines of the dummy backend. ROWS.md says which is where."""

from typing import Any
from uuid import UUID

import pytest

from stoker.core import instance, job_end
from stoker.engine import timer, watch
from tests.backends.conftest import PROJECT, Town, Towns


async def some(one: Town, number: int, *states: str) -> list[dict[str, Any]]:
    """So many instances in one of these states."""

    async def there() -> list[dict[str, Any]] | None:
        found = [row for row in await one.instances() if row["state"] in states]
        return found if len(found) == number else None

    found: list[dict[str, Any]] = await one.until(there, f"{number} are {states}", one.instances)
    return found


async def moves(one: Town, id: UUID) -> list[str]:
    """The states that it went through."""
    told = (await one.admin.get(f"{PROJECT}/events?instance={id}&limit=200")).body["items"]
    return [event["target"] for event in told if event["source"] != event["target"]]


async def told(one: Town, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await one.admin.ask(method, f"{PROJECT}/{path}", body)
    assert answer.status == 200, answer.body
    shown: dict[str, Any] = answer.body
    return shown


async def test_a_machine_that_a_fleet_wants_is_idle_then_busy_then_idle(town: Towns) -> None:
    async with town() as one:
        await one.fleet(1)
        (row,) = await some(one, 1, "IDLE")
        run = await one.submit("sleep 0.3")
        await one.instance(row["id"], "BUSY")
        await one.run(run, "DONE")
        await one.instance(row["id"], "IDLE")
        assert await moves(one, row["id"]) == ["PENDING", "PROVISIONING", "IDLE", "BUSY", "IDLE"]


async def test_a_machine_that_a_run_wants_is_busy_as_soon_as_it_is_up(town: Towns) -> None:
    async with town() as one:
        await one.run(await one.submit("true"), "DONE")
        (row,) = await some(one, 1, "IDLE")
        assert await moves(one, row["id"]) == ["PENDING", "PROVISIONING", "BUSY", "IDLE"]


async def test_a_machine_is_not_waited_for_when_the_fleet_does_not_want_it_any_more(town: Towns) -> None:
    """The provider has not answered yet; what it makes all the same is destroyed."""
    async with town(answer_delay="1s") as one:
        await one.fleet(2)
        await some(one, 2, "PENDING")
        await one.fleet(1)
        (leaving,) = await some(one, 1, "TERMINATING", "TERMINATED")
        assert leaving["message"] == "the fleet has more than its maximum of 1 nodes"
        assert leaving["launched_at"] is None
        await some(one, 1, "IDLE")
        await one.instance(leaving["id"], "TERMINATED")
        assert (await moves(one, leaving["id"]))[:2] == ["PENDING", "TERMINATING"]
        assert len(one.steering.dummy.machines) == 1


@pytest.mark.parametrize("slow", ["answer_delay", "launch_delay"])
async def test_a_fleet_deleted_while_it_grows_leaves_nothing(town: Towns, slow: str) -> None:
    async with town(**{slow: "1s"}) as one:
        await one.fleet(5, "growing")
        await some(one, 5, "PENDING" if slow == "answer_delay" else "PROVISIONING")
        gone = await told(one, "DELETE", "fleets/growing")
        assert gone["status"] == "DELETING"
        await one.empty()

        async def buried() -> bool:
            return (await one.admin.get(f"{PROJECT}/fleets/growing")).status == 404

        await one.until(buried, "so is the fleet")
        assert {row["launched_at"] is None for row in await one.instances()} == {slow == "answer_delay"}


async def test_a_machine_above_the_least_goes_when_it_was_idle_for_too_long(town: Towns) -> None:
    async with town() as one:
        await one.fleet("1..3", idle_duration="0.5s")
        for run in [await one.submit("sleep 0.5") for _ in range(3)]:
            await one.run(run, "DONE")
        gone = await some(one, 2, "TERMINATED")
        assert all(row["message"].startswith("idle for ") for row in gone)
        for row in gone:
            assert (await moves(one, row["id"]))[-3:] == ["IDLE", "TERMINATING", "TERMINATED"]
        await some(one, 1, "IDLE")


async def test_an_idle_machine_is_deleted_and_a_busy_one_only_by_force(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        path = f"instances/{job['instance_id']}"
        refused = await one.admin.delete(f"{PROJECT}/{path}")
        assert (refused.status, refused.code) == (409, "busy")
        assert (await told(one, "DELETE", f"{path}?force=true"))["status"] == "TERMINATING"
        (ended,) = (await one.run(run, "FAILED"))["jobs"]
        assert ended["termination_reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        gone = await one.instance(job["instance_id"], "TERMINATED")
        assert gone["message"] == "deleted"

        await one.run(await one.submit("true"), "DONE")
        (idle,) = await some(one, 1, "IDLE")
        await told(one, "DELETE", f"instances/{idle['id']}")
        await one.instance(idle["id"], "TERMINATED")
        assert (await moves(one, idle["id"]))[-3:] == ["IDLE", "TERMINATING", "TERMINATED"]
        await one.empty()


async def test_machines_that_no_longer_fit_their_fleet_go_when_they_are_idle(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1.5")
        busy = (await one.job(run, "RUNNING"))["instance_id"]
        await one.run(await one.submit("true"), "DONE")
        (idle,) = await some(one, 1, "IDLE")
        await one.fleet("0..4", max_price=0.5)
        gone = await one.instance(idle["id"], "TERMINATED")
        assert gone["message"] == "it no longer fits the fleet"
        assert (await one.instance(busy, "BUSY"))["state"] == "BUSY"
        await one.run(run, "DONE")
        await one.instance(busy, "TERMINATED")
        await one.empty()


async def test_a_drained_machine_goes_with_its_last_job(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1")
        job = await one.job(run, "RUNNING")
        shown = await told(one, "POST", f"instances/{job['instance_id']}/drain", {"deadline": "1h"})
        assert (shown["status"], shown["cordoned"]) == ("BUSY", True)
        await one.run(run, "DONE")
        gone = await one.instance(job["instance_id"], "TERMINATED")
        assert gone["message"] == "drained"


async def test_at_the_deadline_of_a_drain_what_still_runs_is_interrupted(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        await told(one, "POST", f"instances/{job['instance_id']}/drain", {"deadline": "0.3s"})
        (ended,) = (await one.run(run, "FAILED"))["jobs"]
        assert ended["termination_reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        gone = await one.instance(job["instance_id"], "TERMINATED")
        assert gone["message"] == "drained"
        assert (await moves(one, job["instance_id"]))[-3:] == ["BUSY", "TERMINATING", "TERMINATED"]


async def test_a_machine_that_is_silent_for_good_is_destroyed(town: Towns, monkeypatch: pytest.MonkeyPatch) -> None:
    """In life after twenty minutes, and two more for its jobs."""
    monkeypatch.setattr(watch, "POLL_S", 1.0)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 0.3)
    monkeypatch.setattr(instance, "LEAVING_GRACE_S", 0.5)
    for module in (job_end, timer, instance):
        monkeypatch.setattr(module, "PROVIDER_SILENCE_S", 1.0)
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        await one.strike(job["instance_id"], "hang")
        (ended,) = (await one.run(run, "FAILED"))["jobs"]
        assert ended["termination_reason"] == "INSTANCE_UNREACHABLE"
        gone = await one.instance(job["instance_id"], "TERMINATED")
        assert gone["message"] == "unreachable for 1 s"
        await one.empty()
