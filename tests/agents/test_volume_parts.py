"""The parts of a host's volumes: what is made, what is refused without root, and that nothing is formatted twice."""

import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stoker.core.errors import Unavailable, UserError
from stoker.runner.view import mounted_below
from stoker.shim.point import Points
from stoker.shim.volume import Bound, Owner, Volumes
from stoker.wire.shim import Mount, Source
from tests.machine import as_root


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    made = Volumes(tmp_path / "volumes", is_root=True)
    made.prepare()
    return made


@as_root
def test_an_image_that_has_its_name_is_never_formatted(volumes: Volumes, tmp_path: Path) -> None:
    """Whatever is in it: it is somebody's. What a crash left under the other name is nobody's."""
    id = uuid4()
    kept = volumes.root / f"{id}.kept"
    kept.mkdir()
    (kept / "image.new").write_bytes(b"half a file system")
    volumes.make(id, "data", 16, Owner())
    assert not (kept / "image.new").exists()
    before = (kept / "image").stat()
    volumes.make(id, "data", 16, Owner())
    after = (kept / "image").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@as_root
def test_a_home_behind_a_link_is_mounted_in_once(tmp_path: Path) -> None:
    """The kernel lists the real path: looked for under the other one, it would be mounted again each time."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    made = Volumes(tmp_path / "link" / "volumes", is_root=True)
    made.prepare()
    one = Mount(source=Source.LOCAL, id=uuid4(), name="data", size_mb=16, inside="/data")
    tasks = [uuid4(), uuid4()]
    for task in tasks:
        made.take(task, [one], Owner())
    assert len(mounted_below(str(tmp_path / "real" / "volumes"))) == 1
    for task in tasks:
        made.release(task, [one], 0.0)
    assert mounted_below(str(tmp_path / "real" / "volumes")) == []


@as_root
def test_what_belongs_to_a_project_is_closed_to_the_users_of_others(volumes: Volumes) -> None:
    id = uuid4()
    volumes.make(id, "data", None, Owner(200_001, 200_001))
    found = volumes.place(id).stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (200_001, 200_001, 0o770)


@as_root
def test_the_wait_for_one_that_is_busy_is_told_by_a_clock_that_may_be_set_back(tmp_path: Path) -> None:
    now = [1000.0]
    made = Volumes(tmp_path / "volumes", is_root=True, now=lambda: now[0])
    made.prepare()
    id, task = uuid4(), uuid4()
    one = Mount(source=Source.LOCAL, id=id, name="data", size_mb=16, inside="/data")
    made.take(task, [one], Owner())
    with subprocess.Popen(["sleep", "60"], cwd=made.place(id)) as holder:
        try:
            for now[0] in (1000.0, 1299.0, 500.0, 799.0):
                with pytest.raises(Unavailable, match=r"process \d+ \(sleep\) uses it"):
                    made.release(task, [one], 300.0)
            now[0] = 1300.0
            made.release(task, [one], 300.0)
            assert mounted_below(str(made.root)) == []
        finally:
            holder.kill()


def without_root(tmp_path: Path) -> tuple[Volumes, Points]:
    volumes = Volumes(tmp_path / "volumes", is_root=False)
    points = Points(tmp_path / "volumes" / "points", is_root=False)
    volumes.prepare()
    points.prepare()
    return volumes, points


def test_without_root_a_volume_is_a_link_below_the_jobs_own_directory(tmp_path: Path) -> None:
    volumes, points = without_root(tmp_path)
    id, task, work = uuid4(), uuid4(), tmp_path / "work"
    work.mkdir()
    one = Mount(source=Source.LOCAL, id=id, name="data", inside="in/data")
    for _ in range(2):
        volumes.take(task, [one], Owner())
        bounds = [Bound(str(volumes.place(id)), "in/data", False)]
        points.make(task, bounds, work, Owner())
    (work / "in/data/x").write_text("kept")
    assert (volumes.place(id) / "x").read_text() == "kept"
    assert points.binds(bounds, work) == ()


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound("/x", "/data", False), "/data is not below the job's own directory"),
        (Bound("/x", "data", True), "data is to be read only"),
    ],
)
def test_what_cannot_be_had_without_root_is_refused_in_words(tmp_path: Path, bound: Bound, words: str) -> None:
    _, points = without_root(tmp_path)
    with pytest.raises(UserError, match=words):
        points.make(uuid4(), [bound], tmp_path, Owner())


@pytest.mark.parametrize("one", [{"source": "nfs", "place": "nas:/x"}, {"source": "local", "size_mb": 16}])
def test_nothing_is_mounted_without_root(tmp_path: Path, one: dict[str, Any]) -> None:
    volumes, _ = without_root(tmp_path)
    mount = Mount.model_validate(
        {"id": uuid4(), "name": "sets", "inside": "sets"} | one | {"source": Source(one["source"])}
    )
    with pytest.raises(UserError, match="without root, which may not mount"):
        volumes.take(uuid4(), [mount], Owner())


def test_a_directory_that_was_made_for_two_goes_with_the_second(tmp_path: Path) -> None:
    points = Points(tmp_path / "points", is_root=True)
    points.prepare()
    one, two, deep = uuid4(), uuid4(), tmp_path / "a/b"
    points.make(one, [Bound("/x", str(deep), False)], tmp_path, Owner())
    points.make(two, [Bound("/x", str(deep / "c"), False)], tmp_path, Owner())
    points.drop(one)
    assert (deep / "c").is_dir()
    points.drop(two)
    assert not (tmp_path / "a").exists()


def test_a_directory_in_which_somebody_has_put_something_stays(tmp_path: Path) -> None:
    points = Points(tmp_path / "points", is_root=True)
    points.prepare()
    task = uuid4()
    points.make(task, [Bound("/x", str(tmp_path / "a"), False)], tmp_path, Owner())
    (tmp_path / "a" / "mine").touch()
    points.drop(task)
    assert (tmp_path / "a" / "mine").exists()
