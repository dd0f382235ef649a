"""A host without root serves one project: what the people of another one are told, and who the one is."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.core.ids import InstanceId, ProjectId
from stoker.server.first_start import PROJECT, Keyring
from stoker.server.local_host import only_project
from stoker.store import host as host_store
from stoker.store import project
from stoker.store.project import Project
from stoker.wire.shim import HostInfo
from tests.api.conftest import Api, Apis, eventually, task
from tests.conftest import Databases

VISION = "/api/projects/vision"


async def host_of_main(api: Api) -> str:
    id = await api.host()
    async with api.context.database.transaction() as tx:
        main = await project.get(tx, PROJECT)
        await host_store.put(tx, InstanceId(UUID(id)), host_store.Host("there", ""), main.id)
    return id


async def test_a_run_of_another_project_waits_and_says_why(api: Apis) -> None:
    async with api() as one:
        id = await host_of_main(one)
        await one.admin.made("/api/projects", {"name": "vision"})
        plan = await one.admin.post(f"{VISION}/runs/plan", {"configuration": task(name="far")})
        assert plan.body["action"] == "queue"
        await one.admin.made(f"{VISION}/runs", {"configuration": task(name="far")})
        why = (await one.admin.get(f"{VISION}/runs/far/why")).body
        assert why["code"] == "other_project"
        assert why["sentence"].startswith("far waits: no instance serves its project")
        assert id not in str(why), "what is another project's is not shown"
        assert (await one.admin.get(f"{VISION}/instances")).body["items"] == []
        assert (await one.admin.get(f"{VISION}/instances/{id}")).status == 404
        near = await one.admin.made("/api/projects/main/runs", {"configuration": task(name="near")})
        waited = await one.admin.get(f"/api/projects/main/runs/{near['id']}/wait")
        assert waited.body["status"] == "DONE"
        assert [shown["id"] for shown in (await one.admin.get("/api/projects/main/instances")).body["items"]] == [id]
        assert (await one.admin.get(f"{VISION}/runs/far")).body["status"] == "SUBMITTED"


async def test_a_run_that_must_not_wait_fails_with_the_reason(api: Apis) -> None:
    async with api() as one:
        await host_of_main(one)
        await one.admin.made("/api/projects", {"name": "vision"})
        await one.admin.made(f"{VISION}/runs", {"configuration": task(name="now", on_no_capacity="fail")})

        async def failed() -> Any:
            body = (await one.admin.get(f"{VISION}/runs/now")).body
            return body if body["status"] == "FAILED" else None

        run = await eventually(failed, "it fails")
        assert run["jobs"][0]["termination_reason"] == "FAILED_TO_START_DUE_TO_NO_CAPACITY"
        assert "no instance serves its project" in run["status_message"]


def host(*, root: bool = False, project_id: UUID | None = None) -> HostInfo:
    return HostInfo(
        hostname="h", cpus=1, memory_mb=1, disk_mb=1, root=root, project_id=project_id, cgroups=False
    )  # fmt: skip


@pytest.mark.parametrize(("preferred", "chosen"), [("vision", "vision"), ("main", "main"), ("gone", "main")])
async def test_without_root_the_one_is_that_in_which_people_of_the_home_work(
    database: Databases, preferred: str, chosen: str
) -> None:
    """Also where that is not there any more: then the oldest is. As root there is no such thing."""
    async with database() as db, db.connection() as tx:
        assert await only_project(tx, host(), preferred) is None, "there is none at all"
        ids = {name: ProjectId(uuid4()) for name in ("gone", "main", "vision")}
        for at, (name, id) in enumerate(ids.items()):
            await project.insert(tx, Project(id, name, float(at)))
        await tx.execute("UPDATE project SET deleted_at = 9 WHERE name = 'gone'")
        assert await only_project(tx, host(), preferred) == ids[chosen]
        assert await only_project(tx, host(root=True), preferred) is None


async def test_whom_an_agent_has_served_it_serves_whatever_people_prefer(database: Databases) -> None:
    """Also one that this server does not know: then its host is for nobody here, and each job is told so."""
    async with database() as db, db.connection() as tx:
        await project.insert(tx, Project(ProjectId(uuid4()), "main", 1.0))
        before = uuid4()
        assert await only_project(tx, host(project_id=before), "main") == before


def test_the_project_of_a_home_is_in_its_configuration(tmp_path: Any) -> None:
    path = tmp_path / "config.yml"
    assert Keyring(path).project == "main"
    path.write_text('url: "http://127.0.0.1:1"\nproject: "vision"\n')
    assert Keyring(path).project == "vision"
