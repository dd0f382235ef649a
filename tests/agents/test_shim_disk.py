"""Disks that are full, and jobs that leave strange things behind."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.core.shim_task import Runtime, submit
from stoker.runner.proc import alive
from stoker.shim.disk import remove_tree
from stoker.shim.home import Home
from stoker.shim.shelf import RECORD, RECORD_BYTES, Record, Shelf
from stoker.wire.shim import TaskOrder
from tests.agents.shim_stage import Stage, shared_stage, stage, until
from tests.machine import as_root, fill, small_disk


@pytest.fixture(scope="module")
def shim(shared_directory: Path) -> Iterator[Stage]:
    """One for all tests here that leave it alive."""
    with shared_stage(shared_directory) as made:
        yield made


@pytest.fixture
def disk(shared_directory: Path) -> Iterator[Path]:
    with small_disk(shared_directory / f"disk-{uuid4()}", 4) as place:
        yield place


async def test_a_full_disk_refuses_a_task_and_takes_the_same_one_later(disk: Path) -> None:
    """Nothing is half-accepted: no directory, no listing, no runner."""
    async with stage(disk) as shim:
        await shim.fork_server_ready()
        running = await shim.start_job("sleep 1000")
        ballast = disk / "ballast"
        fill(ballast)
        order = shim.order(project_id=str(uuid4()))
        for _ in range(2):
            told = await shim.ask("POST", "/tasks", json=order)
            assert told.error == (503, "disk_full")
            assert "Retry-After" in told.headers
        assert [one.name for one in shim.directories()] == [str(running.id)]
        assert len((await shim.ask("GET", "/tasks")).json["tasks"]) == 1
        ballast.unlink()
        assert (await shim.ask("POST", "/tasks", json=order)).status == 201
        await shim.restart()
        assert len((await shim.ask("GET", "/tasks")).json["tasks"]) == 2


async def test_a_job_that_fills_the_disk_can_be_ended_and_removed(disk: Path) -> None:
    """The order cannot be noted while the disk is full; the job dies all the same, and that makes room."""
    async with stage(disk) as shim:
        task = await shim.start_job("cat /dev/zero > big || cat /dev/zero > big2 || sleep 1000")
        big = shim.directory(task.id) / "work" / "big2"
        await until(big.exists)
        runner = await shim.born(task.id)
        told = await shim.ask("POST", f"/tasks/{task.id}/terminate", json={"fence": 2})
        assert told.status in (202, 503)
        await until(lambda: not alive(runner))
        ended = await shim.ended(task.id)
        assert ended.reason == "TERMINATED_BY_SERVER"
        assert (await shim.terminate(task.id)).state == "terminated"
        assert (await shim.remove(task.id)).status == 204


async def test_removal_works_on_a_full_disk(disk: Path) -> None:
    """It is what makes room."""
    async with stage(disk) as shim:
        task = await shim.start_job("head -c 100000 /dev/zero | tr '\\0' x")
        await shim.reaches(task.id, lambda task: task.result)
        await shim.terminate(task.id)
        fill(disk / "ballast")
        assert (await shim.remove(task.id)).status == 204
        assert shim.directories() == []


def plant(work: Path, outside: Path) -> None:
    """What a job might leave to lead a removal astray."""
    (outside / "kept").mkdir(parents=True)
    (outside / "kept" / "file").write_text("precious")
    (work / "link").symlink_to(outside)
    (work / "file-link").symlink_to(outside / "kept" / "file")
    (work / "deep").mkdir()
    (work / "deep" / "up").symlink_to("../../../../..")
    (work / "dangling").symlink_to("nowhere")
    os.mkfifo(work / "fifo")


async def test_removal_does_not_follow_links_out_of_the_task(shim: Stage, shared_directory: Path) -> None:
    task = await shim.submit()
    outside = shared_directory / f"outside-{uuid4()}"
    plant(shim.directory(task.id) / "work", outside)
    await shim.terminate(task.id)
    assert not (shim.directory(task.id) / "work").exists()
    assert (await shim.remove(task.id)).status == 204
    assert (outside / "kept" / "file").read_text() == "precious"
    assert sorted(one.name for one in shim.home.iterdir() if one.is_dir()) == ["tasks", "volumes"]


def test_a_directory_that_became_a_link_is_unlinked(tmp_path: Path) -> None:
    """Without root a job may replace its own working directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (tmp_path / "work").symlink_to(outside)
    remove_tree(tmp_path / "work")
    assert (outside / "file").exists()
    assert not (tmp_path / "work").is_symlink()
    remove_tree(tmp_path / "work")


