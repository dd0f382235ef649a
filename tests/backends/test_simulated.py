"""A simulated machine tells what a real one would: of commands that it understands, and across restarts."""

import asyncio
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from stoker.backends.dummy.script import FOREVER_S, Script, read
from stoker.backends.dummy.simulated import FORGOTTEN_BYTES, Simulated
from stoker.core.errors import Conflict, NotFound
from stoker.core.shim_task import S
from stoker.wire.frame import decode
from stoker.wire.runner import JobOrder, Stop
from stoker.wire.shim import TaskOrder, Terminate

MACHINE = UUID(int=1)


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def task(id: UUID, fence: int = 1) -> TaskOrder:
    return TaskOrder(id=id, fence=fence, name="x", project_id=UUID(int=2), token="t" * 16)


def job(id: UUID, *commands: str, setup: tuple[str, ...] = (), fence: int = 1) -> JobOrder:
    return JobOrder(
        fence=fence, job_id=id, run_id=id, run_name="x", project="main", submission=1, setup=setup,
        commands=commands, log_quota_bytes=1, start=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("commands", "script"),
    [
        (("true",), Script()),
        (("python train.py",), Script()),
        (("sleep 2; sleep 1.5m",), Script(92.0)),
        (("sleep infinity", "exit 3"), Script(FOREVER_S)),
        (("sleep 1 && false", "sleep 5"), Script(1.0, 1)),
        (("exit 300",), Script(0.0, 44)),
        (("echo 'a  b' c\nsleep 2\necho d",), Script(2.0, 0, ((0.0, b"a  b c\n"), (2.0, b"d\n")))),
        (("echo it's",), Script(0.0, 0, ((0.0, b"it's\n"),))),
    ],
)
def test_simple_commands_are_understood_and_others_end_at_once(commands: tuple[str, ...], script: Script) -> None:
    assert read(commands) == script


async def test_a_job_runs_for_its_time_and_writes_meanwhile(tmp_path: Path) -> None:
    clock, id = Clock(), uuid4()
    machine = Simulated(MACHINE, tmp_path / "tasks", clock)
    assert machine.submit(task(id)).state is S.RUNNING
    machine.run(job(id, "echo one", "sleep 5", "echo two", "exit 7"))
    clock.at += 4
    info = machine.info(machine.task(id))
    assert (info.state, info.result) == (S.RUNNING, None)
    assert [frame.data for frame in decode(machine.log(id, 0).frames)] == [b"one\n"]
    clock.at += 4
    info = machine.info(machine.task(id))
    assert info.result is not None
    assert (info.state, info.result.exit_code, info.ended_ago_s) == (S.TERMINATED, 7, 3.0)
    piece = machine.log(id, 0)
    assert piece.complete
    assert len(piece.frames) == info.result.log_end == piece.next_offset
    assert [frame.data for frame in decode(piece.frames)] == [b"one\n", b"two\n"]
    assert machine.log(id, piece.next_offset).frames == b""


async def test_a_setup_that_fails_is_told_apart(tmp_path: Path) -> None:
    id = uuid4()
    machine = Simulated(MACHINE, tmp_path / "tasks", Clock())
    machine.submit(task(id))
    machine.run(job(id, "sleep 5", setup=("exit 2",)))
    result = machine.info(machine.task(id)).result
    assert result is not None
    assert (result.setup, result.exit_code) == (True, 2)


async def test_whoever_waits_hears_of_an_end_by_time_and_by_order(tmp_path: Path) -> None:
    first, second = uuid4(), uuid4()
    machine = Simulated(MACHINE, tmp_path / "tasks", time.time)
    for id, command in ((first, "sleep 0.05"), (second, "sleep infinity")):
        machine.submit(task(id))
        machine.run(job(id, command))
    cursor = (await machine.changes("", 0.0)).cursor
    async with asyncio.timeout(10):
        changes = await machine.changes(cursor, 60.0)
        assert [one.id for one in changes.tasks] == [first]
        waiting = asyncio.ensure_future(machine.changes(changes.cursor, 60.0))
        await asyncio.sleep(0)
        machine.stop(second, Stop(fence=2))
        (ended,) = (await waiting).tasks
    assert ended.result is not None
    assert (ended.result.exit_code, ended.result.signal) == (143, 15)


async def test_orders_that_were_overtaken_are_refused_and_repeated_ones_do_nothing(tmp_path: Path) -> None:
    id = uuid4()
    machine = Simulated(MACHINE, tmp_path / "tasks", Clock())
    machine.submit(task(id, fence=5))
    machine.run(job(id, "sleep 9", fence=5))
    with pytest.raises(Conflict) as fenced:
        machine.terminate(id, Terminate(fence=4))
    assert fenced.value.code == "fenced"
    with pytest.raises(Conflict) as early:
        machine.remove(id, 5)
    assert early.value.code == "not_terminated"
    assert machine.submit(task(id, fence=5)).result is None
    assert machine.terminate(id, Terminate(fence=6)).state is S.TERMINATED
    machine.remove(id, 6)
    machine.remove(id, 6)
    with pytest.raises(NotFound):
        machine.task(id)
    with pytest.raises(Conflict):
        machine.submit(task(id, fence=6))


async def test_a_job_that_was_stopped_before_it_began_never_does(tmp_path: Path) -> None:
    id = uuid4()
    machine = Simulated(MACHINE, tmp_path / "tasks", Clock())
    machine.submit(task(id))
    machine.stop(id, Stop(fence=1))
    with pytest.raises(Conflict) as stopped:
        machine.run(job(id, "true"))
    assert stopped.value.code == "stopped"


async def test_jobs_go_on_while_nobody_is_there_and_are_found_again(tmp_path: Path) -> None:
    """The server is killed: the machine would not notice, and neither do its jobs."""
    clock, path = Clock(), tmp_path / "tasks"
    short, long, stopped, gone = ids = [uuid4() for _ in range(4)]
    before = Simulated(MACHINE, path, clock)
    for id in ids:
        before.submit(task(id))
        before.run(job(id, "echo hello", "sleep 10" if id == short else "sleep 100", "exit 5"))
    clock.at += 1
    before.stop(stopped, Stop(fence=2))
    before.terminate(gone, Terminate(fence=2))
    before.remove(gone, 2)
    before.close()
    path.write_text(path.read_text() + '{"task": "cut sho')
    clock.at += 20
    after = Simulated(MACHINE, path, clock)
    told = {one.id: one for one in (await after.changes("", 0.0)).tasks}
    assert set(told) == {short, long, stopped}
    assert [None if one.result is None else one.result.exit_code for one in told.values()] == [5, None, 143]
    assert told[short].ended_ago_s == 11.0
    after.stop(long, Stop(fence=2))
    after.close()
    after = Simulated(MACHINE, path, clock)
    stopped_late = after.info(after.task(long)).result
    assert stopped_late is not None
    assert stopped_late.exit_code == 143
    for id in (short, long, stopped):
        after.terminate(id, Terminate(fence=3))
        after.remove(id, 3)
    after.close()
    assert Simulated(MACHINE, path, clock).tasks == {}


async def test_what_a_machine_has_written_does_not_grow_for_ever(tmp_path: Path) -> None:
    """It forgets what it wrote when it has no task left and that has become much."""
    path = tmp_path / "tasks"
    one, id = Simulated(MACHINE, path, Clock()), uuid4()
    one.submit(task(id))
    one.run(job(id, "echo " + "x" * FORGOTTEN_BYTES))
    one.terminate(id, Terminate(fence=2))
    one.remove(id, 2)
    assert path.read_text() == ""
