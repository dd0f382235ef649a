"""Volumes on a host: real mounts, found again after every kind of crash, and nothing left of what nobody uses."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest

from stoker.core.reason import JobReason
from stoker.runner.view import mounted_below
from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import SERVE, Stage, existing, prepared, shared_stage, until
from tests.machine import as_root

pytestmark = as_root
GONE = (aiohttp.ClientError, ConnectionError)
"""How a connection ends whose other side dies."""

DYING = (
    SERVE.partition("serve(Path")[0]
    + """
import os
from stoker.shim import mount, point, shelf, volume

def dying(owner, name, place):
    real, note = getattr(owner, name), Path(sys.argv[1]).parent / "die"

    def wrapped(*args, **more):
        def die(moment):
            if note.exists() and note.read_text() == f"{moment} {place}":
                note.unlink()
                os._exit(9)
        die("before")
        answer = real(*args, **more)
        die("after")
        return answer

    setattr(owner, name, wrapped)

dying(volume.Volumes, "_enlist", "enlist")
dying(volume, "_run_mkfs", "format")
dying(volume, "_format", "image")
dying(volume, "mount", "mount")
dying(volume.Volumes, "take", "take")
dying(point.Points, "make", "points")
dying(point.Points, "drop", "drop")
dying(volume, "unmount", "unmount")
dying(volume.Volumes, "_release", "release")
dying(volume.Volumes, "release", "releases")
dying(shelf.Shelf, "clear_work", "work")
serve(Path(sys.argv[1]))
"""
)
"""A shim that dies, once, at the place that a file names."""


@pytest.fixture
def place_of(shared_directory: Path) -> Path:
    """For one test, and open to the users of projects."""
    made = Path(tempfile.mkdtemp(dir=shared_directory))
    made.chmod(0o711)
    return made


@pytest.fixture
def shim(place_of: Path) -> Iterator[Stage]:
    with shared_stage(place_of) as made:
        yield made
        assert left_over(made) == []


def left_over(made: Stage) -> list[str]:
    """Mounts of volumes, tasks that are noted as users, and directories that were made for mounting."""
    volumes = made.home / "volumes"
    users = [str(one) for one in volumes.glob("*.kept/users/*")]
    return mounted_below(str(volumes)) + users + [str(one) for one in (volumes / "points").glob("*-*")]


def local(id: UUID, inside: str, **more: Any) -> dict[str, Any]:
    return {"source": "local", "id": str(id), "name": "data", "inside": inside} | more


async def ran(shim: Stage, mounts: list[dict[str, Any]], *commands: str, **more: Any) -> TaskInfo:
    task = await shim.start_job(*commands, mounts=mounts, **more)
    await shim.read_log(task)
    return await shim.ended(task.id)


async def over(shim: Stage, id: UUID, fence: int = 2) -> None:
    await shim.terminate(id, fence)
    assert (await shim.remove(id, fence)).status == 204


def loop_devices() -> str:
    return subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout


def somebody_in(directory: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=directory)


def read(path: str) -> str:
    return Path(path).read_text()


def place(shim: Stage, id: UUID) -> Path:
    return shim.home / "volumes" / str(id)


@pytest.mark.parametrize("size", [{}, {"size_mb": 16}], ids=["directory", "loop"])
async def test_what_one_task_wrote_the_next_one_finds(shim: Stage, size: dict[str, int]) -> None:
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    first = await ran(shim, [local(id, inside, **size)], f"echo kept > {inside}/x")
    assert first.result is not None and first.result.exit_code == 0
    assert mounted_below(str(shim.home / "volumes")) == [], "unmounted before it is terminated"
    assert existing(inside) == [], "made for it, and gone with it"
    second = await ran(shim, [local(id, "data", **size)], 'test "$(cat data/x)" = kept', "echo more >> data/x")
    assert second.result is not None and second.result.exit_code == 0


async def test_a_full_volume_is_full_for_its_job_only(shim: Stage) -> None:
    id = uuid4()
    filled = await ran(shim, [local(id, "data", size_mb=16)], "head -c 64000000 /dev/zero > data/x")
    assert filled.result is not None and filled.result.exit_code == 1
    assert "No space left on device" in filled.message or filled.result.message == ""
    other = await ran(shim, [local(uuid4(), "data", size_mb=16)], "head -c 4000000 /dev/zero > data/x")
    assert other.result is not None and other.result.exit_code == 0
    again = await ran(shim, [local(id, "data", size_mb=16)], "rm data/x", "head -c 4000000 /dev/zero > data/x")
    assert again.result is not None and again.result.exit_code == 0


async def test_read_only_means_that_the_kernel_refuses(shim: Stage) -> None:
    id = uuid4()
    await ran(shim, [local(id, "data")], "echo 1 > data/x")
    around = f"! echo 3 > {place(shim, id)}/x"
    told = await ran(shim, [local(id, "data", read_only=True)], f"cat data/x && ! echo 2 > data/x && {around}")
    assert told.result is not None and told.result.exit_code == 0
    assert (place(shim, id) / "x").read_text() == "1\n"


async def test_two_tasks_have_one_at_once_and_the_first_to_end_takes_it_from_nobody(shim: Stage) -> None:
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    mounts = [local(id, inside, size_mb=16)]
    first = await shim.start_job(f"echo 1 > {inside}/x; sleep 60", mounts=mounts)
    wait = f"until [ -e {inside}/go ]; do sleep 0.02; done; cat {inside}/x"
    second = await shim.start_job(wait, mounts=mounts)
    await until(lambda: (place(shim, id) / "x").exists())
    await over(shim, first.id)
    (place(shim, id) / "go").touch()
    await shim.read_log(second)
    ended = await shim.ended(second.id)
    assert ended.result is not None and ended.result.exit_code == 0
    await until(lambda: not existing(inside))


async def test_a_task_sees_its_own_volumes_and_those_of_nobody_else(shim: Stage) -> None:
    """A copy of another task's mount in its view would also keep that volume busy as long as it runs."""
    one, two = uuid4(), uuid4()
    first = await shim.start_job("sleep 60", mounts=[local(one, "data", size_mb=16)])
    look = f"! grep {one} /proc/self/mountinfo && grep {two} /proc/self/mountinfo | grep -q mine"
    second = await ran(shim, [local(two, "mine")], look)
    assert second.result is not None and second.result.exit_code == 0
    watching = await shim.start_job("sleep 60", mounts=[local(two, "mine")])
    await over(shim, first.id)
    # Though another task with a view of its own still runs.
    await until(lambda: str(one) not in loop_devices(), 5.0)
    await over(shim, watching.id)