def test_a_tree_deeper_than_python_goes_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    remove_tree(top)
    assert not top.exists()


@as_root
async def test_files_of_other_users_are_removed_too(shim: Stage) -> None:
    task = await shim.start_job("umask 077; mkdir -p a/b; echo x > a/b/c; chmod 0 a/b; sleep 1000")
    await until((shim.directory(task.id) / "work" / "a" / "b").exists)
    await shim.terminate(task.id)
    assert (await shim.remove(task.id)).status == 204
    assert not shim.directory(task.id).exists()


def test_of_a_record_the_last_line_that_is_whole_counts(shared_directory: Path) -> None:
    """A full disk or a crash leaves a part of a line; what is written after it is a line of its own."""
    home, record = Home(shared_directory / f"shelf-{uuid4()}"), a_record()
    home.prepare()
    shelf = Shelf(home)
    shelf.accept(record)
    shelf.write(record.model_copy(update={"fence": 2}))
    path = home.directory(record.id) / RECORD
    with open(path, "ab") as file:
        file.write(b'\n{"task": ')
    assert [one.fence for one in shelf.find().records] == [2]
    shelf.write(record.model_copy(update={"fence": 3}))
    assert [one.fence for one in shelf.find().records] == [3]


def test_a_record_that_changed_often_is_written_anew(shared_directory: Path) -> None:
    """A cleanup that fails every minute for weeks must not fill the disk."""
    home, record = Home(shared_directory / f"shelf-{uuid4()}"), a_record()
    home.prepare()
    shelf = Shelf(home)
    shelf.accept(record)
    for fence in range(2, 400):
        shelf.write(record.model_copy(update={"fence": fence}))
    assert (home.directory(record.id) / RECORD).stat().st_size < RECORD_BYTES + 2048
    assert [one.fence for one in shelf.find().records] == [399]


def a_record() -> Record:
    order = TaskOrder(id=uuid4(), fence=1, name="train", project_id=uuid4(), token="x" * 16)
    return Record(task=submit(order.id, Runtime.PROCESS, 0.0), order=order, fence=1, socket="/x")


async def test_what_a_crash_left_is_put_in_order(shared_directory: Path) -> None:
    """What was never acknowledged goes, a record that cannot be read stays for people, the rest is not ours."""
    async with stage(shared_directory) as shim:
        task = await shim.submit()
        await shim.kill()
        tasks = shim.home / "tasks"
        half, broken = uuid4(), uuid4()
        (tasks / str(half) / "work").mkdir(parents=True)
        (tasks / str(half) / "task.jsonl.new").write_text("{")
        (tasks / str(broken)).mkdir()
        (tasks / str(broken) / "task.jsonl").write_text("{}")
        (tasks / "notes").mkdir()
        await shim.start()
        assert [one["id"] for one in (await shim.ask("GET", "/tasks")).json["tasks"]] == [str(task.id)]
        assert not (tasks / str(half)).exists()
        assert (tasks / "notes").is_dir()
        assert (tasks / str(broken) / "task.jsonl").read_text() == "{}"
        told = await shim.ask("POST", "/tasks", json=shim.order(id=str(broken)))
        assert told.error == (503, "unreadable")
        assert (await shim.submit(id=str(half))).state == "running"
