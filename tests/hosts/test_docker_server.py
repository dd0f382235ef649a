"""A run with an image, from the server to a container and back."""

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stoker.core.ids import RunId
from tests.hosts import engine as engines
from tests.hosts.engine import Engine
from tests.hosts.test_docker_luck import deaf
from tests.machine import as_root
from tests.process.house import House, until

pytestmark = [pytest.mark.xdist_group("docker"), as_root]

SECRET = "sword-of-the-fish"


async def test_a_run_in_a_container(docker_house: House, engine: Engine) -> None:
    async with docker_house.serving() as house:
        one = await house.machine()

        async def answers() -> bool:
            (shown,) = (await house.ask("GET", "instances"))["items"]
            return shown["resources"]["docker"] is True

        await until(answers, "the machine has told that its engine answers")
        run = await house.submit("echo hello from $COLOUR", "exit 7", image="own", entrypoint="/bin/env", user="app")
        row, (job,) = await house.ended(run), await house.jobs(run)
        assert (row["state"], job["exit_code"]) == ("FAILED", 7)
        assert await house.log(job["id"]) == "hello from green\n"
        own = await house.ask("POST", "runs", {"configuration": {"type": "task", "image": "own"}})
        both = await asyncio.gather(
            asyncio.sleep(0, RunId(UUID(own["id"]))),
            house.submit("/busybox echo '$HOME' \"a  b\"", image="scratch", shell="none"),
        )
        assert [(await house.ended(run))["state"] for run in both] == ["DONE", "DONE"]
        logs = [await house.log((await house.jobs(run))[0]["id"]) for run in both]
        assert logs == ["entry point\n", "$HOME a  b\n"]
        assert await _mine(engine, one.home) == []
        assert one.tasks() == []


async def _mine(engine: Engine, home: Path) -> list[Any]:
    id = (home / "id").read_text().strip()
    return [one for one in engine.containers() if one["Labels"].get("io.stoker.home") == id]


async def test_a_run_that_runs_is_stopped(docker_house: House, engine: Engine) -> None:
    async with docker_house.serving() as house:
        one = await house.machine()
        loop = "trap 'echo bye; exit 0' TERM; echo up; while true; do sleep 0.05; done"
        run = await house.submit(loop, image="busybox")
        job = await house.job(run, "RUNNING")

        async def up() -> bool:
            return "up" in (await house.log(job["id"]))

        await until(up, "it is up")
        await house.stop(run)
        row, (job,) = await house.ended(run), await house.jobs(run)
        assert (row["state"], job["exit_code"]) == ("TERMINATED", 0)
        assert (await house.log(job["id"])).endswith("bye\n")
        assert await _mine(engine, one.home) == []


async def test_a_password_is_shown_to_nobody_and_a_pull_to_all(docker_house: House) -> None:
    async with deaf() as port, docker_house.serving() as house:
        one = await house.machine()
        configuration = {
            "type": "task", "image": f"127.0.0.1:{port}/team/x", "commands": ["true"], "name": "secretive",
            "registry_auth": {"username": "me", "password": SECRET},
        }  # fmt: skip
        plan = await house.ask("POST", "runs/plan", {"configuration": configuration})
        made = await house.ask("POST", "runs", {"configuration": configuration})

        async def pulls() -> Any:
            shown = await house.ask("GET", "runs/secretive")
            return shown if shown["jobs"][0]["status"] == "PULLING" and shown["jobs"][0]["message"] else None

        shown = await until(pulls, "people see that it is pulled")
        assert shown["status_message"] == "its image is pulled"
        assert shown["jobs"][0]["message"] == "its image is pulled"
        listed = await house.ask("GET", "runs")
        assert "its image is pulled" in json.dumps(listed)
        assert shown["configuration"]["registry_auth"]["username"] == "me"
        events = await house.ask("GET", "events")
        await house.stop(made["id"], abort=True)
        await house.ended(made["id"], 20.0)
        told = [plan, made, shown, listed, events, await house.ask("GET", "runs/secretive")]
        assert SECRET not in json.dumps(told)
        for log in (*house.home.rglob("*.log"), one.home / "shim.log"):
            assert SECRET.encode() not in log.read_bytes(), log


async def test_a_container_waits_for_an_engine_and_says_so(
    docker_house: House, shared_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that goes away takes nothing from processes; one that comes is used at once."""
    home = shared_directory / "later"
    home.mkdir()
    later = Engine(home)
    monkeypatch.setenv("DOCKER_HOST", later.host)
    try:
        await asyncio.to_thread(later.start)
        await asyncio.to_thread(later.make_image, "busybox:latest", engines.busybox_tree(home / "tree"))
        await asyncio.to_thread(later.end)
        async with docker_house.serving() as house:
            one = await house.machine()
            name = f"local-{one.id.hex[-6:]}"
            run = await house.submit("echo here", image="busybox")

            async def why() -> str:
                return str((await house.ask("GET", f"runs/{run}/why"))["sentence"])

            said = await why()
            assert f"{name} has no Docker engine" in said, said
            process = await house.submit("while [ ! -e ../../go ]; do sleep 0.05; done")
            await house.job(process, "RUNNING")
            await asyncio.to_thread(later.start)
            assert (await house.ended(run))["state"] == "DONE"
            await asyncio.to_thread(later.end, signal.SIGKILL)

            async def lost() -> bool:
                (shown,) = (await house.ask("GET", "instances"))["items"]
                return not shown["resources"]["docker"]

            await until(lost, "people see that it has none")
            run = await house.submit("echo here", image="busybox")
            await until(lambda: why(), "it says why")
            assert f"{name} has no Docker engine" in await why()
            assert (await house.ended(await house.submit("true")))["state"] == "DONE"
            assert (await house.jobs(process))[0]["state"] == "RUNNING"
            await house.stop(process, abort=True)
            await house.stop(run, abort=True)
            await house.ended(process)
    finally:
        with suppress(OSError):
            later.clear()


async def test_all_rights_on_a_host_only_where_its_fleet_allows_it(docker_house: House) -> None:
    async with docker_house.serving() as house:
        await house.machine()
        run = await house.submit("ls /var/run/docker.sock", image="busybox", docker=True)
        assert (await house.ended(run))["state"] == "DONE", "on the host of a single person"
        await house.ask("POST", "fleets", _fleet(allow_privileged=False))
        for key in ("privileged", "docker"):
            run = await house.submit("true", image="busybox", **{key: True})
            said = (await house.ask("GET", f"runs/{run}/why"))["sentence"]
            assert "no fleet that it may use says allow_privileged: true" in said
            await house.stop(run)
        assert (await house.ended(await house.submit("true", image="busybox")))["state"] == "DONE"
        await house.ask("POST", "fleets", _fleet(allow_privileged=True))
        run = await house.submit("ls /var/run/docker.sock", image="busybox", docker=True)
        assert (await house.ended(run))["state"] == "DONE"


def _fleet(**more: Any) -> dict[str, Any]:
    return {"configuration": {"type": "fleet", "name": "local", "backends": ["local"], **more}}
