"""Runs of many jobs over HTTP: arrays with a limit, lists of jobs, doing again what failed, gangs that do not fit."""

import asyncio
import time
from typing import Any
from uuid import UUID

from stoker.core.ids import JobId, RunId
from stoker.core.job_facts import Exited, RunnerAccepted, SubmitJob
from stoker.engine.change import Change, of_job
from stoker.store import run as run_store
from stoker.store.outbox import Errand
from tests.api.conftest import Api, Apis, Json, eventually, task
from tests.api.test_run import RUNS, submit, until
from tests.engine.test_engine import Agents

REPLICA = "SELECT replica FROM job WHERE id = $1"


class Picky(Agents):
    """Programs of the `bad` replicas fail."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bad: set[int] = set()
        self.api: Api | None = None

    async def submit(self, errand: Errand, effect: SubmitJob) -> Change:
        assert self.api is not None
        async with self.api.context.database.connection() as connection:
            replica = await connection.fetchval(REPLICA, errand.target)
        accepted = self.fact(errand, RunnerAccepted(attempt=errand.attempt))
        return Change(facts=(accepted, self.fact(errand, Exited(int(replica in self.bad), attempt=errand.attempt))))


async def jobs(a: Api, ref: str, **query: Any) -> list[Json]:
    answer = await a.admin.get(f"{RUNS}/{ref}/jobs", params={"limit": 500, **query})
    assert answer.status == 200, answer.body
    items: list[Json] = answer.body["items"]
    return items


async def test_an_array_keeps_to_its_max_parallel_and_counts_its_jobs(api: Apis) -> None:
    async with api(exit_code=None) as a:
        await a.host(cpu=8)
        run = await submit(a.admin, name="sweep", replicas=6, max_parallel=2)

        async def two_run() -> bool:
            counts = (await a.admin.get(f"{RUNS}/sweep")).body["counts"]
            return (counts["running"], counts["waiting"], counts["total"]) == (2, 4, 6)

        await eventually(two_run, "two run, four wait")
        why = (await a.admin.get(f"{RUNS}/sweep/why")).body
        assert (why["code"], why["limit"]) == ("max_parallel", "max_parallel")
        assert "4 of its 6 jobs wait, since max_parallel lets 2 replicas" in why["sentence"]
        running = await jobs(a, "sweep", status="RUNNING")
        assert [one["replica"] for one in running] == [0, 1]
        for one in running:
            ended = of_job(JobId(UUID(one["id"])), RunId(UUID(run["id"])), Exited(0, attempt=one["submission"]))
            await a.context.engine.commit(Change(facts=(ended,)))
        await eventually(two_run_of(a, done=2), "the next two run")
        await a.admin.post(f"{RUNS}/sweep/stop", {"abort": True})
        await until(a.admin, "sweep", "TERMINATED")
        counts = (await a.admin.get(f"{RUNS}/sweep")).body["counts"]
        assert (counts["done"], counts["stopped"]) == (2, 4)


def two_run_of(a: Api, done: int) -> Any:
    async def look() -> bool:
        counts = (await a.admin.get(f"{RUNS}/sweep")).body["counts"]
        return (counts["running"], counts["done"]) == (2, done)

    return look


async def test_what_failed_or_was_stopped_is_done_again_under_its_own_number(api: Apis) -> None:
    picky = Picky()
    async with api(agents=picky) as a:
        picky.api, picky.bad = a, {3}
        await a.host()
        old = await submit(a.admin, name="sweep", replicas=5, max_parallel=1)
        await until(a.admin, "sweep", "FAILED")
        assert [one["status"] for one in await jobs(a, "sweep")] == ["DONE", "DONE", "DONE", "FAILED", "TERMINATED"]
        picky.bad = set()
        again = await a.admin.made(f"{RUNS}/sweep/retry", None, key="k")
        assert (again["name"], again["retry_of"], again["counts"]["total"]) == ("sweep", old["id"], 2)
        await until(a.admin, again["id"], "DONE")
        assert [(one["replica"], one["status"]) for one in await jobs(a, "sweep")] == [(3, "DONE"), (4, "DONE")]
        assert (await a.admin.get(f"{RUNS}/{old['id']}")).body["status"] == "FAILED", "an outcome never changes"
        shown = (await a.admin.get(f"{RUNS}/{again['id']}")).body
        assert shown["started_at"] is not None, "its first job is not replica 0"
        repeated = await a.admin.post(f"{RUNS}/sweep/retry", key="k")
        assert (repeated.status, repeated.body["id"]) == (201, again["id"])
        assert repeated.headers["Idempotent-Replayed"] == "true"
        nothing = await a.admin.post(f"{RUNS}/sweep/retry")
        assert (nothing.status, nothing.code) == (409, "nothing_to_retry")


async def test_a_retry_of_a_retry_knows_what_is_still_missing(api: Apis) -> None:
    picky = Picky()
    async with api(agents=picky) as a:
        picky.api = a
        await a.host()
        for bad, left in (({1, 2, 3}, 3), ({2, 3}, 2), ({3}, 1)):
            picky.bad = bad
            if left == 3:
                await submit(a.admin, name="sweep", replicas=4, max_parallel=1)
            else:
                await a.admin.made(f"{RUNS}/sweep/retry", None)
            await until(a.admin, "sweep", "FAILED")
            undone = [one["replica"] for one in await jobs(a, "sweep", latest="true") if one["status"] != "DONE"]
            assert undone == [1, 2, 3][-left:]


async def test_a_retry_that_is_changed_in_place_still_does_only_what_was_not_done(api: Apis) -> None:
    """Somebody retries two of five replicas, and gives them a higher priority by applying the file. When one fails and
    is tried again after the backoff, the three that were done must not be submitted."""
    picky = Picky()
    async with api(agents=picky) as a:
        picky.api, picky.bad = a, {3}
        instance = await a.host()
        said = {"name": "sweep", "replicas": 5, "max_parallel": 1}
        old = await submit(a.admin, **said)
        await until(a.admin, "sweep", "FAILED")
        await a.admin.post(f"/api/projects/main/instances/{instance}/cordon")
        again = await a.admin.made(f"{RUNS}/sweep/retry", None)
        urgent = {"configuration": task(**said, priority=90)}
        plan = (await a.admin.post(f"{RUNS}/plan", urgent)).body
        changed = await a.admin.post(RUNS, urgent | {"expected": plan["expected"]})
        assert (changed.status, changed.body["id"], changed.body["retry_of"]) == (200, again["id"], old["id"])
        async with a.context.database.connection() as connection:
            policy = (await run_store.get(connection, RunId(UUID(again["id"])))).policy
        assert (policy.priority, policy.only, policy.retry_of) == (90, (3, 4), old["id"])


async def test_a_retry_of_a_scheduled_run_stays_a_run_of_one_time(api: Apis) -> None:
    """It was stopped in the middle of its night, and what it did not do is done again once. Whoever then applies the
    file wants the schedule, which cannot come to a run that lives: that is said, and not done by the way."""
    async with api(exit_code=None) as a:
        await a.host()
        said = {"name": "nightly", "schedule": "0 0 1 1 *"}
        await submit(a.admin, **said)
        await a.admin.post(f"{RUNS}/nightly/trigger")
        await until(a.admin, "nightly", "RUNNING")
        await a.admin.post(f"{RUNS}/nightly/stop", {"abort": True})
        await until(a.admin, "nightly", "TERMINATED")
        again = await a.admin.made(f"{RUNS}/nightly/retry", None)
        assert (again["schedule"], "schedule" in again["configuration"]) == (None, False)
        await until(a.admin, "nightly", "RUNNING")
        urgent = {"configuration": task(**said, priority=90)}
        plan = (await a.admin.post(f"{RUNS}/plan", urgent)).body
        assert (plan["action"], plan["refused"]) == ("refuse", ["schedule"])
        once = {"configuration": task(name="nightly", priority=90)}
        plan = (await a.admin.post(f"{RUNS}/plan", once)).body
        changed = await a.admin.post(RUNS, once | {"expected": plan["expected"]})
        assert (changed.status, changed.body["schedule"]) == (200, None)


async def test_who_may_retry_and_when(api: Apis) -> None:
    async with api(exit_code=None) as a:
        await a.host()
        other = await a.user("ada")
        await submit(a.admin, name="mine")
        await until(a.admin, "mine", "RUNNING")
        early = await a.admin.post(f"{RUNS}/mine/retry")
        assert (early.status, early.code) == (409, "not_finished")
        await a.admin.post(f"{RUNS}/mine/stop", {"abort": True})
        await until(a.admin, "mine", "TERMINATED")
        assert (await other.post(f"{RUNS}/mine/retry")).status == 403
        again = await a.admin.made(f"{RUNS}/mine/retry", None)
        assert (again["counts"]["total"], again["jobs"][0]["replica"]) == (1, 0)
        taken = await a.admin.post(f"{RUNS}/{again['retry_of']}/retry")
        assert (taken.status, taken.code) == (409, "name_taken")
        assert (await a.admin.post(f"{RUNS}/nobody/retry")).status == 404


async def test_a_gang_that_no_fleet_could_ever_hold_is_refused_by_the_name_of_the_limit(api: Apis) -> None:
    async with api() as a:
        waits = await submit(a.admin, name="early", nodes=3)
        assert waits["status"] == "SUBMITTED", "where there is no fleet at all, one may come"
        await a.host()
        await a.host()
        body = {"configuration": {"type": "task", "commands": ["true"], "nodes": 3}}
        for path in (RUNS, f"{RUNS}/plan"):
            refused = await a.admin.post(path, body)
            assert (refused.status, refused.code) == (422, "nodes")
            (problem,) = refused.body["error"]["problems"]
            assert problem["key"] == "nodes"
            assert "3 whole instances of one fleet" in problem["message"] and "at most 2" in problem["message"]
        plan = (await a.admin.post(f"{RUNS}/plan", {"configuration": body["configuration"] | {"nodes": 2}})).body
        assert plan["action"] == "create"
        assert len({place["instance"] for place in plan["places"]}) == 2


async def test_a_gang_that_does_not_want_to_wait_fails_at_once_as_a_whole(api: Apis) -> None:
    async with api(exit_code=None) as a:
        await a.host()
        await a.host()
        await submit(a.admin, name="holder")
        await until(a.admin, "holder", "RUNNING")
        await submit(a.admin, name="gang", nodes=2, on_no_capacity="fail")
        await until(a.admin, "gang", "FAILED")
        found = (await a.admin.get(f"{RUNS}/gang")).body
        assert found["status_message"].startswith("there was no room for it")
        assert {one["status"] for one in found["jobs"]} <= {"FAILED", "TERMINATED"}


async def test_an_array_of_ten_thousand_is_accepted_and_cancelled_in_one_breath(api: Apis) -> None:
    """The budget is two seconds each on two idle cores; a busy machine is given more."""
    async with api(exit_code=None) as a:
        await a.host()
        began = time.monotonic()
        run = await submit(a.admin, name="huge", replicas=10_000, max_parallel=4)
        accepted_s = time.monotonic() - began
        assert (run["counts"]["total"], len(run["jobs"])) == (10_000, 100)
        await until(a.admin, "huge", "RUNNING")
        last = await jobs(a, "huge", replica=9_999)
        assert [one["status"] for one in last] == ["SUBMITTED"]
        assert len(await jobs(a, "huge", status="SUBMITTED")) == 500, "a page at a time"
        began = time.monotonic()
        stopped = await a.admin.post(f"{RUNS}/huge/stop", {"abort": True})
        asked_s = time.monotonic() - began
        assert stopped.body["status"] in ("TERMINATING", "TERMINATED")
        await asyncio.wait_for(until(a.admin, "huge", "TERMINATED"), 60)
        cancelled_s = time.monotonic() - began
        assert accepted_s < 20 and asked_s < 10 and cancelled_s < 40, (accepted_s, asked_s, cancelled_s)
