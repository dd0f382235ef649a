"""Fleets and instances by the API: planned, applied by several people at once, drained, deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId
from stoker.core.instance_facts import Destroy, Silent
from stoker.engine.change import Change, of_instance
from stoker.engine.hint import FLEETS
from tests.api.conftest import Api, Apis, Client, Reply, eventually, task
from tests.engine.test_fleet import SMALL, Shop

MAIN = "/api/projects/main"
Json = Any


def cloud(**fields: Any) -> Json:
    return {"type": "fleet", "name": "cloud", "backends": ["dummy"], "nodes": "0..4", **fields}


@asynccontextmanager
async def with_offers(api: Apis, exit_code: int | None = None) -> AsyncIterator[Api]:
    """A server that knows of one offer, and whose machines come up at once."""
    async with api(exit_code) as one:
        engine, shop = one.context.engine, Shop(SMALL)
        engine.merchant = shop
        engine.placement._merchant = engine.fleets._merchant = shop
        yield one


async def apply(client: Client, configuration: Json, **more: Any) -> Reply:
    return await client.post(f"{MAIN}/fleets", {"configuration": configuration, **more})


async def plan(client: Client, configuration: Json) -> Json:
    answer = await client.post(f"{MAIN}/fleets/plan", {"configuration": configuration})
    assert answer.status == 200, answer.body
    return answer.body


async def instances(one: Api, *statuses: str, finished: bool = False) -> list[Json]:
    """Waits until those of the fleet are so."""

    async def there() -> Any:
        query = f"?fleet=cloud&finished={str(finished).lower()}"
        found = (await one.admin.get(f"{MAIN}/instances{query}")).body["items"]
        return [found] if sorted(each["status"] for each in found) == sorted(statuses) else None

    (found,) = await eventually(there, f"instances are {statuses}")
    return found  # type: ignore[no-any-return]


async def running(one: Api, name: str = "train", **fields: Any) -> Json:
    await one.admin.made(f"{MAIN}/runs", {"configuration": task(name=name, **fields)})

    async def runs() -> Any:
        run = (await one.admin.get(f"{MAIN}/runs/{name}")).body
        return run if run["status"] == "RUNNING" else None

    return await eventually(runs, f"{name} runs")


async def gone(one: Api) -> None:
    async def away() -> bool:
        return (await one.admin.get(f"{MAIN}/fleets/cloud")).status == 404

    await eventually(away, "the fleet is gone")


async def test_a_fleet_is_planned_made_and_filled(api: Apis) -> None:
    async with with_offers(api) as one:
        planned = await plan(one.admin, cloud(nodes=2))
        assert (planned["action"], planned["launches"], planned["expected"]) == ("create", 2, None)
        assert planned["sentence"] == ("Fleet cloud would be made: 2 machines would be launched, small at dummy/north.")
        assert (await one.admin.get(f"{MAIN}/fleets/cloud")).status == 404, "a plan changes nothing"
        made = await apply(one.admin, cloud(nodes=2, tags={"team": "vision"}), expected=None)
        assert (made.status, made.body["version"], made.body["project"]) == (201, 0, "main")
        found = await instances(one, "IDLE", "IDLE")
        assert {each["offer"] for each in found} == {"small"}
        assert {each["location"] for each in found} == {"north"}
        shown = (await one.admin.get(f"{MAIN}/fleets/cloud")).body
        assert (shown["instances"], shown["idle"], shown["price"], shown["message"]) == (2, 2, 2.0, "")
        assert shown["cost"] > 0 and found[0]["cost"] > 0 and found[0]["launched_at"]
        tagged = (await one.admin.get(f"{MAIN}/fleets?tag=team=vision")).body["items"]
        assert [each["name"] for each in tagged] == ["cloud"]
        assert (await one.admin.get(f"{MAIN}/fleets?tag=team=other")).body["items"] == []
        assert (await one.admin.get(f"{MAIN}/fleets?tag=team")).status == 400
        assert (await plan(one.admin, cloud(nodes=2, tags={"team": "vision"})))["action"] == "nothing"


async def test_a_changed_file_changes_the_fleet_in_place(api: Apis) -> None:
    """Fewer nodes, and no longer of this kind: the plan names what would go."""
    async with with_offers(api) as one:
        await apply(one.admin, cloud(nodes=2))
        await instances(one, "IDLE", "IDLE")
        fewer = await plan(one.admin, cloud(nodes=1, idle_duration="10m"))
        assert [(each["key"], each["before"], each["after"]) for each in fewer["changes"]] == [
            ("nodes", "2", "1"),
            ("idle_duration", "5m", "10m"),
        ]
        assert [each["reason"] for each in fewer["leaving"]] == ["the fleet has more than its maximum of 1 nodes"]
        assert "1 machine would go" in fewer["sentence"]
        done = await apply(one.admin, cloud(nodes=1, idle_duration="10m"), expected=fewer["expected"])
        assert (done.status, done.body["version"]) == (200, 1)
        await instances(one, "IDLE")
        await running(one)
        other = await plan(one.admin, cloud(nodes="0..2", max_price=0.5))
        assert [(each["reason"], each["busy"]) for each in other["leaving"]] == [
            ("the fleet's max_price is 0.5, it costs 1", True)
        ]
        await apply(one.admin, cloud(nodes="0..2", max_price=0.5))
        await instances(one, "BUSY")
        await one.admin.post(f"{MAIN}/runs/train/stop")
        await instances(one)


async def test_of_two_who_apply_at_once_one_wins_and_the_other_is_told_what_changed(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud())
        ada, bob = await one.user("ada", "manager"), await one.user("bob", "manager")
        wishes = [(ada, cloud(nodes="0..6")), (bob, cloud(nodes="0..8"))]
        seen = [await plan(who, wish) for who, wish in wishes]
        answers = await asyncio.gather(
            *(apply(who, wish, expected=told["expected"]) for (who, wish), told in zip(wishes, seen, strict=True))
        )
        assert sorted(answer.status for answer in answers) == [200, 409]
        winner = "ada" if answers[0].status == 200 else "bob"
        lost = next(answer for answer in answers if answer.status == 409)
        assert lost.code == "changed"
        after = "0..6" if winner == "ada" else "0..8"
        assert f"{winner} nodes: 0..4 → {after}" in lost.body["error"]["message"]
        shown = (await one.admin.get(f"{MAIN}/fleets/cloud")).body
        assert (shown["spec"]["nodes"], shown["version"]) == (after, 1)


async def test_of_two_who_make_it_at_once_one_does(api: Apis) -> None:
    async with with_offers(api) as one:
        answers = await asyncio.gather(
            apply(one.admin, cloud(nodes="0..6"), expected=None), apply(one.admin, cloud(nodes="0..8"), expected=None)
        )
        assert sorted(answer.status for answer in answers) == [201, 409]
        same = await asyncio.gather(*(apply(one.admin, cloud(name="same"), expected=None) for _ in range(2)))
        assert sorted(answer.status for answer in same) == [200, 201], "the same file twice is one fleet"


async def test_somebody_who_says_nothing_of_what_they_saw_changes_what_is_there(api: Apis) -> None:
    async with with_offers(api) as one:
        assert (await apply(one.admin, cloud())).status == 201
        assert (await apply(one.admin, cloud(nodes="0..2"))).status == 200
        gone_since = {"id": (await one.admin.get(f"{MAIN}/fleets/cloud")).body["id"], "version": 1}
        assert (await one.admin.delete(f"{MAIN}/fleets/cloud")).status == 200
        await gone(one)
        assert (await apply(one.admin, cloud(), expected=gone_since)).code == "changed"


async def test_deleting_asks_for_force_while_jobs_run(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud(nodes=1))
        await instances(one, "IDLE")
        await running(one)
        refused = await one.admin.delete(f"{MAIN}/fleets/cloud")
        assert (refused.status, refused.code) == (409, "busy")
        assert "Jobs are on 1 instance of fleet cloud: dummy-" in refused.body["error"]["message"]
        forced = await one.admin.delete(f"{MAIN}/fleets/cloud?force=true")
        assert forced.body["status"] == "DELETING"
        await gone(one)
        await instances(one, "TERMINATED", finished=True)
        assert (await one.admin.get(f"{MAIN}/runs/train/wait")).body["status"] in ("FAILED", "TERMINATED")
        assert (await apply(one.admin, cloud(), expected=None)).status == 201, "its name is free again"


async def test_a_fleet_deleted_while_it_grows_leaves_nothing(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud(nodes=4))
        assert (await one.admin.delete(f"{MAIN}/fleets/cloud")).status == 200
        again = await one.admin.delete(f"{MAIN}/fleets/cloud")
        assert again.status in (200, 404), "said twice"
        await gone(one)
        left = (await one.admin.get(f"{MAIN}/instances")).body["items"]
        assert left == []


async def test_a_run_that_waits_for_a_fleet_which_is_deleted_is_told_so(api: Apis) -> None:
    async with with_offers(api) as one:
        await one.host()
        await apply(one.admin, cloud(nodes="0..1", resources={"cpu": "..1"}))
        refused = await one.admin.post(f"{MAIN}/runs", {"configuration": task(fleets=["clod"])})
        assert (refused.status, refused.body["error"]["hint"]) == (422, "Did you mean cloud?")
        refused = await one.admin.post(f"{MAIN}/runs/plan", {"configuration": task(fleets=["clod"])})
        assert "there is no fleet clod" in refused.body["error"]["message"]
        await one.admin.made(f"{MAIN}/runs", {"configuration": task(name="picky", fleets=["cloud"])})
        why = (await one.admin.get(f"{MAIN}/runs/picky/why")).body
        assert "is not launched: the fleet is made of other machines" in why["sentence"]
        await one.admin.delete(f"{MAIN}/fleets/cloud")
        await gone(one)
        why = (await one.admin.get(f"{MAIN}/runs/picky/why")).body
        assert why["code"] == "no_fleet"
        assert why["sentence"] == "picky waits: fleet cloud is not there any more, and it may use no other."


async def test_what_may_be_changed_by_whom(api: Apis) -> None:
    """Members look and plan; managers change what is the project's; what serves all is the server's admins'."""
    async with with_offers(api) as one:
        shared = await one.host()
        await apply(one.admin, cloud(nodes=1))
        (mine,) = await instances(one, "IDLE")
        user, manager = await one.user("ada"), await one.user("max", "manager")
        assert (await plan(user, cloud(nodes=2)))["action"] == "update"
        assert (await apply(user, cloud(nodes=2))).status == 403
        assert (await user.delete(f"{MAIN}/fleets/cloud")).status == 403
        for act in ("cordon", "uncordon", "drain"):
            assert (await user.post(f"{MAIN}/instances/{mine['id']}/{act}")).status == 403
            assert (await manager.post(f"{MAIN}/instances/{shared}/{act}")).status == 403
        assert (await user.delete(f"{MAIN}/instances/{mine['id']}")).status == 403
        assert (await manager.post(f"{MAIN}/instances/{mine['id']}/cordon")).body["cordoned"]
        assert (await one.admin.post(f"{MAIN}/instances/{shared}/cordon")).body["cordoned"]
        local = {"type": "fleet", "name": "local", "backends": ["local"]}
        assert (await apply(one.admin, local)).code == "no_local"