async def test_one_that_is_busy_keeps_its_task_until_it_is_let_go_by_force(shim: Stage) -> None:
    """Somebody looks around on the host. He keeps what he has open; the task waits for him only so long."""
    id = uuid4()
    task = await shim.start_job("echo 1 > data/x; sleep 60", mounts=[local(id, "data", size_mb=16)], detach_s=2.0)
    await until(lambda: (place(shim, id) / "x").exists())
    holder = somebody_in(place(shim, id))
    try:
        told = await shim.terminate(task.id, wait_s=0.5)
        assert told.state == "running"
        busy = await shim.reaches(task.id, lambda one: one.cleanup_error)
        assert f"process {holder.pid} (python" in busy.cleanup_error
        # Also a restart does not begin the wait anew.
        await shim.restart()
        ended = await shim.ended(task.id)
        assert (ended.state, mounted_below(str(shim.home / "volumes"))) == ("terminated", [])
        # Mounted once more while he still has it: one file system, not two on one file.
        again = await ran(shim, [local(id, "data", size_mb=16)], 'test "$(cat data/x)" = 1', "echo 2 > data/x")
        assert again.result is not None and again.result.exit_code == 0
        assert read(f"/proc/{holder.pid}/cwd/x") == "2\n"
    finally:
        holder.kill()
        holder.wait()


async def test_what_cannot_be_mounted_ends_the_task_with_the_words_of_the_host(shim: Stage) -> None:
    """A server that is not there, or a kernel that knows no nfs: either way it is the volume's fault."""
    nfs = {"source": "nfs", "id": str(uuid4()), "name": "sets", "place": "127.0.0.1:/nowhere", "inside": "/stoker-sets"}
    submitted = await shim.submit(mounts=[nfs])
    task = await shim.ended(submitted.id)
    assert task.reason is JobReason.VOLUME_ERROR
    assert task.message.startswith("Volume sets cannot be mounted: ")
    assert not place(shim, UUID(str(nfs["id"]))).exists()


async def test_a_directory_of_the_host_is_mounted_and_one_that_is_not_there_is_said(
    shim: Stage, place_of: Path
) -> None:
    there = place_of / "sets"
    there.mkdir(mode=0o755)
    (there / "x").write_text("of the host")
    mount = {"source": "path", "place": str(there), "inside": "/stoker-host", "read_only": True}
    told = await ran(shim, [mount], 'test "$(cat /stoker-host/x)" = "of the host"')
    assert told.result is not None and told.result.exit_code == 0
    missing = await shim.submit(mounts=[mount | {"place": "/nowhere"}])
    task = await shim.ended(missing.id)
    assert (task.reason, "no directory /nowhere" in task.message) == (JobReason.VOLUME_ERROR, True)


async def test_a_volume_larger_than_the_disk_is_refused_in_numbers(shim: Stage) -> None:
    submitted = await shim.submit(mounts=[local(uuid4(), "data", size_mb=2**30)])
    task = await shim.ended(submitted.id)
    assert task.reason is JobReason.VOLUME_ERROR
    assert "takes 1073741824 MB, and this host's disk has" in task.message


