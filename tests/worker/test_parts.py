"""The parts of a worker by themselves."""

import os
import signal
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.core.errors import UserError
from stoker.core.fit import Room
from stoker.wire.worker import Work
from stoker.worker import host
from stoker.worker.attempt import Attempt, Why
from stoker.worker.guard import Guard, boot_time
from stoker.worker.limits import PASSING_S
from stoker.worker.pace import Pace
from stoker.worker.pin import Pins
from stoker.worker.place import Place
from stoker.worker.queue import Queue


def attempt(**wants: float) -> Attempt:
    work = Work(id=uuid4(), attempt=1, command=("true",), requested_resources=wants)
    return Attempt.of(work, 0.0, spare=False)


def test_a_large_task_is_passed_for_a_while_and_then_waited_for() -> None:
    queue, room = Queue(), Room({"cpus": 2})
    large, small, other = attempt(cpus=4), attempt(cpus=1), attempt(cpus=2)
    for one in (large, small, other):
        queue.add(one)
    assert queue.next(room, 100.0) == (small, {"cpus": 1})
    assert queue.next(room, 100.0 + PASSING_S - 0.1) == (other, {"cpus": 2})
    queue.add(attempt(cpus=1))
    assert queue.next(room, 100.0 + PASSING_S) is None
    assert queue.next(Room({"cpus": 4}), 100.0 + PASSING_S) == (large, {"cpus": 4})
    assert queue.next(room, 100.0 + PASSING_S) is not None
    assert not queue


def test_equal_tasks_are_not_looked_through() -> None:
    queue = Queue()
    for _ in range(3):
        queue.add(attempt(cpus=4))
    assert queue.next(Room({"cpus": 2}), 0.0) is None
    assert queue.left_of(Room({"cpus": 2})) == Room({"cpus": 0})
    assert queue.left_of(Room({"cpus": 20})) == Room({"cpus": 8})


def test_short_tasks_are_claimed_ahead_and_long_ones_are_not() -> None:
    pace = Pace()
    assert pace.ahead(2) == 0
    pace.ended(0.002)
    assert pace.ahead(2) == pytest.approx(100, abs=1)
    assert pace.leisure_s(2, 0) == 0
    assert pace.leisure_s(2, 60) == pytest.approx(0.01)
    assert pace.leisure_s(2, 100) == pytest.approx(0.025)
    pace.answered(0.1)
    assert pace.ahead(2) == pytest.approx(120, abs=1)
    assert pace.leisure_s(2, 60) == pytest.approx(0, abs=1e-6)
    for _ in range(100):
        pace.ended(3.0)
    assert pace.ahead(2) == 0


def test_a_pair_of_files_is_used_again_only_when_nobody_has_it_open(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.take()
    os.write(first.files[0], b"something")
    place.give_back(first, empty=False)
    second = place.take()
    assert second is first and second.begin() == [b"", b""]
    fled = subprocess.Popen(["sleep", "100"], stdout=os.open(second.paths[0], os.O_WRONLY))
    try:
        place.give_back(second, empty=True)
        third = place.take()
        assert third is not second and third.there() and not os.path.exists(second.paths[0])
    finally:
        fled.kill()
        fled.wait()
    place.close()
    assert list(tmp_path.iterdir()) == []


def test_whole_cpus_are_given_to_one_at_a_time() -> None:
    pins = Pins([4, 5, 6])
    first = pins.take({"cpus": 2})
    assert first == (4, 5)
    assert pins.take({"cpus": 0.5}) == ()
    assert pins.take({"cpus": 2}) == ()
    pins.give_back(first)
    assert pins.take({"cpus": 3}) == (4, 5, 6)


def test_what_a_host_offers_is_found_or_said() -> None:
    found = host.total(None, None, 0, {})
    assert 0 < found.amounts["cpus"] <= len(os.sched_getaffinity(0))
    assert found.amounts["memory"] > 100
    assert host.total(1.5, "2GB", 2, {"licence": 3}) == Room({"cpus": 1.5, "memory": 2048, "licence": 3}, (1, 1))
    with pytest.raises(UserError):
        host.total(None, None, 0, {"memory": 3})


def test_gpus_are_those_that_may_be_used() -> None:
    assert host.gpus(None, {"CUDA_VISIBLE_DEVICES": "2,5"}) == ("2", "5")
    assert host.gpus("1", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == ("GPU-a",)
    assert host.gpus("0,3", {}) == ("0", "3")
    assert host.gpus("0", {"CUDA_VISIBLE_DEVICES": "1"}) == ()
    assert host.gpus(None, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    with pytest.raises(UserError):
        host.gpus("a,b", {})


def test_the_guard_kills_what_must_not_live_any_longer() -> None:
    guard = Guard()
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    guard.set([child.pid], boot_time() + 100)
    guard.enforce()
    assert child.poll() is None and guard.armed
    guard.set([child.pid], boot_time() - 1)
    guard.enforce()
    assert child.wait(10) == -signal.SIGKILL
    guard.set([], 0)
    assert not guard.armed


@pytest.mark.parametrize(
    ("why", "killed", "status", "told"),
    [
        (None, False, 0, 0),
        (Why.CANCELLED, False, 3, 3),
        (Why.CANCELLED, False, -15, -15),
        (Why.CANCELLED, True, -9, None),
        (Why.LEAVING, False, 0, None),
        (Why.TIME_OVER, False, -15, -15),
    ],
)
def test_how_an_end_is_told(why: Why | None, killed: bool, status: int, told: int | None) -> None:
    """Stopped means that somebody cancelled it; what its worker stopped for reasons of its own did not succeed."""
    one = attempt(cpus=1)
    one.pid, one.stopping, one.killed, one.status = 1, why, killed, status
    ended = one.told(1.0)
    assert ended.exit_status == told
    assert ended.stopped is (why is Why.CANCELLED)


def test_a_result_is_text_of_a_certain_length() -> None:
    one = attempt(cpus=1)
    one.keep_result(b"a\0b\xff")
    assert one.result == "a�b�"
    one.keep_result(b"x" * 70_000)
    assert one.result is not None and len(one.result) == 65_536
    assert "longer" in one.message
    one.told(0.0)