async def test_cordon_and_uncordon_are_said_twice_without_harm(api: Apis) -> None:
    async with with_offers(api) as one:
        id = await one.host()
        for _ in range(2):
            assert (await one.admin.post(f"{MAIN}/instances/{id}/cordon")).body["cordoned"]
        await one.admin.made(f"{MAIN}/runs", {"configuration": task(name="waits")})
        why = (await one.admin.get(f"{MAIN}/runs/waits/why")).body
        assert why["code"] == "barred" and "cordoned" in why["sentence"]
        for _ in range(2):
            assert not (await one.admin.post(f"{MAIN}/instances/{id}/uncordon")).body["cordoned"]

        async def runs() -> bool:
            return bool((await one.admin.get(f"{MAIN}/runs/waits")).body["status"] == "RUNNING")

        await eventually(runs, "it is placed")
        shown = (await one.admin.get(f"{MAIN}/instances/{id}")).body
        assert [(job["run"], job["status"]) for job in shown["tenants"]] == [("waits", "RUNNING")]
        notes = await _journal(one, id)
        assert ("CordonAsked", "cordoned", "admin") in notes and ("CordonAsked", "open again", "admin") in notes


async def _journal(one: Api, id: str) -> list[tuple[str, str, str]]:
    async with one.context.database.connection() as connection:
        rows = await connection.fetch("SELECT event, note, by FROM journal WHERE id = $1 ORDER BY seq", id)
    return [tuple(row) for row in rows]