async def test_a_volume_is_made_before_any_task_wants_it_and_removed_with_all_that_is_in_it(shim: Stage) -> None:
    id = uuid4()
    order = {"id": str(id), "fence": 3, "name": "data", "project_id": str(UUID(int=1)), "size_mb": 16}
    for _ in range(2):
        made = await shim.ask("POST", "/volumes", json=order)
        assert (made.status, made.json["made"]) == (200, True)
    task = await shim.start_job("sleep 60", mounts=[local(id, "data", size_mb=16)])
    used = await shim.ask("DELETE", f"/volumes/{id}?fence=4")
    assert used.error == (409, "volume_used")
    await over(shim, task.id)
    assert (await shim.ask("DELETE", f"/volumes/{id}?fence=4")).status == 204
    assert (await shim.ask("GET", "/volumes")).json["volumes"] == []
    late = await shim.ask("POST", "/volumes", json=order)
    assert late.error == (409, "fenced"), "an order that was on its way when it was deleted"
    assert [one.name for one in (shim.home / "volumes").iterdir()] == ["points"]


DEATHS = [
    *(
        f"{moment} {place}"
        for place in ("enlist", "format", "image", "mount", "points")
        for moment in ("before", "after")
    ),
    "after take",
]
ENDS = [
    *(f"{moment} {place}" for place in ("drop", "unmount", "release") for moment in ("before", "after")),
    "after releases",
    "before work",
]


@pytest.mark.parametrize("moment", DEATHS)
async def test_a_shim_that_dies_while_it_mounts_loses_nothing_and_leaves_nothing(place_of: Path, moment: str) -> None:
    """The server asks again; what is formatted stays so, what is mounted is found, and in the end nothing is left."""
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    mounts = [local(id, inside, size_mb=16)]
    made = prepared(place_of, DYING)
    try:
        await made.start()
        (place_of / "die").write_text(moment)
        order = made.order(mounts=mounts)
        with pytest.raises(GONE):
            await made.ask("POST", "/tasks", json=order)
        assert not (place_of / "die").exists(), "it died where it was told to"
        await made.start()
        task = (await made.ask("POST", "/tasks", json=order)).task
        task = await made.reaches(task.id, lambda one: one.state == "running")
        await made.run(task, f"echo kept > {inside}/x")
        await made.read_log(task)
        ended = await made.ended(task.id)
        assert ended.result is not None and ended.result.exit_code == 0
        assert left_over(made) + existing(inside) == []
        again = await ran(made, mounts, f'test "$(cat {inside}/x)" = kept')
        assert again.result is not None and again.result.exit_code == 0
        assert left_over(made) + existing(inside) == []
    finally:
        made.clear()


@pytest.mark.parametrize("moment", DEATHS)
async def test_one_that_dies_while_it_mounts_for_a_task_that_is_then_not_wanted(place_of: Path, moment: str) -> None:
    """The run was stopped meanwhile: what was begun is undone, whatever it was."""
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    made = prepared(place_of, DYING)
    try:
        await made.start()
        (place_of / "die").write_text(moment)
        order = made.order(mounts=[local(id, inside, size_mb=16)])
        with pytest.raises(GONE):
            await made.ask("POST", "/tasks", json=order)
        await made.start()
        await over(made, UUID(order["id"]))
        assert left_over(made) + existing(inside) == []
    finally:
        made.clear()


@pytest.mark.parametrize("moment", ENDS)
async def test_a_shim_that_dies_while_it_unmounts_goes_on_where_it_was(place_of: Path, moment: str) -> None:
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    mounts = [local(id, inside, size_mb=16)]
    made = prepared(place_of, DYING)
    try:
        await made.start()
        task = await made.start_job(f"echo kept > {inside}/x; sleep 60", mounts=mounts)
        await until(lambda: (place(made, id) / "x").exists())
        (place_of / "die").write_text(moment)
        with pytest.raises(GONE):
            await made.terminate(task.id)
        await made.start()
        await over(made, task.id, 3)
        assert left_over(made) + existing(inside) == []
        again = await ran(made, mounts, f'test "$(cat {inside}/x)" = kept')
        assert again.result is not None and again.result.exit_code == 0
    finally:
        made.clear()


async def test_of_a_task_whose_record_was_lost_nothing_stays_mounted(shim: Stage) -> None:
    """Somebody deleted its directory. The volume is not kept for a task that nobody will ever end."""
    id, inside = uuid4(), f"/stoker-{uuid4().hex}"
    task = await shim.start_job("sleep 60", mounts=[local(id, inside, size_mb=16)])
    runner = await shim.born(task.id)
    await shim.kill()
    (shim.directory(task.id) / "task.jsonl").write_text("nothing\n")
    await shim.start()
    await until(lambda: not Path(f"/proc/{runner}").exists())
    assert left_over(shim) + existing(inside) == []


async def test_many_tasks_take_one_volume_at_once(shim: Stage) -> None:
    """It is formatted once and mounted once, however many begin at the same moment."""
    id = uuid4()
    mounts = [local(id, "data", size_mb=16)]
    tasks = await asyncio.gather(*(shim.start_job(f"echo {n} > data/{n}", mounts=mounts) for n in range(6)))
    await asyncio.gather(*(shim.read_log(task) for task in tasks))
    ended = await asyncio.gather(*(shim.ended(task.id) for task in tasks))
    assert [one.result.exit_code for one in ended if one.result] == [0] * 6
    told = await ran(shim, mounts, 'test "$(ls data | grep -c "^[0-9]$")" = 6')
    assert told.result is not None and told.result.exit_code == 0
