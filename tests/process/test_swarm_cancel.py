"""Cancellation as the swarm's document tells it, on the side of the server and on that of a worker."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.api.conftest import Json
from tests.api.swarming import TASKS, held
from tests.process.stand import Stand
from tests.process.swarm import REAL, Scene, scene, until
from tests.worker.stage import Hand, processes_of_task

pytestmark = [pytest.mark.xdist_group("swarm"), pytest.mark.usefixtures("swarm_hand")]

GRACE_S = 20.0
UNTIL_ASKED = "trap '' TERM; while :; do sleep 0.05; done"


async def chain(of: Scene, command: str = "x", **fields: object) -> list[str]:
    """A task, its continuation, and what continues that."""
    return await of.submit(
        {"ref": "a", "command": command, **fields},
        {"ref": "b", "command": "x", "depends_on": ["a"]},
        {"command": "x", "depends_on": ["b"]},
    )


async def test_cancel_task_that_is_pending_or_has_ended_does_nothing_and_succeeds(swarm: Stand) -> None:
    """By either request, as often as somebody likes."""
    async with scene(swarm) as s:
        pending, terminated, cancelled = await s.submit(*({"command": "x"} for _ in range(3)))
        await s.cancel(cancelled)
        worker = await s.worker()
        works = {work["id"]: work for work in await worker.claim()}
        await worker.end(works[terminated])
        await s.cancel(pending)
        before = [await s.get(id) for id in (pending, terminated, cancelled)]
        for id in (pending, terminated, cancelled):
            assert (await s.patch(id, {"state": "cancelled"})).status == 200
            assert await s.cancel(id) == {"cancelled": 0, "pending": 0}
        assert [await s.get(id) for id in (pending, terminated, cancelled)] == before


@pytest.mark.parametrize("state", ["inactive", "available"])
async def test_cancel_task_that_does_not_run_cancels_its_continuations(swarm: Stand, state: str) -> None:
    async with scene(swarm) as s:
        ids = await chain(s, state=state)
        assert await s.cancel(ids[0]) == {"cancelled": 3, "pending": 0}
        assert await s.states(*ids) == ["cancelled"] * 3
        assert [await s.history(id) for id in ids] == [[], [], []]


async def test_cancel_task_that_runs_returns_at_once_and_its_worker_is_told(swarm: Stand) -> None:
    """Over the dedicated socket: heartbeats are ten seconds apart. Its continuations end when it has."""
    async with scene(swarm, REAL) as s:
        ids = await chain(s, "trap 'sleep 0.5; exit 9' TERM; sleep 1000 & wait", max_termination_time=GRACE_S)
        await s.begun(ids[0])
        asked = time.monotonic()
        assert await s.cancel(ids[0]) == {"cancelled": 0, "pending": 1}
        assert await s.states(*ids) == ["pending_cancellation", "inactive", "inactive"]
        await s.reaches(ids[0], "cancelled", patience_s=5)
        assert time.monotonic() - asked < 5
        assert await s.states(*ids[1:]) == ["cancelled", "cancelled"]


async def test_cancel_task_needs_no_worker_that_hears_of_it(swarm: Stand) -> None:
    """One has no socket. The server goes on; the answer to the next heartbeat tells, and the next update settles it."""
    async with scene(swarm) as s:
        ids = await chain(s)
        worker = await s.worker()
        (work,) = await worker.claim()
        await s.cancel(ids[0])
        assert (await worker.beat(work))["cancelled"] == [held(work)]
        assert await s.state(ids[0]) == "pending_cancellation"
        await worker.report(ended=[{**held(work), "stopped": True}])
        assert await s.states(*ids) == ["cancelled"] * 3


async def test_cancel_task_at_the_worker_uses_sigterm_and_includes_the_status(swarm: Stand) -> None:
    async with scene(swarm, REAL) as s:
        id = await s.one(command="trap 'exit 7' TERM; sleep 1000 & wait", max_termination_time=GRACE_S)
        await s.begun(id)
        await s.cancel(id)
        await s.reaches(id, "cancelled")
        (info,) = await s.history(id)
        assert (info["outcome"], info["exit_status"]) == ("cancelled", 7)
        assert info["time_terminated"] is not None
        assert not processes_of_task(id)


async def test_cancel_task_at_the_worker_resorts_to_sigkill_after_max_termination_time(swarm: Stand) -> None:
    """Then there is no status to include."""
    async with scene(swarm, REAL) as s:
        id = await s.one(command=UNTIL_ASKED, max_termination_time=0.7)
        await s.begun(id)
        asked = time.monotonic()
        await s.cancel(id)
        await s.reaches(id, "cancelled")
        assert time.monotonic() - asked >= 0.7
        (info,) = await s.history(id)
        assert (info["outcome"], info["exit_status"]) == ("cancelled", None)
        assert not processes_of_task(id)


async def test_cancel_task_at_the_worker_that_has_already_terminated(
    swarm: Stand, swarm_hand: Hand, tmp_path: Path
) -> None:
    """It ended while its worker was frozen, and was cancelled then: what counts is that it ended."""
    async with scene(swarm, REAL) as s:
        gate, worker = tmp_path / "gate", swarm_hand.pid
        ids = await s.submit(
            {"ref": "a", "command": f"until [ -e {gate} ]; do sleep 0.02; done"},
            {"command": "true", "depends_on": ["a"]},
        )
        await s.begun(ids[0])
        os.kill(worker, signal.SIGSTOP)
        try:
            gate.touch()
            await until(lambda: not processes_of_task(ids[0]), "it ended")
            await s.cancel(ids[0])
            assert await s.state(ids[0]) == "pending_cancellation"
        finally:
            os.kill(worker, signal.SIGCONT)
        ended = await s.reaches(ids[0], "terminated", "cancelled")
        assert (ended["state"], ended["exit_status"]) == ("terminated", 0)
        await s.reaches(ids[1], "terminated")


async def test_send_task_ended_update(swarm: Stand) -> None:
    """A PATCH with the state, the time, and the status where there is one."""
    async with scene(swarm) as s:
        terminated, cancelled, without = await s.submit(*({"command": "x"} for _ in range(3)))
        worker = await s.worker()
        await worker.claim()
        await s.cancel(cancelled, without)
        time_s = "2026-01-02T03:04:05Z"
        updates: list[tuple[str, str, Json]] = [
            (terminated, "terminated", {"time_terminated": time_s, "exit_status": 0}),
            (cancelled, "cancelled", {"time_terminated": time_s, "exit_status": 143}),
            (without, "cancelled", {"time_terminated": time_s}),
        ]
        for id, state, info in updates:
            sent = await worker.patch(id, {"state": state, "execution_info": info})
            assert (sent.status, sent.body["state"]) == (200, state), sent.body
            (kept,) = await s.history(id)
            assert (kept["time_terminated"], kept["exit_status"]) == (time_s, info.get("exit_status"))
            again = await worker.patch(id, {"state": state, "execution_info": info})
            assert again.status == 409


async def test_cancellations_of_many_that_run_are_all_heard(swarm: Stand) -> None:
    async with scene(swarm, REAL) as s:
        ids = await s.submit(*({"command": "sleep 1000", "requested_resources": {"cpus": 0.25}} for _ in range(24)))
        await asyncio.gather(*(s.begun(id) for id in ids))
        told = await s.client.post(f"{TASKS}/cancel", {"group": REAL, "state": ["running"]})
        assert told.body == {"cancelled": 0, "pending": 24}
        await asyncio.gather(*(s.reaches(id, "cancelled") for id in ids))
