"""A shim that is killed at any moment: the next one finds everything, disturbs nothing, and starts nothing twice."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import aiohttp

from stoker.core.reason import JobReason
from stoker.runner.listening import listen
from stoker.runner.proc import alive
from stoker.shim.home import Home
from stoker.shim.start import start
from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import GPUS, PATIENCE_S, Stage, Told, stage, until

KILLS = int(os.environ.get("STOKER_KILLS", "6"))
SEED = int(os.environ.get("STOKER_SEED", "1"))
T = TypeVar("T")


def dead(pid: int) -> bool:
    return not alive(pid)


async def test_a_restart_disturbs_nothing_and_finds_what_happened_meanwhile(shared_directory: Path) -> None:
    """One job runs on, one ends while nobody looks, one runner is killed, and one task never had a job."""
    async with stage(shared_directory) as shim:
        running, ending, lost = [await shim.start_job("sleep 1000") for _ in range(3)]
        idle = await shim.submit()
        pids = {task.id: await shim.born(task.id) for task in (running, ending, lost, idle)}
        assert await shim.kill() == -signal.SIGKILL
        stopped = await shim.tell_runner(ending, "POST", "/stop", json={"fence": 1, "grace_s": 5})
        assert stopped.status == 202
        await until((shim.directory(ending.id) / "result.json").exists)
        os.kill(pids[lost.id], signal.SIGKILL)
        await until(partial(dead, pids[lost.id]))
        await shim.start()
        found = {task.id: task for task in (await shim.changes()).tasks}
        assert found[running.id] == running.model_copy(update={"log_end": found[running.id].log_end})
        assert (found[idle.id].state, shim.runner(idle.id)) == ("running", pids[idle.id])
        assert shim.runner(running.id) == pids[running.id]
        result = found[ending.id].result
        assert result is not None
        assert (result.exit_code, result.signal) == (143, 15)
        assert (await shim.ended(lost.id)).reason is JobReason.EXECUTOR_ERROR
        await shim.read_log(ending)
        assert (await shim.ended(ending.id)).reason is JobReason.CONTAINER_EXITED_WITH_ERROR
        again = await shim.ask("POST", "/tasks", json=shim.order(id=str(running.id)))
        assert (again.status, shim.runner(running.id)) == (200, pids[running.id])


async def test_sigterm_is_an_orderly_exit_that_leaves_the_jobs_alone(shared_directory: Path) -> None:
    async with stage(shared_directory) as shim:
        task = await shim.start_job("sleep 1000")
        poll = asyncio.create_task(shim.ask("GET", f"/changes?wait_s=60&cursor={(await shim.changes()).cursor}"))
        await asyncio.sleep(0)
        runner, fork_server = shim.runner(task.id), shim.fork_server()
        assert shim.process is not None
        shim.process.terminate()
        assert await asyncio.to_thread(shim.process.wait, 5.0) == 0
        with suppress(aiohttp.ClientError):
            assert (await poll).status == 200
        assert (shim.runner(task.id), shim.fork_server()) == (runner, fork_server)
        await shim.start()
        assert shim.fork_server() == fork_server, "found again by its socket"
        assert (await shim.task(task.id)).state == "running"
        other = await shim.submit()
        assert other.state == "running"


async def test_the_fork_server_may_die_at_any_time(shared_directory: Path) -> None:
    """Runners go on without it, and the next task starts another."""
    async with stage(shared_directory) as shim:
        task = await shim.start_job("sleep 1000")
        first = await shim.fork_server_ready()
        os.kill(first, signal.SIGKILL)
        await until(partial(dead, first))
        runner = shim.runner(task.id)
        tasks = await asyncio.gather(*(shim.submit() for _ in range(5)))
        for one in tasks:
            await shim.reaches(one.id, lambda task: task.state == "running")
        assert shim.fork_server() not in (None, first)
        assert shim.runner(task.id) == runner
        assert (await shim.task(task.id)).state == "running"


async def test_after_a_reboot_no_command_is_run_again(shared_directory: Path) -> None:
    """Everything is gone at once, and the boot of the host is another one."""
    async with stage(shared_directory) as shim:
        done = await shim.start_job("exit 5")
        await shim.reaches(done.id, lambda task: task.result)
        running = await shim.start_job("echo run >> mark; sleep 1000")
        idle = await shim.submit()
        mark = shim.directory(running.id) / "work" / "mark"
        await until(mark.exists)
        fork_server = await shim.fork_server_ready()
        pids = [await shim.born(task.id) for task in (done, running, idle)]
        await shim.kill()
        for pid in (*pids, fork_server):
            os.kill(pid, signal.SIGKILL)
            await until(partial(dead, pid))
        for task in (done, running, idle):
            note = shim.directory(task.id) / "runner.pid"
            note.write_text(f"{os.getpid()} 1 00000000-0000-0000-0000-000000000000\n")
        await shim.start()
        ended = [await shim.ended(task.id) for task in (done, running, idle)]
        assert [one.reason for one in ended] == [
            JobReason.CONTAINER_EXITED_WITH_ERROR,
            JobReason.EXECUTOR_ERROR,
            JobReason.EXECUTOR_ERROR,
        ]
        assert ended[0].result is not None
        assert ended[0].result.exit_code == 5
        assert [shim.runner(task.id) for task in (done, running, idle)] == [None, None, None]


async def test_a_second_shim_on_the_same_home_is_refused(shared_directory: Path) -> None:
    async with stage(shared_directory) as shim:
        command = [sys.executable, "-m", "stoker.shim", "--home", str(shim.home)]
        second = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert (second.returncode, second.stderr) == (1, f"Another shim serves {shim.home} already.\n")
        assert (await shim.ask("GET", "/healthz")).status == 200


def test_none_is_started_where_one_is_coming(tmp_path: Path) -> None:
    """It has taken its home and still imports what it needs; its server asks for it once more."""
    home = Home(tmp_path)
    lock = home.lock()
    assert start(tmp_path) is None
    os.close(lock)
    started = start(tmp_path)
    assert started is not None
    started.kill()
    started.wait()


def test_none_is_started_where_one_answers(shared_directory: Path) -> None:
    """Whoever it is: a program that plays the shim has no lock."""
    home = shared_directory / f"played-{uuid4().hex[:8]}"
    home.mkdir()
    (home / "address").write_text(f"{home / 's'}\n")
    with listen(home / "s"):
        assert start(home) is None


async def test_fences_outlive_the_task_and_the_shim(shared_directory: Path) -> None:
    """A late order must not start again what was removed, nor what nobody had heard of when it was removed."""
    async with stage(shared_directory) as shim:
        task = await shim.submit(fence=5)
        body = {"fence": 4}
        assert (await shim.ask("POST", f"/tasks/{task.id}/terminate", json=body)).error == (409, "fenced")
        await shim.restart()
        assert (await shim.ask("POST", f"/tasks/{task.id}/terminate", json=body)).error == (409, "fenced")
        await shim.terminate(task.id, fence=6)
        assert (await shim.remove(task.id, 5)).error == (409, "fenced")
        assert (await shim.remove(task.id, 7)).status == 204
        assert (await shim.remove(task.id, 7)).status == 204
        never, stopped = uuid4(), uuid4()
        assert (await shim.remove(never, 9)).status == 204
        told = await shim.ask("POST", f"/tasks/{stopped}/terminate", json={"fence": 9})
        assert told.error == (404, "no_task")
        for restarted in (False, True):
            if restarted:
                await shim.restart()
            for id, fence in ((task.id, 5), (task.id, 7), (never, 9), (stopped, 8)):
                late = await shim.ask("POST", "/tasks", json=shim.order(id=str(id), fence=fence))
                assert late.error == (409, "fenced")
        anew = await shim.submit(id=str(task.id), fence=8)
        assert anew.state == "running"


def half_started(shim: Stage, id: UUID) -> socket.socket:
    """As a shim leaves it that dies between its word to the fork server and the runner's first sign of life."""
    record = shim.record(id)
    hooks = ["directories", "volumes", "devices", "image", "network", "container"]
    record["task"] |= {"state": "creating", "begun": hooks, "container_id": None}
    (shim.directory(id) / "task.jsonl").write_text(json.dumps(record))
    (shim.directory(id) / "runner.pid").unlink()
    Path(record["socket"]).unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(record["socket"])
    listener.listen()
    return listener


