"""A job that comes with its task's order: the runner begins it at once, and nobody has to knock at its door."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.agents.shim_stage import Stage, Told, shared_stage, stage, until


@pytest.fixture(scope="module")
def shim(shared_directory: Path) -> Iterator[Stage]:
    with shared_stage(shared_directory) as made:
        yield made


def with_job(shim: Stage, *commands: str, **more: Any) -> dict[str, Any]:
    order = shim.order()
    return order | {"job": shim.job(order["id"], *commands, start=True, **more)}


async def submitted(shim: Stage, order: dict[str, Any]) -> Told:
    return await shim.ask("POST", "/tasks", json=order)


async def test_a_job_that_comes_with_its_order_runs_without_another_word(shim: Stage) -> None:
    """The answer comes when the runner has it on disk; its end is news like that of any other."""
    told = await submitted(shim, with_job(shim, "echo out", "exit 3"))
    task = told.task
    assert (told.status, task.state, task.job_taken) == (201, "running", True)
    assert (shim.directory(task.id) / "order.json").exists()
    ended = await shim.reaches(task.id, lambda task: task.result)
    assert ended.result is not None
    assert (ended.result.exit_code, ended.job_taken) == (3, False), "only the order's own answer says so"
    await shim.read_log(task)
    assert (await shim.ended(task.id)).message == "out"


async def test_said_again_it_is_taken_once_and_the_answer_does_not_claim_more(shim: Stage) -> None:
    """The first answer was lost. The second order may be another one, so whoever sends it has to ask the runner."""
    order = with_job(shim, "echo once", "sleep 60")
    assert (await submitted(shim, order)).task.job_taken
    again = await submitted(shim, order)
    assert (again.status, again.task.job_taken) == (200, False)
    assert (await shim.tell_runner(again.task, "POST", "/job", json=order["job"])).status == 200
    ended = await shim.terminate(again.task.id)
    assert (await shim.ask("GET", f"/tasks/{ended.id}/log?offset=0")).body.count(b"once") == 1


async def test_what_its_runner_refuses_is_told_to_whoever_sends_it_once_more(shim: Stage) -> None:
    """A job of another task: the task is there, its runner waits, and says why when it is asked."""
    order = shim.order()
    order["job"] = shim.job(uuid4(), "true", start=True)
    task = (await submitted(shim, order)).task
    assert (task.state, task.job_taken) == ("running", False)
    assert (await shim.tell_runner(task, "POST", "/job", json=order["job"])).error == (409, "other_job")
    await shim.terminate(task.id)


async def test_a_job_is_not_kept_by_the_shim(shim: Stage) -> None:
    """Its variables may be secrets; they lie with its runner, in files that nobody else reads, and go with it."""
    task = (await submitted(shim, with_job(shim, "sleep 60", env={"PASSWORD": "hidden-in-here"}))).task
    await until(lambda: (shim.directory(task.id) / "order.json").exists())
    assert "hidden-in-here" not in (shim.directory(task.id) / "task.jsonl").read_text()
    assert all((shim.directory(task.id) / name).stat().st_mode & 0o077 == 0 for name in ("order.json", "runner.json"))
    await shim.terminate(task.id)


async def test_a_shim_that_died_before_its_fork_starts_a_runner_that_waits(shared_directory: Path) -> None:
    """It kept the order and not the job. The server's request broke off, so it sends the job to the runner."""
    async with stage(shared_directory) as shim:
        order = with_job(shim, "exit 4")
        del order["job"]
        task = (await submitted(shim, order)).task
        await shim.restart()
        again = await submitted(shim, order | {"job": shim.job(order["id"], "exit 4", start=True)})
        assert (again.status, again.task.job_taken) == (200, False)
        assert (await shim.tell_runner(again.task, "POST", "/job", json=shim.job(task.id, "exit 4"))).status == 200
        assert (await shim.tell_runner(again.task, "POST", "/run")).status == 202
        ended = await shim.reaches(task.id, lambda task: task.result)
        assert ended.result is not None
        assert ended.result.exit_code == 4