async def test_cordon_while_a_job_is_being_placed(api: Apis) -> None:
    """Many are placed at the moment in which somebody cordons it: each is on it or waits, and none is lost."""
    async with with_offers(api) as one:
        id = await one.host(cpu=16)
        bodies = [{"configuration": task(name=f"r{n}", resources={"cpu": 1})} for n in range(12)]
        answers = await asyncio.gather(
            *(one.admin.post(f"{MAIN}/runs", body) for body in bodies[:6]),
            one.admin.post(f"{MAIN}/instances/{id}/cordon"),
            *(one.admin.post(f"{MAIN}/runs", body) for body in bodies[6:]),
        )
        assert all(answer.status in (200, 201) for answer in answers)

        async def settled() -> Any:
            listed = (await one.admin.get(f"{MAIN}/runs?limit=50")).body["items"]
            states = {each["status"] for each in listed}
            return len(listed) == 12 and states <= {"RUNNING", "SUBMITTED"} and listed

        listed = await eventually(settled, "each runs or waits")
        on_it = (await one.admin.get(f"{MAIN}/instances/{id}")).body["jobs"]
        assert on_it == sum(each["status"] == "RUNNING" for each in listed)
        await one.admin.post(f"{MAIN}/instances/{id}/uncordon")

        async def all_run() -> bool:
            return (await one.admin.get(f"{MAIN}/instances/{id}")).body["jobs"] == 12  # type: ignore[no-any-return]

        await eventually(all_run, "those that waited run")


