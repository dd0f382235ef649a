"""Scheduled and held runs over HTTP: when they come, triggers by hand, pauses, holds, and who may."""

import asyncio

import pytest

from tests.api.conftest import Apis, Client, Json, eventually, task

RUNS = "/api/projects/main/runs"
YEARLY = "0 0 1 1 *"


async def made(client: Client, **fields: object) -> Json:
    return await client.made(RUNS, {"configuration": task(**{"name": "nightly", "schedule": YEARLY} | fields)})


async def got(client: Client, ref: str = "nightly") -> Json:
    return (await client.get(f"{RUNS}/{ref}")).body


async def until(client: Client, status: str, rounds: int, ref: str = "nightly") -> Json:
    async def there() -> Json:
        run = await got(client, ref)
        return run if (run["status"], run["schedule"]["rounds"]) == (status, rounds) else None

    return await eventually(there, f"{ref} is {status} in round {rounds}")


async def trigger(client: Client, ref: str = "nightly") -> str:
    answer = await client.post(f"{RUNS}/{ref}/trigger")
    assert answer.status == 200, answer.body
    outcome: str = answer.body["outcome"]
    return outcome


async def story(client: Client, event: str) -> list[tuple[str, str]]:
    told = (await client.get(f"{RUNS}/nightly/events?limit=200")).body["items"]
    return [(one["message"], one["by"]) for one in told if one["kind"] == "run" and one["event"] == event]


async def test_a_scheduled_run_waits_for_its_time_and_says_when_that_is(api: Apis) -> None:
    async with api() as a:
        await a.host()
        zone = {"cron": ["30 2 * * *", "0 12 * * SAT"], "timezone": "Europe/Berlin", "overlap": "queue"}
        run = await made(a.admin, schedule=zone)
        assert (run["status"], run["jobs"]) == ("PENDING", [])
        assert run["status_message"].startswith("starts at 20")
        for shown in (run, await got(a.admin)):
            schedule = shown["schedule"]
            assert (schedule["cron"], schedule["timezone"]) == (zone["cron"], "Europe/Berlin")
            assert (schedule["overlap"], schedule["paused"], schedule["rounds"]) == ("queue", False, 0)
            assert len(schedule["next"]) == 5
            assert schedule["next"] == sorted(schedule["next"])
        (listed,) = (await a.admin.get(RUNS)).body["items"]
        assert listed["schedule"]["next"] == run["schedule"]["next"][:1]
        why = (await a.admin.get(f"{RUNS}/nightly/why")).body["sentence"]
        assert why.startswith("nightly waits: starts at 20")
        plan = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(schedule=YEARLY)})).body
        assert plan["action"] == "queue"
        assert plan["sentence"].startswith("It would be started by its schedule, first at 20")


