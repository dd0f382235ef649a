"""How long a runner waits for what may never come. In this process, with shorter limits."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from stoker.runner import life as life_module
from stoker.runner.edge import guard
from stoker.runner.life import Life
from stoker.runner.place import Place
from stoker.runner.reaper import Reaper
from stoker.runner.segment import Segments
from stoker.runner.spool import OwnLog, Spool
from stoker.wire.runner import Assignment, Failure, JobOrder, Result, RunnerState


@asynccontextmanager
async def living(place: Path, assignment: Assignment) -> AsyncIterator[Life]:
    own = OwnLog(Spool("own", Segments(place / "own"), lambda _: None), 10_000)
    spool = Spool("log", Segments(place / "log"), own.say)
    writers = [asyncio.create_task(one.drive()) for one in (spool, own.spool)]
    yield Life(Place(place), assignment, spool, own, Reaper())
    for writer in writers:
        writer.cancel()


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    return Assignment(id=uuid4(), project_id=uuid4(), token="t" * 16, socket=str(tmp_path / "s"))


def order_for(assignment: Assignment) -> JobOrder:
    return JobOrder(
        fence=1,
        job_id=assignment.id,
        run_id=uuid4(),
        run_name="x",
        project="p",
        submission=1,
        commands=("touch ran",),
        log_quota_bytes=1000,
    )


async def test_a_runner_without_a_job_leaves(
    tmp_path: Path, assignment: Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "JOB_WAIT_S", 0.05)
    async with living(tmp_path, assignment) as life:
        await asyncio.wait_for(life.live(), 10)
        assert life.result is None
        assert not (tmp_path / "result.json").exists()


async def test_a_job_that_nobody_starts_ends_without_having_run(
    tmp_path: Path, assignment: Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "START_WAIT_S", 0.05)
    async with living(tmp_path, assignment) as life:
        await life.submit(order_for(assignment))
        ended = asyncio.create_task(life.live())
        async with asyncio.timeout(10):
            while life.state != RunnerState.SERVE_LOGS:
                await asyncio.sleep(0.01)
        assert life.result is not None
        assert life.result.failure == Failure.EXECUTOR
        ended.cancel()


async def test_a_log_that_nobody_reads_is_left_on_disk(
    tmp_path: Path, assignment: Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "READERS_WAIT_S", 0.05)
    (tmp_path / "result.json").write_text(Result(exit_code=0, ended_at=1.0, log_end=0).model_dump_json())
    async with living(tmp_path, assignment) as life:
        await asyncio.wait_for(life.live(), 10)
        assert life.state == RunnerState.SERVE_LOGS


async def test_the_own_log_and_live_readers_are_not_waited_for_without_end(
    tmp_path: Path, assignment: Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "LAST_READERS_WAIT_S", 0.05)
    (tmp_path / "result.json").write_text(Result(exit_code=0, ended_at=1.0, log_end=0).model_dump_json())
    async with living(tmp_path, assignment) as life:
        ended = asyncio.create_task(life.live())
        await asyncio.sleep(0)
        with life.reader(0):
            life.log_pulled(0)
            await asyncio.wait_for(ended, 10)
        assert life.state == RunnerState.WAIT_LOGS_FINISHED


async def test_a_runner_whose_directory_is_gone_does_not_stay(
    tmp_path: Path, assignment: Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removed the whole home; without a job there is nothing to stay for."""
    monkeypatch.setattr(life_module, "PLACE_LOOK_S", 0.01)
    async with living(tmp_path, assignment) as life:
        gone = asyncio.create_task(life.abandoned())
        await asyncio.sleep(0.05)
        assert not gone.done()
        shutil.rmtree(tmp_path)
        await asyncio.wait_for(gone, 10)


async def test_half_a_user_is_refused(assignment: Assignment) -> None:
    """With a uid and no gid the job would run as root."""
    with pytest.raises(ValueError, match="uid and gid come together"):
        Assignment.model_validate(assignment.model_dump() | {"uid": 1000})


async def test_a_mistake_of_ours_is_told_to_us_and_not_to_the_caller() -> None:
    told: list[str] = []

    async def broken(request: web.Request) -> web.Response:
        raise RuntimeError("a secret detail")

    app = web.Application(
        middlewares=[guard("token", lambda request: None, lambda what, error: told.append(f"{what} {error}"))]
    )
    app.router.add_get("/", broken)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/", headers={"Authorization": "Bearer token"})
        assert answer.status == 500
        body = await answer.text()
    assert json.loads(body)["error"]["code"] == "broken"
    assert "secret" not in body
    assert told == ["GET / a secret detail"]
