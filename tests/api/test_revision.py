"""A run that is changed in place by its file: what may change, what may not, and one of two at once."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.engine.order import StoredOrders
from stoker.store.outbox import Errand
from tests.api.conftest import Apis, Client, Json, Reply, eventually, task

RUNS = "/api/projects/main/runs"


async def planned(client: Client, **fields: Any) -> Json:
    answer = await client.post(f"{RUNS}/plan", {"configuration": task(name="train", **fields)})
    assert answer.status == 200, answer.body
    return answer.body


async def applied(client: Client, plan: Json, **fields: Any) -> Reply:
    body = {"configuration": task(name="train", **fields), "expected": plan["expected"]}
    return await client.post(RUNS, body)


async def got(client: Client) -> Json:
    return (await client.get(f"{RUNS}/train")).body


async def until(client: Client, status: str) -> None:
    async def there() -> bool:
        return bool((await got(client))["status"] == status)

    await eventually(there, f"it is {status}")


async def test_the_plan_shows_what_changes_field_by_field_and_the_run_is_changed_in_place(api: Apis) -> None:
    async with api(None) as a:
        first = await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        new = {"priority": 80, "max_duration": "1h", "stop_duration": "20s", "start_timeout": "10m", "hold": True}
        plan = await planned(a.admin, **new)
        assert (plan["action"], plan["refused"]) == ("update", [])
        assert plan["sentence"] == "train is SUBMITTED and would be changed in place."
        assert {one["key"]: (one["old"], one["new"]) for one in plan["changes"]} == {
            "priority": (50, 80),
            "max_duration": ("off", "1h"),
            "stop_duration": ("10s", "20s"),
            "start_timeout": ("off", "10m"),
        }
        changed = await applied(a.admin, plan, **new)
        assert (changed.status, changed.body["id"]) == (200, first["id"])
        assert changed.body["configuration"] == task(name="train", **new)
        again = await planned(a.admin, **new)
        assert (again["action"], again["changes"]) == ("unchanged", [])
        assert (await applied(a.admin, again, **new)).status == 200
        told = (await a.admin.get(f"{RUNS}/train/events")).body["items"]
        (entry,) = [one for one in told if one["event"] == "Revised"]
        assert (entry["by"], "priority 50 -> 80" in entry["message"]) == ("admin", True)


async def test_a_new_limit_counts_at_once_for_a_job_that_runs(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train", max_duration="1h")})
        await until(a.admin, "RUNNING")
        assert (await applied(a.admin, await planned(a.admin), max_duration="0.2s")).status == 200
        await until(a.admin, "TERMINATED")
        assert (await got(a.admin))["status_message"] == "it ran longer than max_duration"


async def test_an_order_that_is_written_later_says_what_the_run_is_by_then(api: Apis) -> None:
    """A node has its task and waits ten minutes for the others; meanwhile somebody applies a longer max_duration."""
    async with api(None) as a:
        await a.host()
        run = await a.admin.made(RUNS, {"configuration": task(name="train", max_duration="1h")})
        await until(a.admin, "RUNNING")
        job = (await got(a.admin))["jobs"][0]["id"]
        start = Errand(uuid4(), 1, "job", UUID(job), UUID(run["id"]), 1, "PROVISIONING", "StartTask", "{}", 0)
        orders = StoredOrders(a.context.database, lambda id: "a-token-that-is-long-enough")
        await orders.task(start, None)
        assert (await orders.job(start)).max_duration_s == 3600
        assert (await applied(a.admin, await planned(a.admin), max_duration="2h")).status == 200
        submit = start._replace(id=uuid4(), effect="SubmitJob")
        assert (await orders.job(submit)).max_duration_s == 7200
        assert (await applied(a.admin, await planned(a.admin), max_duration="3h")).status == 200
        assert (await orders.job(submit._replace(tries=1))).max_duration_s == 10_800


@pytest.mark.parametrize(
    ("was", "new", "keys"),
    [
        ({"env": {"A": "s3cret"}}, {"env": {"A": "other"}, "priority": 3, "tty": True}, ["env", "tty"]),
        ({}, {"resources": {"cpu": 3}}, ["resources"]),
        ({}, {"schedule": "0 0 * * *"}, ["schedule"]),
        ({"schedule": "0 0 * * *"}, {}, ["schedule"]),
    ],
)
async def test_what_may_not_change_is_refused_by_name(api: Apis, was: Json, new: Json, keys: list[str]) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True, **was)})
        new = {"hold": True, **new}
        plan = await planned(a.admin, **new)
        assert (plan["action"], plan["refused"]) == ("refuse", keys)
        assert plan["sentence"].endswith(f"cannot change while it lives: {', '.join(keys)}.")
        refused = await applied(a.admin, plan, **new)
        assert (refused.status, refused.code) == (409, "name_taken")
        assert "stoker stop train" in refused.body["error"]["hint"]
        assert "s3cret" not in str(plan["changes"]) + str(refused.body)
        assert (await got(a.admin))["configuration"]["hold"] is True


async def test_a_run_that_ends_is_not_changed(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train", stop_duration="1h")})
        await until(a.admin, "RUNNING")
        plan = await planned(a.admin, priority=9)
        await a.admin.post(f"{RUNS}/train/stop")
        refused = await applied(a.admin, plan, priority=9)
        assert (refused.status, refused.code) == (409, "changed")


async def test_of_two_changes_at_once_one_wins(api: Apis) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        plan = await planned(a.admin, hold=True, priority=60)
        answers = await asyncio.gather(
            *(applied(a.admin, plan, hold=True, priority=priority) for priority in range(60, 70))
        )
        assert sorted(answer.status for answer in answers) == [200] + [409] * 9
        assert {answer.code for answer in answers if answer.status == 409} == {"changed"}
        (winner,) = [answer.body["configuration"]["priority"] for answer in answers if answer.status == 200]
        assert (await got(a.admin))["configuration"]["priority"] == winner


async def test_a_change_that_is_sent_twice_under_one_key_is_made_once(api: Apis) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        plan = await planned(a.admin, hold=True, priority=60)
        body = {"configuration": task(name="train", hold=True, priority=60), "expected": plan["expected"]}
        first, second = [await a.admin.post(RUNS, body, key="k") for _ in range(2)]
        assert (first.status, second.body["id"]) == (200, first.body["id"])
        assert second.body["version"] == first.body["version"]


async def test_without_what_was_seen_a_name_is_taken_and_nothing_changes(api: Apis) -> None:
    """`stoker run --name train` means a new run, and not the one that is there."""
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        refused = await a.admin.post(RUNS, {"configuration": task(name="train", priority=60)})
        assert (refused.status, refused.code) == (409, "name_taken")
        assert "priority" not in (await got(a.admin))["configuration"]


async def test_users_change_their_own_runs_and_managers_everybodys(api: Apis) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        eve, boss = await a.user("eve"), await a.user("boss", "manager")
        plan = await planned(eve, hold=True, priority=60)
        assert (await applied(eve, plan, hold=True, priority=60)).status == 403
        assert (await applied(boss, plan, hold=True, priority=60)).status == 200
        assert (await got(boss))["user"] == "admin"


async def test_a_new_schedule_is_waited_for_at_once_and_stays_paused(api: Apis) -> None:
    async with api() as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train", schedule="0 0 1 1 *")})
        await a.admin.post(f"{RUNS}/train/pause")
        new = {"schedule": {"cron": "0 0 1 7 *", "timezone": "Europe/Berlin"}}
        plan = await planned(a.admin, **new)
        assert {one["key"] for one in plan["changes"]} == {"schedule.cron", "schedule.timezone"}
        changed = (await applied(a.admin, plan, **new)).body["schedule"]
        assert (changed["cron"], changed["paused"], changed["next"]) == (["0 0 1 7 *"], True, [])
        resumed = (await a.admin.post(f"{RUNS}/train/resume")).body["schedule"]
        assert "-06-30T22:00:00" in resumed["next"][0]


@pytest.mark.parametrize("by_hand", [True, False])
async def test_a_release_by_hand_is_not_undone_by_the_same_file(api: Apis, by_hand: bool) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="train", hold=True)})
        if by_hand:
            await a.admin.post(f"{RUNS}/train/release")
            await applied(a.admin, await planned(a.admin, hold=True, priority=7), hold=True, priority=7)
        else:
            await applied(a.admin, await planned(a.admin), hold=False)
        assert (await got(a.admin))["held"] is False
