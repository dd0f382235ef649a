"""A container that cannot start, or is in bad company: what people are told, and that nothing of it stays."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from stoker.wire.shim import TaskInfo
from tests.hosts import engine as engines
from tests.hosts.box import Yard
from tests.hosts.conftest import Yards
from tests.hosts.dying import DYING
from tests.hosts.engine import Engine, Registry
from tests.machine import as_root, small_disk

pytestmark = [pytest.mark.xdist_group("docker"), as_root]

AUTH = {"username": "me", "password": "swordfish"}


async def failed(yard: Yard, task: TaskInfo) -> TaskInfo:
    ended = await yard.ended(task.id)
    assert ended.result is None
    assert yard.containers() == []
    assert ended.ports == ()
    return ended


async def test_an_image_that_does_not_exist(yards: Yards, registry: Registry) -> None:
    async with yards() as yard:
        task = await failed(yard, await yard.box(f"{registry.address}/team/nothing", "true", registry_auth=AUTH))
        assert task.reason == "CREATING_CONTAINER_ERROR"
        assert "team/nothing cannot be pulled" in task.message
        assert "manifest unknown" in task.message


async def test_it_is_pulled_with_the_right_password_only(yards: Yards, engine: Engine, registry: Registry) -> None:
    name = registry.push(engine, "busybox")
    async with yards() as yard:
        for wrong in (None, {"username": "me", "password": "catfish"}):
            task = await failed(yard, await yard.box(name, "true", registry_auth=wrong))
            assert task.reason == "CREATING_CONTAINER_ERROR"
            assert "unauthorized" in task.message or "no basic auth credentials" in task.message
            assert "catfish" not in task.message
            assert "catfish" not in (yard.home / "shim.log").read_text()
        assert await yard.run_box(name, "echo here", registry_auth=AUTH) == (0, "here\n")
        assert await yard.run_box(name, "echo again") == (0, "again\n"), "it is here now"


async def test_sent_away_for_good_a_shim_takes_along_what_it_pulled(
    yards: Yards, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    """And nothing else: neither what was here before, nor what it pulled and somebody uses meanwhile."""
    names = {}
    for which in ("ours", "used"):
        (engines.busybox_tree(tmp_path / which) / which).touch()
        engine.make_image(f"{which}:latest", tmp_path / which)
        names[which] = registry.push(engine, which)
        engine.docker("rmi", which)
    async with yards() as yard:
        for which, name in names.items():
            assert await yard.run_box(name, f"ls /{which}", registry_auth=AUTH) == (0, f"/{which}\n")
        engine.docker("create", "--name", "somebodys", names["used"], "/bin/true")
        before = set(engine.images())
        await yard.box("busybox", "sleep 60")
        assert (await yard.ask("POST", "/leave", json={"force": True, "for_good": True})).status == 202
        assert before - set(engine.images()) == {f"{names['ours']}:latest"}
        assert yard.containers() == []
    engine.docker("rm", "somebodys")
    engine.docker("rmi", names["used"])


async def test_people_see_how_far_a_pull_is(yards: Yards, engine: Engine, registry: Registry, tmp_path: Path) -> None:
    tree = engines.busybox_tree(tmp_path / "large")
    (tree / "noise").write_bytes(os.urandom(64 << 20))
    engine.make_image("large:latest", tree)
    name = registry.push(engine, "large")
    engine.docker("rmi", "large:latest")
    async with yards() as yard:
        cursor = (await yard.changes()).cursor
        starting = asyncio.create_task(yard.box(name, "echo here", registry_auth=AUTH))
        seen: list[TaskInfo] = []
        while not seen or seen[-1].result is None:
            changes = await yard.changes(cursor, 20.0)
            cursor, seen = changes.cursor, [*seen, *changes.tasks]
        await starting
        pulling = [task for task in seen if task.state == "pulling"]
        assert pulling
        assert max(task.pulled_bytes for task in pulling) > 1 << 20
        assert max(task.pull_total_bytes or 0 for task in pulling) > 60 << 20
        # One that nobody waits for any more is given up at once.
        await yard.clear_task(seen[-1].id)
        engine.docker("rmi", name)
        task = await yard.box(name, "echo here", registry_auth=AUTH)
        await yard.terminate(task.id, wait_s=20.0)
        assert yard.containers() == []
    engine.ask("DELETE", f"/images/{name.replace('/', '%2F')}?force=1")


@asynccontextmanager
async def deaf() -> AsyncIterator[int]:
    """A registry that takes calls and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_registry_that_hangs(yards: Yards) -> None:
    async with deaf() as port, yards() as yard:
        task = await failed(yard, await yard.box(f"127.0.0.1:{port}/team/x", "true", pull_s=1.5))
        assert "could not be pulled" in task.message
        assert "1.5 s" in task.message
        # It does not hold up who wants it ended.
        task = await yard.box(f"127.0.0.1:{port}/team/x", "true")
        assert task.state == "pulling"
        began = time.monotonic()
        assert (await yard.terminate(task.id)).reason == "TERMINATED_BY_SERVER"
        assert time.monotonic() - began < 3.0


