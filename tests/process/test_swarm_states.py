"""Every change of state that the swarm's document allows, each by its name there, and every one that it does not."""

from dataclasses import dataclass

import pytest

from tests.api.conftest import Json, Reply
from tests.api.swarming import TASKS, Worker
from tests.process.stand import Stand
from tests.process.swarm import REAL, Scene, scene

pytestmark = [pytest.mark.xdist_group("swarm"), pytest.mark.usefixtures("swarm_hand")]

STATES = ("inactive", "available", "running", "pending_cancellation", "terminated", "cancelled")
BY_A_USER = {
    ("inactive", "available"), ("inactive", "cancelled"), ("available", "cancelled"), ("running", "cancelled"),
    # These do nothing and succeed.
    ("available", "available"), ("pending_cancellation", "cancelled"), ("terminated", "cancelled"),
    ("cancelled", "cancelled"),
}  # fmt: skip
BY_ITS_WORKER = {
    ("available", "running"), ("running", "terminated"), ("pending_cancellation", "terminated"),
    ("pending_cancellation", "cancelled"),
    # It gives back what it has not begun.
    ("running", "available"), ("pending_cancellation", "available"),
}  # fmt: skip


@dataclass
class Case:
    """A task that has come to a state, a continuation that waits for it, and the worker that has or had it."""

    id: str
    then: str
    worker: Worker


async def case(of: Scene, state: str, **fields: object) -> Case:
    first = "inactive" if state == "inactive" else "available"
    id, then = await of.submit(
        {"ref": "a", "command": "x", "state": first, **fields}, {"command": "x", "depends_on": ["a"]}
    )
    worker = await of.worker()
    if state in ("running", "pending_cancellation", "terminated"):
        assert len(await worker.claim()) == 1
    if state == "terminated":
        assert (await worker.patch(id, ended(0))).status == 200
    if state in ("pending_cancellation", "cancelled"):
        await of.cancel(id)
    assert await of.state(id) == state
    return Case(id, then, worker)


def ended(status: int | None, state: str = "terminated") -> Json:
    info = {"time_terminated": "2026-01-02T03:04:05Z"} | ({} if status is None else {"exit_status": status})
    return {"state": state, "execution_info": info}


def claim(worker: Worker) -> Json:
    return {"state": "running", "execution_info": {"worker": worker.id}}


@pytest.mark.parametrize("state", STATES)
async def test_no_user_makes_a_change_that_is_not_allowed(swarm: Stand, state: str) -> None:
    """Nobody who asks has to know the state: what cannot be is refused with 409 and the state, and nothing changes."""
    async with scene(swarm) as s:
        one = await case(s, state)
        before = await s.get(one.id)
        for wish in STATES:
            if (state, wish) in BY_A_USER:
                continue
            assert_refused(await s.patch(one.id, {"state": wish}), state)
            assert await s.get(one.id) == before, wish
        assert await s.state(one.then) == {"terminated": "available", "cancelled": "cancelled"}.get(state, "inactive")


@pytest.mark.parametrize("state", STATES)
async def test_no_worker_makes_a_change_that_is_not_allowed(swarm: Stand, state: str) -> None:
    """Its own worker may do no more than the table says, and one that does not have it nothing but claim it."""
    async with scene(swarm) as s:
        one = await case(s, state)
        other = await s.worker()
        before = await s.get(one.id)
        for wish in STATES:
            for worker in (one.worker, other):
                if (state, wish) in BY_ITS_WORKER and (worker is one.worker or state == "available"):
                    continue
                body = claim(worker) if wish == "running" else ended(0, wish)
                assert_refused(await worker.patch(one.id, body), state)
                assert await s.get(one.id) == before, wish


def assert_refused(answer: Reply, state: str) -> None:
    assert (answer.status, answer.code) == (409, "conflict"), answer.body
    assert f"is {state}" in answer.body["error"]["message"]


@pytest.mark.parametrize("wish", ["unknown", "done", "", None, 3])
async def test_a_state_that_does_not_exist_is_no_change(swarm: Stand, wish: object) -> None:
    async with scene(swarm) as s:
        id = await s.one()
        told = await s.patch(id, {"state": wish})
        assert told.status == (200 if wish is None else 422)
        assert await s.state(id) == "available"


