"""Whoever is killed, and whenever: the next one finds everything, nothing runs twice, and nothing leaks."""

import asyncio
import shutil
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest

from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import SERVE, until
from tests.agents.test_shim_volume import left_over, local, loop_devices
from tests.hosts import engine as engines
from tests.hosts.box import Yard
from tests.hosts.box import yard as made_yard
from tests.hosts.conftest import Yards
from tests.hosts.dying import DYING
from tests.hosts.engine import Engine
from tests.hosts.test_docker_run import until_text
from tests.machine import as_root

pytestmark = [pytest.mark.xdist_group("docker"), as_root]

HOOKS = ("directories", "volumes", "devices", "image", "network", "container")
STARTING = (*(f"perform {hook} before" for hook in HOOKS), "POST /containers/create after",
            "POST /containersstart after", "perform container after")  # fmt: skip
ENDING = (*(f"undo {hook} before" for hook in reversed(HOOKS)), "DELETE /containers after", "undo directories after")


async def fallen(yard: Yard) -> None:
    """It has died, and is there again."""
    assert yard.process is not None
    assert await asyncio.to_thread(yard.process.wait, 30.0) == -signal.SIGKILL
    assert not (yard.home / "die").exists()
    await yard.start()


async def given(yard: Yard, task: TaskInfo, job: dict[str, Any]) -> None:
    """A job that came with the order is lost with a shim that dies before it starts the runner: it is given again."""
    task = await yard.reaches(task.id, lambda one: one.state in ("running", "terminated"))
    while task.result is None and task.state == "running" and not task.job_taken:
        with suppress(aiohttp.ClientError):
            assert (await yard.tell_runner(task, "POST", "/job", json=job)).status == 200
            return
        task = await yard.task(task.id)


def nothing_is_left(yard: Yard, id: str, port: int | None, moment: str) -> None:
    """No container, mount, loop device, port nor directory; the volumes themselves stay."""
    assert yard.containers() == [], moment
    assert left_over(yard) == [], moment
    deadline = time.monotonic() + 10.0
    while str(yard.home) in loop_devices():  # The kernel lets go of one a moment after its last user.
        assert time.monotonic() < deadline, moment
        time.sleep(0.02)
    assert not (yard.box_of(UUID(id)) / "work").exists(), moment
    if port is not None:
        with socket.create_server(("127.0.0.1", port)):
            """Anybody may have it."""


async def test_a_shim_killed_between_each_pair_of_hooks_leaks_nothing(yards: Yards) -> None:
    """The server asks again. One volume goes through all of it, and in the end shows each job once."""
    async with yards(script=DYING) as yard:
        volume = local(uuid4(), "/data", size_mb=16)
        for number, moment in enumerate((*STARTING, *ENDING)):
            id, order = str(uuid4()), {"gpu_indices": [number % 2], "mounts": [volume]}
            container = {"image": "busybox", "ports": [80]}
            commands = ("echo once >> /stoker/task/count", f"echo {number} >> /data/jobs", "cat /stoker/task/count")
            job = yard.job(id, *commands, "exit 4", start=True)
            asked = yard.order(id=id, runtime="docker", container=container, job=job, **order)
            if moment in STARTING:
                (yard.home / "die").write_text(moment)
                with suppress(aiohttp.ClientError):
                    await yard.ask("POST", "/tasks", json=asked)
                await fallen(yard)
            # As a server does that heard no answer.
            task = (await yard.ask("POST", "/tasks", json=asked)).task
            await given(yard, task, job)
            task = await yard.over(task)
            assert task.result is not None, (moment, task)
            assert task.result.exit_code == 4, (moment, task)
            assert await yard.text(task.id) == "once\n", moment
            assert len(yard.containers()) == 1, moment
            (port,) = task.ports
            if moment in ENDING:
                (yard.home / "die").write_text(moment)
                with suppress(aiohttp.ClientError):
                    await yard.ask("POST", f"/tasks/{id}/terminate?wait_s=20", json={"fence": 2})
                await fallen(yard)
            ended = await yard.terminate(UUID(id))
            assert (ended.state, ended.result, ended.ports, ended.gpu_ids) == ("terminated", task.result, (), ()), (
                moment
            )
            nothing_is_left(yard, id, port.on_host, moment)
            assert (await yard.remove(UUID(id))).status == 204
            assert yard.directories() == []
        _, jobs = await yard.run_box("busybox", "cat /data/jobs", order={"mounts": [volume]})
        assert jobs.split() == [str(number) for number in range(len((*STARTING, *ENDING)))]


async def test_a_shim_killed_while_it_starts_what_is_then_not_wanted_leaks_nothing(yards: Yards) -> None:
    """The run was stopped meanwhile: what was begun is undone, whatever it was, and its GPU is there for the next."""
    async with yards(script=DYING) as yard:
        volume = local(uuid4(), "/data", size_mb=16)
        for moment in STARTING:
            (yard.home / "die").write_text(moment)
            id, container = str(uuid4()), {"image": "busybox", "ports": [80]}
            order = yard.order(id=id, runtime="docker", container=container, gpu_indices=[0], mounts=[volume])
            with suppress(aiohttp.ClientError):
                await yard.ask("POST", "/tasks", json=order)
            await fallen(yard)
            ended = await yard.terminate(UUID(id))
            assert (ended.state, ended.ports, ended.gpu_ids) == ("terminated", (), ()), moment
            nothing_is_left(yard, id, None, moment)
            assert (await yard.remove(UUID(id))).status == 204
            assert yard.directories() == []