async def test_the_disk_gets_full_during_a_pull(
    shared_directory: Path, bundles: Path, engine: Engine, registry: Registry, tmp_path: Path
) -> None:
    tree = engines.busybox_tree(tmp_path / "large")
    (tree / "noise").write_bytes(os.urandom(96 << 20))
    engine.make_image("huge:latest", tree)
    name = registry.push(engine, "huge")
    engine.docker("rmi", "huge:latest")
    from tests.hosts.box import yard as yards

    with (
        small_disk(shared_directory / "small", 64) as disk,
        engines.engine(shared_directory / "second", data=disk) as two,
    ):
        async with yards(shared_directory, two, bundles) as yard:
            task = await yard.ended((await yard.box(name, "true", registry_auth=AUTH)).id)
            assert task.reason == "CREATING_CONTAINER_ERROR"
            assert "no space left on device" in task.message
            assert yard.containers() == []


async def test_a_container_that_cannot_be_started(yards: Yards) -> None:
    """The engine's own sentence is passed on."""
    async with yards() as yard:
        # An image that brings a file where the task is to be mounted.
        task = await failed(yard, await yard.box("broken", "true"))
        assert task.reason == "CREATING_CONTAINER_ERROR"
        assert "The container engine says: " in task.message


async def test_a_container_that_ends_at_once(yards: Yards) -> None:
    """Its runner does not come up; its last words are in the message."""
    async with yards() as yard:
        (bundle := yard.home / "bundle").unlink()
        # A program of ours that is none.
        shadow = yard.home / "shadow"
        shadow.mkdir()
        real = yard.home.parent / "bundles" / "bundle"
        for one in real.iterdir():
            (shadow / one.name).symlink_to(one)
        bundle.symlink_to(shadow)
        task = await yard.box("busybox", "true", user="nobody-knows")
        ended = await failed(yard, task)
        assert ended.reason == "EXECUTOR_ERROR"
        assert "exit code 1" in ended.message
        assert "There is no user nobody-knows" in ended.message


async def test_killed_behind_our_back(yards: Yards, engine: Engine) -> None:
    async with yards() as yard:
        killed, removed, stopped = [await yard.box("busybox", "echo up; sleep 60") for _ in range(3)]
        engine.docker("kill", killed.container_id)
        engine.docker("rm", "-f", removed.container_id)
        engine.docker("stop", "-t", "5", stopped.container_id)
        one, two = await yard.ended(killed.id), await yard.ended(removed.id)
        assert (one.reason, two.reason) == ("EXECUTOR_ERROR", "EXECUTOR_ERROR")
        assert "exit code 137" in one.message
        assert "not there any more" in two.message
        three = await yard.over(stopped)
        assert three.result is not None
        assert (three.result.failure, three.result.message) == ("executor", "Its container was stopped from outside.")
        assert await yard.text(killed.id) == "up\n"
        await yard.terminate(stopped.id)
        assert yard.containers() == []


