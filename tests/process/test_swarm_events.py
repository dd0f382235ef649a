"""The events of the swarm's document, one test each: creation, continuations, work stealing, cancellation.

A real server hears them over HTTP. The worker is a real one wherever it can be made to do what the event tells, and
otherwise played. Progress reports are in `test_swarm_reports.py`, changes of state in `test_swarm_states.py`.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Json
from tests.api.swarming import TASKS, WORKERS, held
from tests.process.stand import Stand
from tests.process.swarm import REAL, Scene, scene

pytestmark = [pytest.mark.xdist_group("swarm"), pytest.mark.usefixtures("swarm_hand")]

WAITING: Json = {"command": "true", "state": "inactive"}
PAST = "2026-01-01T00:00:00Z"


async def counts(of: Scene, *ids: str) -> list[int]:
    return [(await of.get(id))["pending_dependency_count"] for id in ids]


async def test_task_creation_is_inactive_or_available(swarm: Stand) -> None:
    async with scene(swarm) as s:
        for state in ("running", "pending_cancellation", "terminated", "cancelled", "unknown"):
            refused = await s.client.post(TASKS, {"command": "true", "group": s.group, "state": state})
            assert (refused.status, refused.code) == (422, "invalid"), state
        made = [await s.one(state=state) for state in ("inactive", "available")]
        assert await s.states(*made) == ["inactive", "available"]
        assert (await s.client.get(f"{TASKS}/statistics?group={s.group}")).body["total"] == 2


async def test_task_creation_acquires_each_continuation(swarm: Stand) -> None:
    async with scene(swarm) as s:
        first, second = await s.submit(WAITING, WAITING)
        await s.one(continuations=[first, second])
        await s.one(continuations=[first], state="inactive")
        assert await counts(s, first, second) == [2, 1]


@pytest.mark.parametrize("state", ["available", "running", "pending_cancellation", "terminated", "cancelled"])
async def test_acquire_continuation_asserts_that_the_state_is_inactive(swarm: Stand, state: str) -> None:
    """Nothing of such a request is stored."""
    async with scene(swarm) as s:
        target = await in_state(s, state)
        refused = await s.client.post(TASKS, {"command": "true", "group": s.group, "continuations": [target]})
        assert (refused.status, refused.code) == (409, "conflict")
        assert state in refused.body["error"]["message"]
        assert await counts(s, target) == [0]
        assert (await s.client.get(f"{TASKS}/statistics?group={s.group}")).body["total"] == 1


async def in_state(of: Scene, state: str) -> str:
    """A task that has come so far, in the hands of a played worker where somebody must have it."""
    id = await of.one()
    if state in ("running", "pending_cancellation", "terminated"):
        worker = await of.worker()
        (work,) = await worker.claim()
        if state == "terminated":
            await worker.end(work)
    if state in ("pending_cancellation", "cancelled"):
        await of.cancel(id)
    assert await of.state(id) == state
    return id


async def test_task_creation_without_a_command_releases_its_continuations_and_is_terminated(swarm: Stand) -> None:
    """A barrier has nothing to run. One that has to wait passes when its turn comes."""
    async with scene(swarm) as s:
        (behind,) = await s.submit(WAITING)
        passed = await s.one(command=None, continuations=[behind])
        assert await s.states(passed, behind) == ["terminated", "available"]
        first, barrier, last = await s.submit(
            {"ref": "first", "command": "true"}, {"ref": "all", "depends_on": ["first"]}, {**WAITING}
        )
        added = await s.client.post(f"{TASKS}/{barrier}/add_continuations", {"continuations": [last]})
        assert added.status == 200, added.body
        worker = await s.worker()
        await worker.end(*[work for work in await worker.claim() if work["id"] == first])
        assert await s.states(first, barrier, last) == ["terminated", "terminated", "available"]
        assert await s.history(barrier) == []


async def test_release_continuation_counts_down_and_makes_it_available_at_zero(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one, other, both = await s.submit(
            {"ref": "a", "command": "x"}, {"ref": "b", "command": "x"}, {"command": "x", "depends_on": ["a", "b"]}
        )
        worker = await s.worker()
        works = {work["id"]: work for work in await worker.claim()}
        await worker.end(works[one])
        assert (await s.state(both), await counts(s, both)) == ("inactive", [1])
        told_again = await worker.end(works[one])
        assert told_again["refused"] and await counts(s, both) == [1]
        await worker.end(works[other])
        assert (await s.state(both), await counts(s, both)) == ("available", [0])


async def test_release_continuations_opens_all_of_them(swarm: Stand, tmp_path: Path) -> None:
    """A real worker runs two layers of a graph; what each task sees on disk tells in which order."""
    async with scene(swarm, REAL) as s:
        first, *middle, last = await s.submit(
            {"ref": "first", "command": f"touch {tmp_path}/first"},
            *({"ref": f"m{n}", "command": f"mv {tmp_path}/first {tmp_path}/m{n} || touch {tmp_path}/m{n}"}
              | {"depends_on": ["first"]} for n in range(5)),
            {"command": f"ls {tmp_path}", "depends_on": [f"m{n}" for n in range(5)]},
        )  # fmt: skip
        assert (await s.reaches(last, "terminated"))["exit_status"] == 0
        assert (await s.output(last)).split() == [f"m{n}".encode() for n in range(5)]
        assert set(await s.states(first, *middle)) == {"terminated"}


async def test_add_continuation(swarm: Stand) -> None:
    """While its source runs. Said twice it is one edge."""
    async with scene(swarm) as s:
        source = await s.one()
        (target,) = await s.submit(WAITING)
        worker = await s.worker()
        (work,) = await worker.claim()
        for _ in range(2):
            added = await s.client.post(f"{TASKS}/{source}/add_continuations", {"continuations": [target]})
            assert (added.status, added.body["continuations"]) == (200, [target])
            assert await counts(s, target) == [1]
        await worker.end(work)
        assert await s.state(target) == "available"


async def test_remove_continuation(swarm: Stand) -> None:
    """It releases; what is not there cannot be removed, so no count falls below what is waited for."""
    async with scene(swarm) as s:
        (target,) = await s.submit(WAITING)
        first, second = await s.submit(*({"command": "x", "continuations": [target]} for _ in range(2)))
        for status, left, state in ((200, 1, "inactive"), (404, 1, "inactive")):
            told = await s.client.post(f"{TASKS}/{first}/remove_continuations", {"continuations": [target]})
            assert (told.status, await counts(s, target), await s.state(target)) == (status, [left], state)
        told = await s.client.post(f"{TASKS}/{second}/remove_continuations", {"continuations": [target]})
        assert (told.status, await s.state(target)) == (200, "available")


async def test_continuations_are_read_only_outside_their_virtual_resources(swarm: Stand) -> None:
    async with scene(swarm) as s:
        source = await s.one()
        (target,) = await s.submit(WAITING)
        refused = await s.patch(source, {"continuations": [target]})
        assert (refused.status, refused.code) == (422, "invalid")
        assert (await counts(s, target), (await s.get(source))["continuations"]) == ([0], [])


async def test_the_worker_obtains_a_list_of_available_tasks(swarm: Stand) -> None:
    """Only the fields that it needs travel."""
    async with scene(swarm) as s:
        wanted = await s.one(max_termination_time=3.5, requested_resources={"cpus": 2})
        await s.one(state="inactive")
        fields = "id,max_termination_time,requested_resources"
        page = await s.client.get(f"{TASKS}?state=available&group={s.group}&fields={fields}")
        assert page.body["items"] == [
            {"id": wanted, "max_termination_time": 3.5, "requested_resources": {"cpus": 2}},
        ]


async def test_claim_task(swarm: Stand) -> None:
    """By PATCH with its own identity; then it says when it began."""
    async with scene(swarm) as s:
        id = await s.one()
        worker = await s.worker()
        claimed = await worker.patch(id, {"state": "running", "execution_info": {"worker": worker.id}})
        assert (claimed.status, claimed.body["state"], claimed.body["worker"]) == (200, "running", worker.id)
        began = await worker.client.post(
            f"{TASKS}/{id}/execution_info/time_started", {"value": PAST}, headers={"Stoker-Worker": worker.id}
        )
        assert began.status == 200, began.body
        info = (await s.get(id))["execution_info"]
        assert (info["worker"], info["time_started"]) == (worker.id, PAST)


async def test_claim_task_that_another_worker_has_claimed_or_somebody_cancelled(swarm: Stand) -> None:
    """The request is unsuccessful and says why; the next one is for another task."""
    async with scene(swarm) as s:
        taken, cancelled, free = await s.submit(*({"command": "x"} for _ in range(3)))
        quick, late = await s.worker(), await s.worker()

        async def claim(worker: Any, id: str) -> Any:
            return await worker.patch(id, {"state": "running", "execution_info": {"worker": worker.id}})

        assert (await claim(quick, taken)).status == 200
        await s.cancel(cancelled)
        for id, state in ((taken, "running"), (cancelled, "cancelled")):
            refused = await claim(late, id)
            assert (refused.status, refused.code) == (409, "conflict")
            assert f"is {state}" in refused.body["error"]["message"]
        view = await s.client.get(f"{TASKS}?state=available&group={s.group}&fields=id")
        assert view.body["items"] == [{"id": free}]
        assert (await claim(late, free)).status == 200
        assert (await s.get(taken))["worker"] == quick.id


async def test_a_worker_executes_the_task_that_it_has_claimed(swarm: Stand) -> None:
    async with scene(swarm, REAL) as s:
        id = await s.one(command="sleep 0.5; echo $STOKER_ATTEMPT; exit 4")
        running = await s.begun(id)
        (real,) = [each["id"] for each in (await s.client.get(WORKERS)).body["items"] if each["group"] == REAL]
        assert (running["worker"], running["retry_count"]) == (real, 1)
        ended = await s.reaches(id, "terminated")
        (info,) = await s.history(id)
        assert (ended["exit_status"], info["exit_status"], info["outcome"], info["worker"]) == (4, 4, "ended", real)
        assert info["claimed_at"] <= info["time_started"] < info["time_terminated"]
        assert await s.output(id) == b"1\n"


async def test_work_stealing_leaves_no_task_out_and_takes_none_twice(swarm: Stand) -> None:
    async with scene(swarm) as s:
        ids = await s.submit(*({"command": "x"} for _ in range(200)))
        workers = await asyncio.gather(*(s.worker() for _ in range(8)))
        taken = await asyncio.gather(*(worker.claim(10) for worker in workers for _ in range(5)))
        assert sorted(work["id"] for works in taken for work in works) == sorted(ids)


async def test_a_claim_whose_answer_is_lost_is_given_back_by_the_next_heartbeat(swarm: Stand) -> None:
    async with scene(swarm) as s:
        id = await s.one()
        worker = await s.worker()
        (work,) = await worker.claim()
        await worker.beat(work, number=1)
        assert await s.state(id) == "running"
        await worker.beat(number=1)
        assert (await s.state(id), await s.history(id)) == ("available", [])
        assert (await worker.report(ended=[{**held(work), "exit_status": 0}]))["refused"]