async def test_a_runner_that_is_on_its_way_is_waited_for_and_not_started_twice(shared_directory: Path) -> None:
    """Whoever holds the socket is the runner, also before it has written its name; nobody holds it: there is none."""
    async with stage(shared_directory) as shim:
        waited, stopped, lost = [await shim.submit() for _ in range(3)]
        pids = [await shim.born(task.id) for task in (waited, stopped, lost)]
        names = [(shim.directory(task.id) / "runner.pid").read_text() for task in (waited, stopped)]
        await shim.kill()
        for pid in pids[2:]:
            os.kill(pid, signal.SIGKILL)
            await until(partial(dead, pid))
        listeners = [half_started(shim, task.id) for task in (waited, stopped, lost)]
        listeners[2].close()
        await shim.start()
        begun = await shim.reaches(lost.id, lambda task: task.state == "running")
        assert await shim.born(lost.id) != pids[2], "nothing had been started, so it is started now"
        assert begun.socket == lost.socket
        assert (await shim.task(waited.id)).state == "creating"
        ending = await shim.terminate(stopped.id, wait_s=0.0)
        assert ending.ending
        for task, name in zip((waited, stopped), names, strict=True):
            (shim.directory(task.id) / "runner.pid").write_text(name)
        listeners[1].close()
        assert (await shim.reaches(waited.id, lambda task: task.state == "running")).id == waited.id
        assert shim.runner(waited.id) == pids[0]
        await shim.ended(stopped.id)
        await until(partial(dead, pids[1]))
        listeners[0].close()