async def test_inactive_to_available(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one = await case(s, "inactive")
        assert (await s.patch(one.id, {"state": "available"})).body["state"] == "available"
        assert [work["id"] for work in await one.worker.claim()] == [one.id]


async def test_inactive_to_available_only_when_it_waits_for_nobody(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one = await case(s, "available")
        assert_refused(await s.patch(one.then, {"state": "available"}), "inactive")
        assert await s.state(one.then) == "inactive"


async def test_available_to_inactive_is_never_allowed(swarm: Stand) -> None:
    """Its continuations might have been stolen by then."""
    async with scene(swarm) as s:
        one = await case(s, "available")
        assert_refused(await s.patch(one.id, {"state": "inactive"}), "available")


@pytest.mark.parametrize("state", ["inactive", "available"])
async def test_inactive_or_available_to_cancelled(swarm: Stand, state: str) -> None:
    async with scene(swarm) as s:
        one = await case(s, state)
        assert (await s.patch(one.id, {"state": "cancelled"})).body["state"] == "cancelled"
        assert await s.state(one.then) == "cancelled"
        assert await one.worker.claim() == []


async def test_available_to_running_counts_the_attempt_and_opens_a_record(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one = await case(s, "available", max_retry_count=2)
        for number in (1, 2):
            claimed = await one.worker.patch(one.id, claim(one.worker))
            assert (claimed.status, claimed.body["state"], claimed.body["retry_count"]) == (200, "running", number)
            history = await s.history(one.id)
            assert [(info["attempt"], info["worker"]) for info in history] == [
                (attempt, one.worker.id) for attempt in range(1, number + 1)
            ]
            assert (history[-1]["exit_status"], history[-1]["outcome"]) == (None, None)
            await one.worker.patch(one.id, ended(1))


async def test_running_to_terminated_with_success_releases_its_continuations(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one = await case(s, "running", max_retry_count=5)
        told = await one.worker.patch(one.id, ended(0))
        assert (told.body["state"], told.body["exit_status"]) == ("terminated", 0)
        assert await s.state(one.then) == "available"


async def test_running_to_terminated_without_success_tries_again_while_attempts_are_left(swarm: Stand) -> None:
    async with scene(swarm) as s:
        one = await case(s, "running", max_retry_count=2)
        told = await one.worker.patch(one.id, ended(3))
        assert (told.body["state"], told.body["retry_count"], await s.state(one.then)) == ("available", 1, "inactive")
        (record,) = await s.history(one.id)
        assert (record["exit_status"], record["outcome"]) == (3, "ended")


@pytest.mark.parametrize("status", [1, -9, None])
async def test_running_to_terminated_without_success_cancels_its_continuations_in_the_end(
    swarm: Stand, status: int | None
) -> None:
    async with scene(swarm) as s:
        one = await case(s, "running")
        told = await one.worker.patch(one.id, ended(status))
        assert (told.body["state"], told.body["exit_status"]) == ("terminated", status)
        assert await s.state(one.then) == "cancelled"


async def test_a_real_task_that_fails_is_tried_again_and_its_continuations_end_as_it_does(swarm: Stand) -> None:
    async with scene(swarm, REAL) as s:
        bad, after_bad, good, after_good = await s.submit(
            {"ref": "bad", "command": "exit 6", "max_retry_count": 3},
            {"command": "true", "depends_on": ["bad"]},
            {"ref": "good", "command": "test $STOKER_ATTEMPT = 3", "max_retry_count": 3},
            {"command": "true", "depends_on": ["good"]},
        )
        await s.reaches(after_bad, "cancelled")
        await s.reaches(after_good, "terminated")
        assert [info["exit_status"] for info in await s.history(bad)] == [6, 6, 6]
        assert [info["exit_status"] for info in await s.history(good)] == [1, 1, 0]
        assert await s.history(after_bad) == [] and len(await s.history(after_good)) == 1


async def test_running_to_pending_cancellation(swarm: Stand) -> None:
    """Somebody asks for `cancelled`; attempts that are left are not made."""
    async with scene(swarm) as s:
        one = await case(s, "running", max_retry_count=5)
        assert (await s.patch(one.id, {"state": "cancelled"})).body["state"] == "pending_cancellation"
        assert (await s.state(one.then), (await s.get(one.id))["worker"]) == ("inactive", one.worker.id)
        assert (await one.worker.patch(one.id, ended(1))).body["state"] == "terminated"
        assert len(await s.history(one.id)) == 1


@pytest.mark.parametrize(("status", "then"), [(0, "available"), (1, "cancelled"), (None, "cancelled")])
async def test_pending_cancellation_to_terminated(swarm: Stand, status: int | None, then: str) -> None:
    """It had ended already: what it came to decides for its continuations."""
    async with scene(swarm) as s:
        one = await case(s, "pending_cancellation")
        told = await one.worker.patch(one.id, ended(status))
        assert (told.body["state"], await s.state(one.then)) == ("terminated", then)
        (record,) = await s.history(one.id)
        assert (record["outcome"], record["exit_status"]) == ("ended", status)


@pytest.mark.parametrize("status", [None, 0, 143])
async def test_pending_cancellation_to_cancelled(swarm: Stand, status: int | None) -> None:
    """Its worker stopped it, so it was not done, whatever its status."""
    async with scene(swarm) as s:
        one = await case(s, "pending_cancellation")
        told = await one.worker.patch(one.id, ended(status, "cancelled"))
        assert (told.body["state"], await s.state(one.then)) == ("cancelled", "cancelled")
        (record,) = await s.history(one.id)
        assert (record["outcome"], record["exit_status"]) == ("cancelled", status)


@pytest.mark.parametrize("state", ["running", "pending_cancellation"])
async def test_what_a_worker_has_not_begun_goes_back_and_leaves_no_record(swarm: Stand, state: str) -> None:
    async with scene(swarm) as s:
        one = await case(s, state)
        told = await one.worker.patch(one.id, {"state": "available"})
        assert told.body["state"] == ("available" if state == "running" else "cancelled")
        assert (await s.history(one.id), (await s.get(one.id))["retry_count"]) == ([], 0)


async def test_an_ended_task_goes_nowhere_and_its_outcome_stays(swarm: Stand) -> None:
    async with scene(swarm) as s:
        for state in ("terminated", "cancelled"):
            one = await case(s, state)
            before = await s.get(one.id)
            await s.cancel(one.id)
            for change in ("add_continuations", "remove_continuations"):
                told = await s.client.post(f"{TASKS}/{one.id}/{change}", {"continuations": [one.then]})
                assert (told.status, told.code) == (409, "conflict")
            assert await s.get(one.id) == before
