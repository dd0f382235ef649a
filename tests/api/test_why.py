"""What people are told of what could be had and why something waits: the queue, machines, offers, the next try."""

import json
from uuid import uuid4

import pytest

from stoker.core.family import found
from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId, RunId
from stoker.core.offer import Offer, SpotPolicy
from stoker.core.policy import Policy
from stoker.core.resources import Capacity, parse_request
from stoker.engine import outlook
from stoker.engine.change import Change, RunBirth
from stoker.store import project
from stoker.store.run_spec import RunSpec
from stoker.wire.time import moment
from tests.api.conftest import Api, Apis, Json, eventually, task

RUNS = "/api/projects/main/runs"
OFFERS = "/api/projects/main/offers"


class Shop:
    """A merchant that has what a test says."""

    def __init__(self, *offers: Offer) -> None:
        self.shelf = offers

    def offers(self, now: float) -> tuple[Offer, ...]:
        return self.shelf


def machine(name: str, cpu: int, price: float, **more: object) -> Offer:
    return Offer("dummy", name, "eu-1", Capacity(cpu, 8192, 10_000), price, **more)  # type: ignore[arg-type]


async def stock(a: Api, policy: Fleet, *offers: Offer, name: str = "cloud") -> None:
    async with a.context.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO fleet (id, name, spec, created_at, policy) VALUES ($1, $3, '{}', 0, $2)",
            FleetId(uuid4()), json.dumps(policy.to_json()), name,
        )  # fmt: skip
    a.context.engine.merchant = Shop(*offers)


async def why(a: Api, run: str) -> Json:
    answer = await a.admin.get(f"{RUNS}/{run}/why")
    assert answer.status == 200, answer.body
    return answer.body


async def test_who_waits_is_told_their_place_and_what_stands_against_each_offer(api: Apis) -> None:
    async with api(None) as a:
        await a.host(cpu=2)
        await a.admin.made(RUNS, {"configuration": task(name="holder", resources={"cpu": 2})})
        await eventually(lambda: _status(a, "holder", "RUNNING"), "it runs")
        for number in range(3):
            await a.admin.made(RUNS, {"configuration": task(name=f"late-{number}", resources={"cpu": 2})})
        firm = Fleet(backends=("dummy",), spot_policy=SpotPolicy.ON_DEMAND, max_price=2.0)
        now = a.context.engine.clock.now()
        await stock(
            a,
            firm,
            machine("spot", 4, 1.0, spot=True),
            machine("dear", 4, 3.0),
            machine("small", 1, 0.1),
            machine("gone", 4, 1.5, available=0, failures=(now,)),
        )
        told = await why(a, "late-2")
        assert (told["place"], told["waiting"], told["code"]) == (3, 3, "busy")
        assert told["next"] == "as soon as something changes"
        against = {one["offer"].partition(" at")[0]: one["sentence"] for one in told["offers"]}
        assert against == {
            "spot": "the fleet takes no spot machines",
            "dear": "the fleet's max_price is 2, it costs 3",
            "small": "needs 2 CPUs, has 1",
            "gone": "none is available now",
        }
        assert [one["offer"].partition(" at")[0] for one in told["offers"]] == ["small", "spot", "dear", "gone"]
        assert [round(one["penalty"], 1) for one in told["offers"]] == [0, 0, 0, 1.0]
        assert (await why(a, "late-0"))["place"] == 1
        planned = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(resources={"cpu": 2})})).body
        assert planned["action"] == "queue"
        assert (planned["why"]["place"], planned["why"]["waiting"]) == (4, 4)
        assert len(planned["why"]["offers"]) == 4


async def test_replicas_that_wait_are_named(api: Apis) -> None:
    async with api(None) as a:
        await a.host(cpu=2)
        engine = a.context.engine
        async with a.context.database.connection() as connection:
            project_id = (await project.get(connection, "main")).id
        run = found(RunId(engine.new_id()), project_id, "array", Policy(replicas=5), engine.clock.now())
        spec = RunSpec(run.id, project_id, "array", "admin", "task", "{}")
        await engine.commit(Change(runs=(RunBirth(run, parse_request({"cpu": 1}), spec),)))

        async def three_left() -> Json:
            told = await why(a, "array")
            return told if told["replicas_waiting"] == 3 else None

        told = await eventually(three_left, "two of them run")
        assert told["replicas"] == [2, 3, 4]
        assert told["sentence"].startswith("array waits with 3 replicas: needs 1 CPU")
        assert (told["place"], told["waiting"]) == (1, 3)


async def test_one_that_is_tried_again_later_says_when(api: Apis) -> None:
    async with api(None) as a:
        await a.admin.made(RUNS, {"configuration": task(name="again")})
        async with a.context.database.transaction() as tx:
            await tx.execute("UPDATE job SET ready_at = $1", 4102444800.0)
        told = await why(a, "again")
        assert (told["code"], told["next_at"]) == ("later", "2100-01-01T00:00:00Z")
        assert told["sentence"].startswith("again is tried again at 00:00:00 UTC")