async def test_a_drain_that_empties(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud())
        await running(one)
        (busy,) = await instances(one, "BUSY")
        drained = (await one.admin.post(f"{MAIN}/instances/{busy['name']}/drain", {"deadline": "off"})).body
        assert (drained["status"], drained["cordoned"], drained["draining_until"]) == ("BUSY", True, None)
        drained = (await one.admin.post(f"{MAIN}/instances/{busy['name']}/drain", {"deadline": "10m"})).body
        assert drained["draining_until"] is not None
        await one.admin.post(f"{MAIN}/runs/train/stop")
        (ended,) = await instances(one, "TERMINATED", finished=True)
        assert ended["ended_at"] is not None and ended["message"] == "drained"
        cost = ended["cost"]
        assert (await one.admin.get(f"{MAIN}/instances/{ended['id']}")).body["cost"] == cost, "it costs no more"
        fleet = (await one.admin.get(f"{MAIN}/fleets/cloud")).body
        assert cost > 0 and (fleet["price"], fleet["cost"]) == (0, cost), "what was paid for it was paid"
        assert ("DrainAsked", "draining", "admin") in await _journal(one, ended["id"])


async def test_a_drain_whose_deadline_comes_interrupts_what_runs(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud())
        await running(one)
        (busy,) = await instances(one, "BUSY")
        await one.admin.post(f"{MAIN}/instances/{busy['id']}/drain", {"deadline": 0.2})
        run = (await one.admin.get(f"{MAIN}/runs/train/wait")).body
        assert run["jobs"][0]["termination_reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        await instances(one, "TERMINATED", finished=True)
        assert (await one.admin.post(f"{MAIN}/instances/{busy['id']}/drain")).status == 200, "said again, it is gone"


async def test_a_server_that_restarts_in_the_middle_of_a_drain_keeps_its_deadline(api: Apis, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with api(None, home=home) as first:
        id = await first.host()
        await running(first)
        at = (await first.admin.post(f"{MAIN}/instances/{id}/drain", {"deadline": 3})).body["draining_until"]
        url = first.context.database.url
        await first.context.engine.stop()
        async with api(None, url=url, home=tmp_path / "second") as second:
            client = second.admin.speaking_as(first.admin.token)
            shown = (await client.get(f"{MAIN}/instances/{id}")).body
            assert (shown["draining_until"], shown["cordoned"], shown["status"]) == (at, True, "BUSY")

            async def left() -> bool:
                return (await client.get(f"{MAIN}/instances/{id}")).body["status"] == "TERMINATED"  # type: ignore[no-any-return]

            await eventually(left, "the deadline has come")


async def test_deleting_an_instance(api: Apis) -> None:
    async with with_offers(api) as one:
        await apply(one.admin, cloud())
        await running(one)
        (busy,) = await instances(one, "BUSY")
        refused = await one.admin.delete(f"{MAIN}/instances/{busy['name']}")
        assert (refused.status, refused.code) == (409, "busy")
        assert (await one.admin.delete(f"{MAIN}/instances/{busy['name']}?force=true")).status == 200
        await instances(one, "TERMINATED", finished=True)
        assert (await one.admin.delete(f"{MAIN}/instances/{busy['id']}")).body["status"] == "TERMINATED"
        assert (await one.admin.delete(f"{MAIN}/instances/nobody-000000")).status == 404


async def test_a_lost_host_of_the_users_is_taken_for_gone_when_that_is_forced(api: Apis) -> None:
    """Nobody can look any more whether something of ours is left there."""
    async with with_offers(api) as one:
        id = await one.host()

        async def never(errand: Any, effect: Any) -> Change:
            raise Unavailable("It is out of reach.")

        errands = one.context.engine.errands
        errands._performers = {**errands._performers, Destroy: never}
        await one.context.engine.commit(Change(facts=(of_instance(InstanceId(UUID(id)), Silent()),)))
        assert (await one.admin.delete(f"{MAIN}/instances/{id}")).body["status"] == "TERMINATING"
        assert (await one.admin.delete(f"{MAIN}/instances/{id}")).body["status"] == "TERMINATING"
        assert (await one.admin.delete(f"{MAIN}/instances/{id}?force=true")).body["status"] == "TERMINATED"


async def test_a_fleet_without_an_offer_says_what_it_lacks(api: Apis) -> None:
    async with with_offers(api) as one:
        planned = await plan(one.admin, cloud(nodes=2, max_price=0.5))
        assert "nothing that fits is on offer now" in planned["sentence"]
        made = await apply(one.admin, cloud(nodes=2, max_price=0.5))
        assert made.body["message"] == "0 of 2 nodes"
        one.context.engine.wake(FLEETS)
        await instances(one)


async def test_what_is_wrong_with_a_fleet_is_said_with_its_key(api: Apis) -> None:
    async with with_offers(api) as one:
        wrong = await one.admin.post(f"{MAIN}/fleets", {"configuration": cloud(nods=3)})
        assert wrong.status == 422
        assert wrong.body["error"]["problems"][0]["key"] == "configuration.nods"
        assert wrong.body["error"]["problems"][0]["hint"] == "Did you mean nodes?"
        schema = await one.admin.speaking_as("").get("/api/schema/fleet")
        assert (schema.status, schema.body["title"]) == (200, "Stoker fleet")
        near = await one.admin.get(f"{MAIN}/fleets/clowd")
        assert near.status == 404