@pytest.mark.parametrize(
    ("schedule", "says", "hint"),
    [
        ("61 * * * *", "'61 * * * *' is not a cron line that can match: Bad minute", "30 2 * * *"),
        ("0 0 30 2 *", "Bad day-of-month", "30 2 * * *"),
        ({"cron": YEARLY, "timezone": "Europe/Berln"}, "is not a time zone", "Did you mean Europe/Berlin?"),
        ({"cron": YEARLY, "overlap": "wait"}, "expected 'skip' or 'queue'", ""),
        ({"timezone": "UTC"}, "schedule.cron: it is missing", ""),
        (7, "expected a cron line", "0 3 * * *"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_with_a_hint(
    api: Apis, schedule: object, says: str, hint: str
) -> None:
    async with api() as a:
        refused = await a.admin.post(RUNS, {"configuration": task(schedule=schedule)})
        assert refused.status == 422
        assert says in refused.body["error"]["message"]
        assert hint in refused.body["error"]["hint"]


async def test_a_round_by_hand_runs_and_leaves_the_clock_what_it_was(api: Apis) -> None:
    async with api(exit_code=3) as a:
        await a.host()
        before = (await made(a.admin))["schedule"]["next"]
        for number in (1, 2):
            assert await trigger(a.admin) == "started"
            run = await until(a.admin, "PENDING", number)
        assert run["schedule"]["next"] == before
        assert {key: run["schedule"]["last"][key] for key in ("status", "reason")} == {
            "status": "FAILED",
            "reason": "JOB_FAILED",
        }
        assert run["status_message"].endswith("last round: exited with 3")
        assert await story(a.admin, "TriggerAsked") == [("triggered", "admin")] * 2
        assert (await a.admin.post(f"{RUNS}/nightly/stop")).body["status"] == "TERMINATED"
        over = await a.admin.post(f"{RUNS}/nightly/trigger")
        assert (over.status, over.code) == (409, "finished")


@pytest.mark.parametrize(("overlap", "outcome", "rounds"), [("skip", "skipped", 1), ("queue", "queued", 2)])
async def test_a_trigger_while_a_round_runs_says_which_way_it_went(
    api: Apis, overlap: str, outcome: str, rounds: int
) -> None:
    async with api(None) as a:
        await a.host()
        await made(a.admin, schedule={"cron": YEARLY, "overlap": overlap}, max_duration="2s")
        assert await trigger(a.admin) == "started"
        run = await until(a.admin, "RUNNING", 1)
        answers = await asyncio.gather(trigger(a.admin), trigger(a.admin))
        assert set(answers) == {outcome}
        assert (await got(a.admin))["schedule"]["queued"] is (overlap == "queue")
        assert run["schedule"]["last"] is None
        await until(a.admin, "RUNNING" if rounds == 2 else "PENDING", rounds)
        assert (await got(a.admin))["schedule"]["last"]["status"] == "TERMINATED"


async def test_a_paused_schedule_waits_for_nothing_and_goes_on_when_it_is_resumed(api: Apis) -> None:
    async with api() as a:
        await a.host()
        before = (await made(a.admin))["schedule"]["next"]
        for _ in range(2):
            paused = (await a.admin.post(f"{RUNS}/nightly/pause")).body
            assert (paused["status"], paused["schedule"]["paused"], paused["schedule"]["next"]) == ("PENDING", True, [])
            assert paused["status_message"] == "paused"
        assert await trigger(a.admin) == "started"
        assert (await until(a.admin, "PENDING", 1))["schedule"]["paused"]
        for _ in range(2):
            resumed = (await a.admin.post(f"{RUNS}/nightly/resume")).body
            assert (resumed["schedule"]["paused"], resumed["schedule"]["next"]) == (False, before)
        assert await story(a.admin, "PauseAsked") == [("its schedule is paused", "admin")]
        assert await story(a.admin, "ResumeAsked") == [("its schedule goes on", "admin")]


async def test_what_has_no_schedule_says_so(api: Apis) -> None:
    async with api() as a:
        await a.admin.made(RUNS, {"configuration": task(name="once", hold=True)})
        for act in ("trigger", "pause", "resume"):
            refused = await a.admin.post(f"{RUNS}/once/{act}")
            assert (refused.status, refused.code) == (409, "no_schedule")
            assert f"once has no schedule to {act}." in refused.body["error"]["message"]
            assert (await a.admin.post(f"{RUNS}/nobody/{act}")).status == 404


async def test_a_held_run_waits_until_it_is_released(api: Apis) -> None:
    async with api() as a:
        await a.host()
        run = await a.admin.made(RUNS, {"configuration": task(name="train", hold=True, on_no_capacity="fail")})
        assert (run["status"], run["held"]) == ("SUBMITTED", True)
        await a.context.engine.placement.once()
        why = (await a.admin.get(f"{RUNS}/train/why")).body
        assert (why["code"], why["sentence"]) == ("held", "train is held: it waits for `stoker release`.")
        assert (await got(a.admin, "train"))["status_message"] == "held: it waits for `stoker release`"
        plan = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(hold=True)})).body
        assert (plan["action"], plan["sentence"]) == ("queue", "It would be held until somebody releases it.")
        assert (await a.admin.post(f"{RUNS}/train/hold")).status == 200
        assert (await a.admin.post(f"{RUNS}/train/release")).body["held"] is False
        assert (await a.admin.get(f"{RUNS}/train/wait?timeout_s=20")).body["status"] == "DONE"
        ended = await a.admin.post(f"{RUNS}/train/hold")
        assert (ended.status, ended.code) == (409, "started")
        assert (await a.admin.post(f"{RUNS}/train/release")).status == 200


async def test_a_run_that_runs_is_not_held(api: Apis) -> None:
    async with api(None) as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train")})

        async def runs() -> bool:
            return bool((await got(a.admin, "train"))["status"] == "RUNNING")

        await eventually(runs, "it runs")
        refused = await a.admin.post(f"{RUNS}/train/hold")
        assert (refused.status, refused.code) == (409, "started")
        assert refused.body["error"]["message"] == "train is RUNNING: nothing of it waits any more."


async def test_users_steer_their_own_runs_and_managers_everybodys(api: Apis) -> None:
    async with api() as a:
        await made(a.admin, hold=True)
        eve, boss = await a.user("eve"), await a.user("boss", "manager")
        for act in ("trigger", "pause", "resume", "hold", "release"):
            refused = await eve.post(f"{RUNS}/nightly/{act}")
            assert (refused.status, act in refused.body["error"]["message"]) == (403, True)
            assert (await boss.post(f"{RUNS}/nightly/{act}")).status == 200, act
            assert (await a.admin.speaking_as("").post(f"{RUNS}/nightly/{act}")).status == 401