async def test_who_is_far_behind_all_that_a_pass_looks_at_is_told_too(
    api: Apis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "MOST_GANGS", 2)
    async with api(None) as a:
        await a.host(cpu=1)
        await a.admin.made(RUNS, {"configuration": task(name="first", resources={"cpu": 1})})
        await eventually(lambda: _status(a, "first", "RUNNING"), "it runs")
        for number in range(4):
            await a.admin.made(RUNS, {"configuration": task(name=f"late-{number}", resources={"cpu": 1})})
        told = await why(a, "late-3")
        assert (told["code"], told["place"], told["waiting"]) == ("busy", 4, 4)


async def test_offers_are_listed_for_a_configuration_and_for_anything(api: Apis) -> None:
    async with api(None) as a:
        await a.host(cpu=2)
        policy = Fleet(backends=("dummy",), spot_policy=SpotPolicy.SPOT)
        await stock(a, policy, machine("big", 16, 4.0, spot=True), machine("small", 2, 1.0, spot=True),
                    machine("firm", 16, 1.0))  # fmt: skip
        everything = (await a.admin.get(OFFERS)).body
        assert [(one["name"], one["fits"]) for one in everything["items"]] == [
            ("small", True), ("big", True), ("firm", False),
        ]  # fmt: skip
        assert everything["items"][0]["fleets"] == ["cloud"]
        assert everything["items"][2]["sentence"] == "the fleet takes only spot machines"
        assert [one["fits"] for one in everything["instances"]] == [True]
        large = {"configuration": task(resources={"cpu": 8})}
        fitting = (await a.admin.post(OFFERS, large)).body
        assert [(one["name"], one["sentence"]) for one in fitting["items"]] == [
            ("big", ""), ("firm", "the fleet takes only spot machines"), ("small", "needs 8 CPUs, has 2"),
        ]  # fmt: skip
        assert (fitting["fitting"], fitting["instances"][0]["sentence"]) == (1, "needs 8 CPUs, has 2")
        short = (await a.admin.post(f"{OFFERS}?limit=1", large)).body
        assert (len(short["items"]), short["more"]) == (1, 2)
        assert (await a.admin.post(OFFERS, {"configuration": {"type": "task"}})).status == 422


async def test_what_the_fleets_of_a_run_have_and_launch_is_all_that_it_is_told_of(api: Apis) -> None:
    """`fleets: [firm]`, which pays little: that another fleet would launch the machine must not give hope."""
    async with api(None) as a:
        await a.host(cpu=2)
        await stock(a, Fleet(backends=("dummy",)), machine("box", 16, 4.0))
        await stock(a, Fleet(backends=("dummy",), max_price=1.0), machine("box", 16, 4.0), name="firm")
        too_dear = "the fleet's max_price is 1, it costs 4"
        wanted = {"configuration": task(name="picky", fleets=["firm"], resources={"cpu": 2})}
        told = (await a.admin.post(OFFERS, wanted)).body
        assert [(one["fits"], one["sentence"], one["fleets"]) for one in told["items"]] == [(False, too_dear, [])]
        assert told["instances"] == [], "the host is in none of its fleets"
        planned = (await a.admin.post(f"{RUNS}/plan", wanted)).body
        assert [one["sentence"] for one in planned["why"]["offers"]] == [too_dear]
        await a.admin.made(RUNS, wanted)
        assert [one["sentence"] for one in (await why(a, "picky"))["offers"]] == [too_dear]
        unknown = await a.admin.post(OFFERS, {"configuration": task(fleets=["nowhere"])})
        assert unknown.status == 422


async def test_while_an_offer_rests_the_next_try_is_told(api: Apis) -> None:
    """The provider has just refused; the placer knows to the second when it asks again."""
    async with api(None) as a:
        at = a.context.engine.clock.now() + 40
        resting = machine("box", 4, 1.0, available=0, failures=(at - 60,), resting_until=at)
        await stock(a, Fleet(backends=("dummy",)), resting, machine("tiny", 1, 1.0, available=0, resting_until=at - 30))
        await a.admin.made(RUNS, {"configuration": task(name="late", resources={"cpu": 2})})
        told = await why(a, "late")
        assert told["next_at"] == moment(at).isoformat().replace("+00:00", "Z")
        assert told["next"] == f"at {moment(at):%H:%M:%S} UTC, or as soon as something changes"
        assert [one["sentence"][:10] for one in told["offers"]] == ["needs 2 CP", "rests for "]
        planned = (await a.admin.post(f"{RUNS}/plan", {"configuration": task(resources={"cpu": 2})})).body
        assert planned["why"]["next_at"] == told["next_at"]


async def _status(a: Api, run: str, status: str) -> bool:
    return bool((await a.admin.get(f"{RUNS}/{run}")).body["status"] == status)
