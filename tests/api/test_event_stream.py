"""What is told of a whole project: by filter, to whom it may be told, exactly once, and not behind a hole."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId
from stoker.core.instance_facts import CordonAsked
from stoker.engine.change import Change, of_instance
from stoker.engine.retention import Retention
from stoker.store import fleet as fleet_store
from stoker.store import journal
from stoker.store.bundle import Bundle
from stoker.store.database import Connection
from stoker.store.journal import Entry
from tests.api.conftest import Api, Apis, Client, Json, eventually, task
from tests.engine.test_engine import host

EVENTS = "/api/projects/main/events"
RUNS = "/api/projects/main/runs"


async def listed(client: Client, query: str = "", path: str = EVENTS) -> list[Json]:
    answer = await client.get(f"{path}?limit=500{query}")
    assert answer.status == 200, answer.body
    items: list[Json] = answer.body["items"]
    return items


async def fleet_of(a: Api, name: str, project: str | None) -> FleetId:
    async with a.context.database.transaction() as tx:
        id = await tx.fetchval("SELECT id FROM project WHERE name = $1", project) if project else None
        made, _ = await fleet_store.ensure(tx, FleetId(uuid4()), name, id, "{}", Fleet(), a.context.engine.clock.now())
        return made


async def entry(tx: Connection, project_id: UUID, note: str) -> None:
    """As a commit writes it; the run need not be there."""
    bundle, id = Bundle(), uuid4()
    journal.append(bundle, [Entry("run", id, id, "Created", None, "SUBMITTED", note, "", project_id)], 1.0)
    await bundle.write(tx)


async def project_id_of(a: Api) -> UUID:
    async with a.context.database.connection() as connection:
        id: UUID = await connection.fetchval("SELECT id FROM project WHERE name = 'main'")
    return id


async def test_events_are_found_by_thing_by_person_and_by_time(api: Apis) -> None:
    async with api() as a:
        ada = await a.user("ada")
        instance = await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="first")})
        await a.admin.get(f"{RUNS}/first/wait?timeout_s=20")
        between = datetime.fromtimestamp(a.context.engine.clock.now(), UTC).isoformat().replace("+00:00", "Z")
        await ada.made(RUNS, {"configuration": task(name="second")})
        await a.admin.get(f"{RUNS}/second/wait?timeout_s=20")
        whole = await listed(a.admin)
        assert [one["seq"] for one in whole] == sorted({one["seq"] for one in whole})
        assert {one["kind"] for one in whole} == {"run", "job", "instance"}
        assert {one["name"] for one in whole if one["kind"] == "job"} == {"first/0-0", "second/0-0"}
        assert await listed(a.admin, "&run=first") == [one for one in whole if one["run"] == "first"]
        assert await listed(a.admin, f"&instance={instance}") == [one for one in whole if one["id"] == instance]
        assert await listed(a.admin, "&by=ada") == [one for one in whole if one["by"] == "ada"] != []
        assert await listed(a.admin, "&by=server") == [one for one in whole if one["by"] == ""] != []
        later = await listed(a.admin, f"&since={between}")
        assert later + await listed(a.admin, f"&until={between}") != []
        assert await listed(a.admin, f"&until={between}") + later == whole
        assert {one["run"] for one in later} == {"second", None}
        assert await listed(a.admin, f"&by=ada&run=second&since={between}") == await listed(a.admin, "&by=ada")
        for wrong in ("run=nobody", "instance=nobody", "fleet=nobody"):
            assert (await a.admin.get(f"{EVENTS}?{wrong}")).status == 404
        assert (await a.admin.get(f"{EVENTS}?run=first&fleet=x")).code == "events_filter"
        assert (await a.admin.get(f"{EVENTS}?since={between}&until=2020-01-01T00:00:00Z")).code == "events_filter"


async def test_machines_are_told_of_to_those_who_may_see_them(api: Apis) -> None:
    """A fleet of one project, one for all, and a host that nobody put into a fleet."""
    async with api() as a:
        await a.admin.made("/api/projects", {"name": "other"})
        engine = a.context.engine
        ours, everybodys = await fleet_of(a, "ours", "main"), await fleet_of(a, "pool", None)
        machines = {name: replace(host(engine), fleet_id=id) for name, id in
                    {"ours": ours, "pool": everybodys, "": None}.items()}  # fmt: skip
        await engine.commit(Change(instances=tuple(machines.values())))
        await engine.commit(Change(facts=(of_instance(machines["ours"].id, CordonAsked(by="ada")),)))
        seen = await listed(a.admin)
        assert {one["fleet"] for one in seen} == {"ours", "pool", None}
        assert {one["id"] for one in await listed(a.admin, "&fleet=ours")} == {str(machines["ours"].id)}
        assert {one["id"] for one in await listed(a.admin, "&by=ada")} == {str(machines["ours"].id)}
        elsewhere = await listed(a.admin, path="/api/projects/other/events")
        assert {one["fleet"] for one in elsewhere} == {"pool", None}
        for hidden in (f"instance={machines['ours'].id}", "fleet=ours"):
            assert (await a.admin.get(f"/api/projects/other/events?{hidden}")).status == 404
            stranger = a.admin.speaking_as("no token")
            assert (await stranger.get(f"{EVENTS}?{hidden}")).status == 401


async def test_what_commits_out_of_order_is_told_in_order_and_nothing_is_missed(api: Apis) -> None:
    """A commit takes long and has lower numbers than one that is done already."""
    async with api() as a:
        project_id, told = await project_id_of(a), list[str]()

        async def follow() -> None:
            async for _, _, data in a.admin.events(f"{EVENTS}/follow"):
                if data:
                    told.append(json.loads(data)["message"])

        following = asyncio.ensure_future(follow())
        database = a.context.database

        async def said(*notes: str) -> bool:
            a.context.runs.close()  # rings every bell, as a commit does
            return told == list(notes)

        await eventually(lambda: _streams(a), "it is followed")
        async with database.transaction() as slow:
            await entry(slow, project_id, "slow")
            async with database.transaction() as quick:
                await entry(quick, project_id, "quick")
            async with database.transaction() as quick:
                await entry(quick, project_id, "later")
            page = await a.admin.get(f"{EVENTS}?limit=500")
            assert [one["message"] for one in page.body["items"]][-2:] == ["quick", "later"], "they can be seen"
            assert not await said("quick", "later")
        await eventually(lambda: said("slow", "quick", "later"), "all of them")
        following.cancel()


async def _streams(a: Api) -> bool:
    return a.context.streams > 0


async def test_who_is_cut_off_again_and_again_hears_each_event_once(api: Apis) -> None:
    """Under load: runs come from several people at once, and the connection breaks after every few events."""
    async with api() as a:
        await a.host(cpu=8)
        told: list[int] = []
        place = str((await a.admin.get(f"{EVENTS}?limit=500")).body["items"][-1]["seq"])

        async def follow() -> None:
            nonlocal place
            while True:
                few = 0
                async for id, _, data in a.admin.events(f"{EVENTS}/follow", headers={"Last-Event-ID": place}):
                    place = id or place
                    if data:
                        told.append(json.loads(data)["seq"])
                        few += 1
                    if few == 7:
                        break

        begun = int(place)
        following = asyncio.ensure_future(follow())

        async def submit(person: int) -> None:
            for number in range(8):
                name = f"r{person}-{number}"
                await a.admin.made(RUNS, {"configuration": task(name=name)})
                await a.admin.get(f"{RUNS}/{name}/wait?timeout_s=20")

        await asyncio.gather(*map(submit, range(6)))
        async with a.context.database.connection() as connection:
            rows = await connection.fetch("SELECT seq FROM journal WHERE seq > $1 ORDER BY seq", begun)
        there = [row["seq"] for row in rows]

        async def all_told() -> bool:
            return len(told) >= len(there)

        await eventually(all_told, "everything was told")
        assert told[: len(there)] == there
        assert len(there) > 6 * 8 * 5
        following.cancel()


async def test_a_place_that_is_older_than_what_is_kept_is_told_so(api: Apis) -> None:
    """Somebody comes back after months: what was between must not be passed over in silence."""
    async with api() as a:
        await a.host()
        await a.admin.made(RUNS, {"configuration": task(name="train")})
        await a.admin.get(f"{RUNS}/train/wait?timeout_s=20")
        first, *_, last = (one["seq"] for one in await listed(a.admin))
        engine = a.context.engine
        async with a.context.database.transaction() as tx:
            await tx.execute("UPDATE journal SET at = $1 WHERE seq < $2", engine.clock.now() - 1000.0, last)
        await Retention(a.context.database, engine.clock, kept_s=900.0).once()
        answer = await a.admin.get(f"{EVENTS}?cursor={first}")
        assert (answer.status, answer.code) == (410, "gone")
        assert f"from number {last} on" in answer.body["error"]["message"]
        assert (await a.admin.get(f"{RUNS}/train/events?cursor={first}")).status == 410
        for path in (EVENTS, f"{RUNS}/train/events"):
            heard = [(name, data) async for _, name, data in a.admin.events(f"{path}/follow?after={first}") if data]
            assert [name for name, _ in heard] == ["gone"]
            assert json.loads(heard[0][1])["error"]["code"] == "gone"
        assert [one["seq"] for one in await listed(a.admin)] == [last], "who begins anew is told what is left"
        assert (await a.admin.get(f"{EVENTS}?cursor={last - 1}")).status == 200