MOVED = DYING.replace(
    SERVE,
    """
from dataclasses import replace
from stoker.shim import main
made = main._bundle
# Where the agents are now.
main._bundle = lambda home: replace(made(home), root=Path((home.root / "tree").read_text()))
"""
    + SERVE,
)


async def test_a_container_that_never_began_is_made_anew_when_its_agents_are_gone(yards: Yards) -> None:
    """It was made, its shim died, and the next one is of another version, whose tree is another: the one that the
    container would have mounted was removed, since nothing ran from it."""
    async with yards(script=MOVED) as yard:
        (whole,) = (one.parent for one in (yard.home / "bundle").glob("*/bundle.json"))
        before, now = yard.home / "before", yard.home / "now"
        await asyncio.to_thread(shutil.copytree, whole, before, symlinks=True)
        (yard.home / "tree").write_text(str(before))
        (yard.home / "die").write_text("POST /containers/create after")
        id = str(uuid4())
        job = yard.job(id, "echo once", "exit 4", start=True)
        order = yard.order(id=id, runtime="docker", container={"image": "busybox"}, job=job)
        with suppress(aiohttp.ClientError):
            await yard.ask("POST", "/tasks", json=order)
        before.rename(now)
        (yard.home / "tree").write_text(str(now))
        await fallen(yard)
        task = (await yard.ask("POST", "/tasks", json=order)).task
        await given(yard, task, job)
        task = await yard.over(task)
        assert task.result is not None, task
        assert (task.result.exit_code, await yard.text(task.id)) == (4, "once\n")
        assert len(yard.containers()) == 1
        await yard.clear_task(task.id)


async def test_exits_while_nobody_looks(yards: Yards, engine: Engine) -> None:
    async with yards() as yard:
        running, ending, killed = [
            await yard.box("busybox", "while [ ! -e go ]; do sleep 0.05; done; exit 5") for _ in range(3)
        ]
        await yard.kill()
        (yard.box_of(ending.id) / "work" / "go").touch()
        await until((yard.box_of(ending.id) / "result.json").exists)
        engine.docker("kill", killed.container_id)
        await yard.start()
        found = {task.id: task for task in (await yard.changes()).tasks}
        assert (found[running.id].state, found[running.id].container_id) == ("running", running.container_id)
        result = found[ending.id].result
        assert result is not None
        assert result.exit_code == 5
        lost = await yard.ended(killed.id)
        assert (lost.reason, "exit code 137" in lost.message) == ("EXECUTOR_ERROR", True)
        (yard.box_of(running.id) / "work" / "go").touch()
        over = await yard.over(running)
        assert over.result is not None
        assert over.result.exit_code == 5, "and is heard of without a look"


async def test_a_container_of_no_task_is_removed(yards: Yards, engine: Engine) -> None:
    """Its record was lost with the disk: the server may run it elsewhere, so it must not run here."""
    async with yards() as yard:
        lost, kept = await yard.box("busybox", "sleep 60"), await yard.box("busybox", "sleep 60")
        await yard.kill()
        (yard.directory(lost.id) / "task.jsonl").write_text("{")
        await yard.start()
        await until(lambda: yard.containers() == [kept.container_id])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_engine_is_restarted_while_five_tasks_run(
    yards: Yards, engine: Engine, number: signal.Signals
) -> None:
    """Their containers die with it: each task ends, says so, and is not run again."""
    async with yards() as yard:
        tasks = await asyncio.gather(*(yard.box("busybox", "echo up; sleep 60") for _ in range(5)))
        await asyncio.gather(*(until_text(yard, task.id, "up\n") for task in tasks))
        await asyncio.to_thread(engine.restart, number)
        for task in tasks:
            over = await yard.over(task)
            if over.result is not None:
                assert over.result.failure == "executor", over
                assert "stopped from outside" in over.result.message
            else:
                assert over.reason == "EXECUTOR_ERROR", over
                assert "before its commands had" in over.message
            await yard.clear_task(task.id)
        assert yard.containers() == []
        assert await yard.run_box("busybox", "echo well") == (0, "well\n")


async def test_an_engine_that_leaves_its_containers_alone(shared_directory: Path, bundles: Path) -> None:
    """With live-restore nothing is disturbed, and exits meanwhile are heard of."""
    with engines.engine(shared_directory / "lasting", live_restore=True) as engine:
        engine.make_image("busybox:latest", engines.busybox_tree(shared_directory / "lasting" / "tree"))
        async with made_yard(shared_directory, engine, bundles) as yard:
            wait = "while [ ! -e go ]; do sleep 0.05; done; exit 6"
            tasks = await asyncio.gather(*(yard.box("busybox", wait) for _ in range(5)))
            await asyncio.to_thread(engine.end, signal.SIGKILL)
            (yard.box_of(tasks[0].id) / "work" / "go").touch()
            first = await yard.over(tasks[0])
            assert first.result is not None
            assert first.result.exit_code == 6, "known without the engine"
            await asyncio.to_thread(engine.start)
            for task in tasks[1:]:
                assert (await yard.task(task.id)).state == "running"
                (yard.box_of(task.id) / "work" / "go").touch()
            for task in tasks:
                over = await yard.over(task)
                assert over.result is not None
                assert over.result.exit_code == 6
                await yard.clear_task(task.id)
            assert yard.containers() == []
