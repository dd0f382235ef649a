"""Volumes by the API: made once however often it is said, had by one, deleted when nobody wants them."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, JobId, RunId, VolumeId
from stoker.core.instance_facts import Gone
from stoker.core.job_facts import CleanedUp, Cleanup, DetachVolumes
from stoker.core.machine import Event
from stoker.core.volume_facts import MakeVolume, Provisioned, ProvisionFailed, Removed, RemoveVolume
from stoker.engine.change import Change, of_instance, of_job, of_volume
from stoker.store.outbox import Errand
from tests.api.conftest import Api, Apis, Client, Reply, eventually, task
from tests.engine.test_engine import Agents

MAIN = "/api/projects/main"
Json = Any


class Hosts(Agents):
    """Whose volumes are there at once, unless they are told otherwise."""

    def __init__(self, exit_code: int | None = 0) -> None:
        super().__init__(exit_code)
        self.slow = self.stuck = self.broken = False
        self.forced: list[bool] = []

    def performers(self) -> dict[Any, Any]:
        more = {MakeVolume: self.make, RemoveVolume: self.remove, DetachVolumes: self.detach}
        return super().performers() | more

    async def make(self, errand: Errand, effect: MakeVolume) -> Change:
        if self.slow:
            raise Unavailable("The provider is slow.", retry_after_s=0.05)
        return self.said(errand, ProvisionFailed("The disk is full.") if self.broken else Provisioned())

    async def remove(self, errand: Errand, effect: RemoveVolume) -> Change:
        if self.slow:
            raise Unavailable("The provider is slow.", retry_after_s=0.05)
        return self.said(errand, Removed())

    async def detach(self, errand: Errand, effect: DetachVolumes) -> Change:
        if self.stuck:
            raise Unavailable("Volume data cannot be unmounted: process 7 (sh) uses it.", retry_after_s=0.05)
        cleaned = CleanedUp(Cleanup.DETACH, attempt=errand.attempt)
        return Change(facts=(of_job(JobId(errand.target), RunId(errand.family), cleaned),))

    @staticmethod
    def said(errand: Errand, event: Event) -> Change:
        return Change(facts=(of_volume(VolumeId(errand.target), event),))


def data(**fields: Any) -> Json:
    return {"type": "volume", "name": "data", **fields}


async def apply(client: Client, configuration: Json, **more: Any) -> Reply:
    return await client.post(f"{MAIN}/volumes", {"configuration": configuration, **more})


async def made(one: Api, **fields: Any) -> Json:
    assert (await apply(one.admin, data(**fields))).status == 201
    return await status(one, "ACTIVE")


async def status(one: Api, wanted: str, name: str = "data") -> Json:
    async def there() -> Any:
        found = (await one.admin.get(f"{MAIN}/volumes/{name}")).body
        return found if found.get("status") == wanted else None

    return await eventually(there, f"volume {name} is {wanted}")


async def run(one: Api, name: str, *, wait: str = "RUNNING", **fields: Any) -> Json:
    fields = {"volumes": ["data:/data"], **fields}
    await one.admin.made(f"{MAIN}/runs", {"configuration": task(name=name, **fields)})
    return await reaches(one, name, wait)


async def reaches(one: Api, name: str, wanted: str) -> Json:
    async def there() -> Any:
        found = (await one.admin.get(f"{MAIN}/runs/{name}")).body
        return found if found["status"] == wanted else None

    return await eventually(there, f"run {name} is {wanted}")


async def refused(client: Client, **fields: Any) -> Json:
    answer = await client.post(f"{MAIN}/runs", {"configuration": task(**fields)})
    assert answer.status in (403, 422), answer.body
    return answer.body["error"]


async def why(one: Api, name: str) -> Json:
    return (await one.admin.get(f"{MAIN}/runs/{name}/why")).body


async def test_a_volume_from_its_plan_to_its_end(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        planned = (await one.admin.post(f"{MAIN}/volumes/plan", {"configuration": data()})).body
        assert (planned["action"], planned["expected"]) == ("create", None)
        assert planned["sentence"] == "Volume data would be made where its first job lands."
        assert (await one.admin.get(f"{MAIN}/volumes/data")).status == 404, "a plan changes nothing"
        first = await made(one)
        assert (first["kind"], first["exclusive"], first["instance_name"]) == ("local", False, "")
        again = await apply(one.admin, data())
        assert (again.status, again.body["id"]) == (200, first["id"])
        assert [each["name"] for each in (await one.admin.get(f"{MAIN}/volumes")).body["items"]] == ["data"]
        assert (await one.admin.delete(f"{MAIN}/volumes/data")).status == 200
        gone = await status(one, "DELETED")
        assert (await one.admin.get(f"{MAIN}/volumes")).body["items"] == []
        assert (await made(one))["id"] != gone["id"], "its name is free again"
        events = (await one.admin.get(f"{MAIN}/events?limit=100")).body["items"]
        told = [(each["name"], each["event"], each["by"]) for each in events if each["kind"] == "volume"]
        assert told[:4] == [
            ("data", "Created", "admin"), ("data", "Provisioned", ""), ("data", "DeleteAsked", "admin"),
            ("data", "Removed", ""),
        ]  # fmt: skip


async def test_what_it_is_made_of_never_changes_and_its_tags_do(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        first = await made(one, size="1GB")
        other = await apply(one.admin, data(size="2GB", exclusive=True))
        assert (other.status, other.code) == (409, "name_taken")
        assert "size and exclusive cannot change" in other.body["error"]["message"]
        assert (await apply(one.admin, data(size="1024MB"))).status == 200, "the same, written otherwise"
        expected = {"id": first["id"], "version": first["version"]}
        tagged = await apply(one.admin, data(size="1GB", tags={"team": "vision"}), expected=expected)
        assert (tagged.status, tagged.body["spec"]["tags"]) == (200, {"team": "vision"})
        late = await apply(one.admin, data(size="1GB", tags={"team": "audio"}), expected=expected)
        assert (late.status, late.code) == (409, "changed"), "somebody was faster"


async def test_of_two_who_make_one_at_once_both_get_the_same_one(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        answers = await asyncio.gather(*(apply(one.admin, data()) for _ in range(6)))
        assert {answer.status for answer in answers} <= {200, 201, 409}
        assert sum(answer.status == 201 for answer in answers) == 1
        assert all(answer.code == "name_taken" for answer in answers if answer.status == 409)
        assert len((await one.admin.get(f"{MAIN}/volumes")).body["items"]) == 1


async def test_a_run_with_an_unknown_volume_is_refused_with_the_nearest_name(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        await made(one)
        error = await refused(one.admin, volumes=["dat:/data"])
        assert (error["message"], error["hint"]) == ("volumes: there is no volume dat.", "Did you mean data?")
        twice = await refused(one.admin, volumes=["data:/a", "data:/b"])
        assert "volume data is mounted more than once" in twice["message"]


async def test_a_run_with_a_volume_that_is_going_or_has_failed_is_refused(api: Apis) -> None:
    hosts = Hosts()
    async with api(agents=hosts) as one:
        await made(one)
        hosts.slow = True
        await one.admin.delete(f"{MAIN}/volumes/data")
        assert "volume data is being deleted" in (await refused(one.admin, volumes=["data:/data"]))["message"]
        assert (await apply(one.admin, data())).code == "deleting"
        troubled = await eventually(lambda: _message(one, "The provider is slow."), "its trouble is shown")
        assert troubled["status"] == "DELETING"
        hosts.slow, hosts.broken = False, True
        await status(one, "DELETED")
        await apply(one.admin, data())
        failed = await status(one, "FAILED")
        assert failed["message"] == "The disk is full."
        assert "has failed: The disk is full" in (await refused(one.admin, volumes=["data:/data"]))["message"]


async def _message(one: Api, wanted: str) -> Any:
    found = (await one.admin.get(f"{MAIN}/volumes/data")).body
    return found if found["message"] == wanted else None


async def test_one_that_a_run_wants_is_not_deleted_and_the_run_is_named(api: Apis) -> None:
    async with api(agents=Hosts(None)) as one:
        await made(one)
        await run(one, "train", wait="SUBMITTED")
        waiting = await one.admin.delete(f"{MAIN}/volumes/data")
        assert (waiting.status, waiting.body["error"]["message"]) == (409, "Volume data is used by run train.")
        assert waiting.body["error"]["hint"] == "Stop it first: stoker stop train"
        await one.host()
        await reaches(one, "train", "RUNNING")
        assert (await one.admin.get(f"{MAIN}/volumes/data")).body["attached"] == ["train/0-0"]
        assert (await one.admin.delete(f"{MAIN}/volumes/data")).status == 409
        await one.admin.post(f"{MAIN}/runs/train/stop")
        await reaches(one, "train", "TERMINATED")
        assert (await one.admin.delete(f"{MAIN}/volumes/data")).status == 200
        await status(one, "DELETED")


async def test_what_is_for_one_makes_the_next_one_wait_and_why_says_for_whom(api: Apis) -> None:
    async with api(agents=Hosts(None)) as one:
        await one.host()
        await made(one, exclusive=True)
        await run(one, "first")
        await run(one, "second", wait="SUBMITTED")
        told = await why(one, "second")
        assert (told["code"], told["sentence"]) == (
            "volume",
            "second waits: volume data is attached to first/0-0, and only one job may have it at a time.",
        )
        planned = (await one.admin.post(f"{MAIN}/runs/plan", {"configuration": task(volumes=["data:/data"])})).body
        assert planned["action"] == "queue"
        assert "attached to first/0-0" in planned["sentence"]
        await one.admin.post(f"{MAIN}/runs/first/stop")
        await reaches(one, "second", "RUNNING")


async def test_of_two_runs_at_once_one_gets_what_is_for_one(api: Apis) -> None:
    """Both are placed by one pass, or by two: never do both have it."""
    async with api(agents=Hosts(0)) as one:
        await made(one, exclusive=True)
        names = [f"r{n}" for n in range(8)]
        await asyncio.gather(*(run(one, name, wait="SUBMITTED") for name in names))
        await one.host(8)
        for name in names:
            await reaches(one, name, "DONE")
        events = (await one.admin.get(f"{MAIN}/events?limit=500")).body["items"]
        # By their order: a job is placed only after the one before it was released.
        having: set[str] = set()
        for each in events:
            if each["kind"] == "job" and each["event"] == "Placed":
                having.add(each["id"])
            elif each["kind"] == "job" and each["event"] == "Released":
                having.discard(each["id"])
            assert len(having) <= 1


async def test_a_job_that_cannot_be_detached_stays_terminating_and_keeps_its_volume(api: Apis) -> None:
    hosts = Hosts(0)
    hosts.stuck = True
    async with api(agents=hosts) as one:
        await one.host()
        await made(one, exclusive=True)
        await run(one, "first", wait="TERMINATING")
        await run(one, "second", wait="SUBMITTED")

        async def trouble() -> Any:
            answer = (await one.admin.get(f"{MAIN}/runs/first/events")).body
            return answer if "process 7 (sh) uses it" in str(answer) else None

        await eventually(trouble, "what stands in the way is told")
        assert (await one.admin.get(f"{MAIN}/volumes/data")).body["attached"] == ["first/0-0"]
        hosts.stuck = False
        await reaches(one, "first", "DONE")
        await reaches(one, "second", "DONE")


async def test_placement_goes_where_the_volume_is(api: Apis) -> None:
    async with api(agents=Hosts(0)) as one:
        home = await one.host(1)
        await made(one)
        await run(one, "first", wait="DONE")
        found = (await one.admin.get(f"{MAIN}/volumes/data")).body
        assert found["instance"] == home
        await one.host(64)
        # It would fit nowhere but on the larger one.
        await run(one, "large", wait="SUBMITTED", resources={"cpu": 8})
        assert "it can go nowhere else, since volume data is on local-" in (await why(one, "large"))["sentence"]
        done = await run(one, "second", wait="DONE")
        assert done["jobs"][0]["instance"] == home


async def test_an_instance_with_a_volume_on_it_is_not_deleted_by_the_way(api: Apis) -> None:
    async with api(agents=Hosts(0)) as one:
        home = await one.host()
        await made(one)
        await run(one, "first", wait="DONE")
        for answer in (
            await one.admin.delete(f"{MAIN}/instances/{home}"), await one.admin.post(f"{MAIN}/instances/{home}/drain")
        ):  # fmt: skip
            assert (answer.status, answer.code) == (409, "volumes")
            assert "Volume data is on local-" in answer.body["error"]["message"]
        assert (await one.admin.delete(f"{MAIN}/instances/{home}?force=true")).status == 200
        lost = await status(one, "FAILED")
        assert "which is gone" in lost["message"]
        assert (await one.admin.delete(f"{MAIN}/volumes/data")).status == 200, "there is nothing left to keep"
        await status(one, "DELETED")


async def test_a_run_that_waits_for_a_volume_that_is_lost_ends_and_says_why(api: Apis) -> None:
    """It would wait for ever: nothing brings back what was on the machine."""
    async with api(agents=Hosts(0)) as one:
        home = await one.host()
        await made(one)
        await run(one, "first", wait="DONE")
        await run(one, "large", wait="SUBMITTED", resources={"cpu": 64})
        await one.context.engine.commit(Change(facts=(of_instance(InstanceId(UUID(home)), Gone()),)))
        ended = await reaches(one, "large", "FAILED")
        assert ended["jobs"][0]["termination_reason"] == "VOLUME_ERROR"
        assert "volume data has failed: it was on local-" in ended["jobs"][0]["message"]


async def test_a_volume_on_an_instance_that_is_named(api: Apis) -> None:
    async with api(agents=Hosts(0)) as one:
        wrong = await apply(one.admin, data(instance="local-000000"))
        assert (wrong.status, "there is no instance local-000000" in wrong.body["error"]["message"]) == (422, True)
        home = await one.host()
        name = (await one.admin.get(f"{MAIN}/instances")).body["items"][0]["name"]
        assert (await made(one, instance=name))["instance"] == home
        missing = await apply(one.admin, {"type": "volume", "name": "other", "fleet": "cloud"})
        assert (missing.status, "there is no fleet cloud" in missing.body["error"]["message"]) == (422, True)


async def test_nodes_on_several_machines_cannot_share_what_is_on_one(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        await one.host()
        await one.host()
        await made(one)
        error = await refused(one.admin, nodes=2, volumes=["data:/data"])
        assert "volume data is on one instance, and this has 2 nodes" in error["message"]


async def test_directories_of_the_host_are_the_admins_and_on_the_servers_own_host(api: Apis) -> None:
    """A container that runs as root would be root in them."""
    async with api(agents=Hosts()) as one:
        ada = await one.user("ada", "manager")
        error = await refused(ada, volumes=["/srv/sets:/sets"])
        assert error["code"] == "forbidden"
        assert "ada is no admin of this server and may not mount /srv/sets" in error["message"]
        await one.admin.made(f"{MAIN}/runs", {"configuration": task(name="x", volumes=["/srv/sets:/sets:ro"])})


async def test_who_may_delete_it(api: Apis) -> None:
    async with api(agents=Hosts()) as one:
        ada, bob, eve = [await one.user(name) for name in ("ada", "bob", "eve")]
        assert (await apply(ada, data())).status == 201
        denied = await bob.delete(f"{MAIN}/volumes/data")
        assert (denied.status, "may not delete volume data, which ada made" in denied.body["error"]["message"]) == (
            403,
            True,
        )
        assert (await eve.get(f"{MAIN}/volumes/data")).body["name"] == "data"
        assert (await ada.delete(f"{MAIN}/volumes/data")).status == 200


async def test_a_retried_run_wants_the_volume_that_has_the_name_now(api: Apis) -> None:
    async with api(agents=Hosts(1)) as one:
        await one.host()
        await made(one)
        await run(one, "first", wait="FAILED")
        await one.admin.delete(f"{MAIN}/volumes/data")
        await status(one, "DELETED")
        gone = await one.admin.post(f"{MAIN}/runs/first/retry")
        assert (gone.status, "there is no volume data" in gone.body["error"]["message"]) == (422, True)
        await made(one)
        assert (await one.admin.post(f"{MAIN}/runs/first/retry")).status == 201


@pytest.mark.parametrize(
    ("fields", "key", "words"),
    [
        ({"kind": "nfs"}, "server", "it is missing"),
        ({"kind": "nfs", "server": "nas", "path": "data"}, "path", "expected an absolute path"),
        ({"server": "nas"}, "server", "a local volume has none"),
        ({"size": "1MB"}, "size", "at least 16MB"),
        ({"kind": "lokal"}, "kind", "expected 'local', 'nfs' or 'dummy'"),
        ({"kind": "dummy", "exclusive": False}, "exclusive", "one machine at a time"),
        ({"sise": "1GB"}, "sise", "no such key"),
    ],
)
async def test_what_is_wrong_with_one_is_said_by_its_key(api: Apis, fields: Json, key: str, words: str) -> None:
    async with api(agents=Hosts()) as one:
        answer = await apply(one.admin, data(**fields))
        (problem,) = answer.body["error"]["problems"]
        assert (answer.status, problem["key"]) == (422, f"configuration.{key}")
        assert words in problem["message"]
