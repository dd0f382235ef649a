"""Somebody takes away what an agent stands on: its files, its directories, its sockets. Nothing hangs for ever."""

import asyncio
import os
import shutil
from pathlib import Path

from stoker.core.reason import JobReason
from tests.agents.shim_stage import stage, until
from tests.agents.test_shim_tenant import UNPRIVILEGED


async def test_a_task_whose_directory_was_deleted_can_be_ended_and_removed(shared_directory: Path) -> None:
    """A person tidies up by hand. The server asks again and again, and its job must not wait for ever."""
    async with stage(shared_directory) as shim:
        task = await shim.start_job("sleep 1000")
        runner = await shim.born(task.id)
        shutil.rmtree(shim.directory(task.id))
        ended = await shim.terminate(task.id)
        assert (ended.state, ended.cleanup_error) == ("terminated", "")
        await until(lambda: not Path(f"/proc/{runner}").exists())
        assert (await shim.remove(task.id)).status == 204
        assert shim.directories() == []


async def test_new_tasks_come_also_when_the_directory_of_all_was_deleted(shared_directory: Path) -> None:
    async with stage(shared_directory) as shim:
        await shim.fork_server_ready()
        mode = (shim.home / "tasks").stat().st_mode
        shutil.rmtree(shim.home / "tasks")
        task = await shim.start_job("echo hello")
        await shim.read_log(task)
        assert (await shim.ended(task.id)).reason == JobReason.DONE_BY_RUNNER
        assert (shim.home / "tasks").stat().st_mode == mode


async def test_a_job_whose_log_was_deleted_ends_with_its_own_exit_code(shared_directory: Path) -> None:
    """What was in it is lost; what is lost is not waited for."""
    async with stage(shared_directory) as shim:
        task = await shim.start_job("echo one", "read line < go || true", "exit 3")
        directory = shim.directory(task.id)
        os.mkfifo(directory / "work" / "go")
        await shim.reaches(task.id, lambda one: one.log_end > 0)
        for name in ("log", "own"):
            shutil.rmtree(directory / name)
        await asyncio.to_thread((directory / "work" / "go").write_text, "on\n")
        seen = await shim.reaches(task.id, lambda one: one.result is not None)
        assert seen.result is not None
        assert seen.result.exit_code == 3
        ended = await shim.terminate(task.id)
        assert (ended.state, ended.cleanup_error) == ("terminated", "")
        assert (await shim.ask("GET", f"/tasks/{task.id}/log")).complete
        assert (await shim.remove(task.id)).status == 204


async def test_a_directory_that_cannot_be_written_to_does_not_keep_a_job_alive(shared_directory: Path) -> None:
    """The disk was mounted again, read-only. The job ends; that it has is said when it can be written down."""
    async with stage(shared_directory, UNPRIVILEGED) as shim:
        await shim.fork_server_ready()
        task = await shim.start_job("sleep 1000")
        runner = await shim.born(task.id)
        shim.directory(task.id).chmod(0o500)
        body = {"fence": 2, "grace_s": 0.0}
        told = await shim.ask("POST", f"/tasks/{task.id}/terminate?wait_s=1", json=body)
        assert told.error == (503, "disk")
        await until(lambda: not Path(f"/proc/{runner}").exists())
        assert (await shim.task(task.id)).state != "terminated"
        assert (await shim.ask("POST", "/tasks", json=shim.order())).status == 201, "others are not disturbed"
        shim.directory(task.id).chmod(0o700)
        assert (await shim.ended(task.id)).state == "terminated"


async def test_a_shim_whose_socket_was_deleted_makes_room_for_the_next(shared_directory: Path) -> None:
    """Nobody can reach it, and its lock would keep everybody else away. Its jobs go on, and the next one finds them."""
    async with stage(shared_directory) as shim:
        task = await shim.start_job("sleep 1000")
        runner = await shim.born(task.id)
        (shim.home / "shim.sock").unlink()
        assert shim.process is not None
        assert await asyncio.to_thread(shim.process.wait, 30.0) == 0
        assert shim.runner(task.id) == runner
        await shim.start()
        assert (await shim.task(task.id)).state == "running"
        assert (await shim.terminate(task.id)).state == "terminated"


async def test_a_shim_whose_home_was_deleted_leaves(shared_directory: Path) -> None:
    async with stage(shared_directory) as shim:
        await shim.fork_server_ready()
        shutil.rmtree(shim.home)
        assert shim.process is not None
        assert await asyncio.to_thread(shim.process.wait, 30.0) == 0
        shim.home.mkdir()