async def test_all_of_it_is_killed_for_memory(yards: Yards) -> None:
    """Its runner first, as the kernel may choose: then nobody but the engine can say why."""
    async with yards() as yard:
        commands = ("echo up", "echo 1000 > /proc/1/oom_score_adj", "tail /dev/zero")
        ended = await yard.ended((await yard.box("busybox", *commands, order={"memory_mb": 64})).id)
        assert (ended.reason, ended.result) == ("OUT_OF_MEMORY", None), ended
        assert "Its container ended for memory (exit code 137) before its commands had." in ended.message
        assert await yard.text(ended.id) == "up\n"
        assert yard.containers() == []


async def test_too_little_memory_to_begin_at_all(yards: Yards) -> None:
    """Not even its runner fits. Where that is noticed is the engine's affair; it is said, and nothing stays."""
    async with yards() as yard:
        ended = await failed(yard, await yard.box("busybox", "true", order={"memory_mb": 6}))
        assert ended.reason in ("OUT_OF_MEMORY", "CREATING_CONTAINER_ERROR"), ended
        assert "memory" in ended.message, ended


async def test_a_port_that_somebody_takes_meanwhile(yards: Yards) -> None:
    """The shim dies between choosing it and starting the container."""
    async with yards(script=DYING) as yard:
        (yard.home / "die").write_text("POST /containers/create after")
        with pytest.raises(aiohttp.ClientError):
            await yard.box("busybox", "true", ports=[80], order={"id": (id := "11111111-1111-4111-8111-111111111111")})
        assert yard.process is not None
        yard.process.wait(10)
        (port,) = yard.record(UUID(id))["task"]["ports"]
        with socket.create_server(("127.0.0.1", port["on_host"])):
            await yard.start()
            ended = await yard.ended(UUID(id))
        assert ended.reason == "PORTS_BINDING_FAILED", ended
        assert str(port["on_host"]) in ended.message
        assert yard.containers() == []


ITS_ENGINE_DIES = DYING.replace("os.getpid()", 'int((MARK.parent / "engine").read_text())')


async def test_a_start_that_waits_for_its_engine_says_so(yards: Yards, engine: Engine) -> None:
    """It was accepted, and then the engine died: people see what it waits for, and it goes on by itself."""
    async with yards(script=ITS_ENGINE_DIES) as yard:
        assert engine.process is not None
        (yard.home / "engine").write_text(str(engine.process.pid))
        (yard.home / "die").write_text("perform network before")
        task = await yard.box("busybox", "echo well")
        task = await yard.reaches(task.id, lambda one: one.message)
        assert task.state == "creating"
        assert f"The container engine at {engine.socket} does not answer" in task.message
        await asyncio.to_thread(engine.restart)
        over = await yard.over(task)
        assert (over.result is not None, over.message, await yard.text(task.id)) == (True, "", "well\n")


async def test_an_engine_that_is_away(yards: Yards, engine: Engine) -> None:
    """It is said of the host, no container is accepted, and processes are."""
    async with yards() as yard:
        running = await yard.box("busybox", "echo up; sleep 60")
        cursor = (await yard.changes()).cursor
        engine.end(9)
        changes = await yard.changes(cursor, 20.0)
        assert changes.docker == ""
        told = await yard.ask("POST", "/tasks", json=yard.order(runtime="docker", container={"image": "busybox"}))
        assert told.error == (503, "engine_away")
        assert (await yard.start_job("true")).state == "running"
        assert (await yard.task(running.id)).state == "running", "as far as anybody knows"
        cursor = (await yard.changes()).cursor
        await asyncio.to_thread(engine.start)
        while not (changes := await yard.changes(cursor, 20.0)).docker:
            cursor = changes.cursor
        assert changes.docker == engine.json("/version")["Version"]
        over = await yard.over(running)
        assert over.result is None or over.result.failure == "executor"
        await yard.terminate(running.id)
        assert await yard.run_box("busybox", "echo well") == (0, "well\n")