# kill -9 at random moments.


@dataclass
class Script:
    """What one task is to live through."""

    number: int
    exit_code: int
    slow: bool
    terminated: bool
    gpus: list[int]
    id: UUID = field(default_factory=uuid4)
    seen: TaskInfo | None = None


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """The shim is killed again and again: whoever asks, asks again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await act()
        except (aiohttp.ClientError, OSError, AssertionError):
            assert time.monotonic() < deadline, "nobody answers"
            await asyncio.sleep(0.01)


async def live(shim: Stage, script: Script, marks: Path) -> None:
    """As a server does it: every order may be lost, and is then repeated."""

    async def submitted() -> TaskInfo:
        task = await shim.submit(id=str(script.id), gpu_indices=script.gpus)
        assert task.state == "running"
        return task

    async def ordered() -> None:
        command = f"echo {script.id} >> {marks}; sleep {0.4 if script.slow else 0.01}; exit {script.exit_code}"
        await shim.run(task, command)

    async def has_result() -> TaskInfo:
        seen = await shim.task(script.id)
        assert seen.result is not None
        return seen

    async def terminated() -> TaskInfo:
        seen = await shim.terminate(script.id, wait_s=5.0)
        assert seen.state == "terminated"
        return seen

    async def removed() -> Told:
        told = await shim.remove(script.id)
        assert told.status == 204
        return told

    task = await insist(submitted)
    await insist(ordered)
    if not script.terminated:
        task = await insist(has_result)
        await insist(lambda: shim.read_log(task))
    script.seen = await insist(terminated)
    await insist(removed)


async def killing(shim: Stage, dice: random.Random, lived: "asyncio.Future[list[None]]") -> int:
    kills = 0
    while not lived.done() and kills < KILLS:
        await asyncio.sleep(dice.uniform(0.0, 0.25))
        assert shim.process is not None
        shim.process.kill()
        await asyncio.to_thread(shim.process.wait)
        await shim.start()
        kills += 1
    return kills


async def test_killed_at_random_moments_nothing_is_lost_and_nothing_is_twice(shared_directory: Path) -> None:
    """Tasks come, run, end, are terminated and removed, while the shim is killed at every step of their lives."""
    dice = random.Random(SEED)
    async with stage(shared_directory) as shim:
        marks = shared_directory / f"marks-{uuid4()}"
        marks.touch()
        marks.chmod(0o666)
        scripts = [
            Script(n, dice.choice((0, 1, 42)), dice.random() < 0.3, dice.random() < 0.25, [n] if n < GPUS else [])
            for n in range(4 * KILLS)
        ]
        limit = asyncio.Semaphore(8)

        async def one(script: Script) -> None:
            async with limit:
                await live(shim, script, marks)

        lived = asyncio.gather(*(one(script) for script in scripts))
        assert await killing(shim, dice, lived) >= min(KILLS, 3)
        await lived
        starts = Counter(marks.read_text().split())
        for script in scripts:
            assert starts[str(script.id)] <= 1, "started twice"
            assert script.seen is not None
            if not script.terminated:
                assert starts[str(script.id)] == 1
                assert script.seen.result is not None
                assert script.seen.result.exit_code == script.exit_code
        await nothing_is_left(shim, scripts)


async def nothing_is_left(shim: Stage, scripts: list[Script]) -> None:
    assert (await shim.ask("GET", "/tasks")).json == {"tasks": []}
    assert shim.directories() == []
    everything = await shim.submit(gpu_indices=list(range(GPUS)))
    assert everything.state == "running", "every GPU was given back"
    bases = {Path(group).parent for group in shim.cgroups(everything.id)}
    assert all([one.name for one in base.iterdir() if one.is_dir()] == [str(everything.id)] for base in bases)
    for script in scripts:
        late = await shim.ask("POST", "/tasks", json=shim.order(id=str(script.id)))
        assert late.error == (409, "fenced")
    await shim.terminate(everything.id)
    left = (await shim.ask("POST", "/leave", json={})).json
    assert left == {"terminated": 0}
