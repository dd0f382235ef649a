"""Somebody takes away what an agent stands on: its files, its directories, its sockets. Nothing hangs for ever."""

import asyncio
import os
import shutil
from functools import partial
from pathlib import Path
from uuid import UUID

from stoker.core.reason import JobReason
from stoker.runner.proc import alive, has_in_environment, pids
from stoker.runner.reaper import JOB_VARIABLE
from stoker.shim import cgroup
from tests.agents.shim_stage import existing, stage, until
from tests.agents.test_shim_tenant import UNPRIVILEGED


def processes(id: UUID) -> list[int]:
    return [pid for pid in pids() if has_in_environment(pid, f"{JOB_VARIABLE}={id}".encode())]


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
        record = shim.directory(task.id) / "task.jsonl"
        shim.directory(task.id).chmod(0o500)
        record.chmod(0o400)
        body = {"fence": 2, "grace_s": 0.0}
        told = await shim.ask("POST", f"/tasks/{task.id}/terminate?wait_s=1", json=body)
        assert told.error == (503, "disk")
        await until(lambda: not Path(f"/proc/{runner}").exists())
        assert (await shim.task(task.id)).state != "terminated"
        assert (await shim.ask("POST", "/tasks", json=shim.order())).status == 201, "others are not disturbed"
        record.chmod(0o600)
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


async def test_a_job_whose_record_was_spoilt_does_not_run_on_unseen(shared_directory: Path) -> None:
    """A disk error, while no shim was there. The server hears that the task is not here, and may start it again
    elsewhere: two of one job must never run. What is on disk stays for people."""
    async with stage(shared_directory) as shim:
        tasks = [await shim.start_job("sleep 1000") for _ in range(2)]
        runners = [await shim.born(task.id) for task in tasks]
        jobs = [await until(partial(processes, task.id)) for task in tasks]
        await shim.kill()
        (shim.directory(tasks[0].id) / "task.jsonl").write_text('{"task": ')
        (shim.directory(tasks[1].id) / "task.jsonl").unlink()
        await shim.start()
        for task, runner, job in zip(tasks, runners, jobs, strict=True):
            assert not any(map(alive, (runner, *job)))
            assert (await shim.ask("GET", f"/tasks/{task.id}")).error == (404, "no_task")
            assert (await shim.ask("POST", "/tasks", json=shim.order(id=str(task.id), fence=9))).error[0] == 503
            assert (shim.directory(task.id) / "order.json").exists()
            assert existing(*(f"{place}/{task.id}" for place in cgroup.find(cgroup.name_of(shim.home)).places)) == []
