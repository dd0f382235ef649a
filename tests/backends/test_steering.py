"""The dummy backend through the API: seen and steered while it runs."""

from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import UserError
from stoker.server import backends
from tests.backends.conftest import Town, Towns


async def offers(town: Town) -> dict[tuple[str, bool], dict[str, Any]]:
    answer = await town.admin.get("/api/dummy/offers")
    assert answer.status == 200, answer.body
    return {(one["location"], one["spot"]): one for one in answer.body["items"]}


async def machines(town: Town) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await town.admin.get("/api/dummy/machines")).body["items"]
    return found


async def test_offers_are_shown_changed_in_part_and_reset(town: Towns) -> None:
    async with town(spot_price=0.2, locations=["north", "south"], capacity=3, preempt_after="1h") as one:
        before = await offers(one)
        assert len(before) == 4
        north = before["north", True]
        assert (north["price"], north["capacity"], north["preempt_after"], north["lie"]) == (0.2, 3, "1h", "none")
        assert before["north", False]["preempt_after"] == "off"
        path = "/api/dummy/offers/box?location=north&spot=true"
        changed = await one.admin.ask("PATCH", path, {"capacity": None, "launch_delay": "90s", "price": 5})
        assert changed.status == 200, changed.body
        assert [(o["capacity"], o["launch_delay"], o["price"]) for o in changed.body["items"]] == [(None, "1m30s", 5.0)]
        after = await offers(one)
        assert {key for key in after if after[key] != before[key]} == {("north", True)}
        assert (await one.admin.delete("/api/dummy/changes")).status == 204
        assert await offers(one) == before


@pytest.mark.parametrize(
    ("name", "body", "code", "said"),
    [
        ("bx", {"capacity": 1}, "not_found", "no such offer"),
        ("box", {"capacty": 1}, "invalid", "no such key"),
        ("box", {"capacity": -1}, "invalid", "at least 0"),
        ("box", {"launch_delay": "soon"}, "invalid", "length of time"),
        ("box", {"price": None}, "invalid", "expected a value"),
        ("box", {"lie": "cheat"}, "invalid", "expected 'none'"),
    ],
)
async def test_what_cannot_be_is_refused_with_what_to_write(
    town: Towns, name: str, body: dict[str, Any], code: str, said: str
) -> None:
    async with town() as one:
        answer = await one.admin.ask("PATCH", f"/api/dummy/offers/{name}", body)
        assert (answer.status, answer.code) == (404 if code == "not_found" else 422, code)
        assert said in answer.body["error"]["message"]


async def test_machines_are_shown_and_preempted_by_name_through_the_api(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000")
        await one.job(run, "RUNNING")
        (machine,) = await machines(one)
        assert (machine["status"], machine["offer"], machine["tasks"], machine["real"]) == ("up", "box", 1, False)
        path = f"/api/dummy/machines/{machine['name']}"
        assert (await one.admin.post(f"{path}/hang")).status == 204
        assert [each["status"] for each in await machines(one)] == ["hanging"]
        assert (await one.admin.post(f"{path}/resume")).status == 204
        assert (await one.admin.post(f"{path}/preempt", {"notice": "30s"})).status == 204
        job = await one.job(run, "FAILED")
        assert job["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        await one.empty()
        missing = await one.admin.post(f"{path}/vanish")
        assert (missing.status, missing.code) == (404, "not_found")


async def test_a_machine_vanishes_through_the_api(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        assert (await one.admin.post(f"/api/dummy/machines/{job['instance_id']}/vanish")).status == 204
        assert await machines(one) == []
        await one.job(run, "FAILED")


async def test_a_server_does_not_start_with_a_file_that_is_wrong(home: Path) -> None:
    (home / "backends.yml").write_text("dummy:\n  offers:\n    - {name: box, cpu: 2, memry: 4GB}\n")
    with pytest.raises(UserError, match=r"backends.yml: line 3: .*memry: there is no such key") as refused:
        backends.build(home)
    assert refused.value.hint == "Did you mean memory?"
    assert not (home / "dummy").exists()
