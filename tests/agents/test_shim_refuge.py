"""A home whose path is too long for sockets has them elsewhere, and nothing of that is left behind."""

import itertools
import os
import shutil
import socket
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.runner.place import write_file
from stoker.shim import refuge
from stoker.shim.home import Home
from stoker.shim.refuge import SOCKET_BYTES
from tests.agents.shim_stage import prepared, until

_numbers = itertools.count(1)


@pytest.fixture
def runtime(shared_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = shared_directory / f"r{next(_numbers)}"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def long_home(directory: Path) -> Path:
    home = directory / f"{uuid4().hex[:8]}-{'long' * 20}"
    home.mkdir()
    home.chmod(0o711)
    return home


def test_a_long_home_has_its_sockets_in_a_short_private_place(shared_directory: Path, runtime: Path) -> None:
    root = long_home(shared_directory)
    home = Home(root)
    home.prepare()
    id = uuid4()
    paths = [home.socket("shim.sock"), home.runner_socket(id)]
    assert all(len(str(path)) <= SOCKET_BYTES for path in paths)
    assert paths[0].parent.stat().st_mode & 0o777 == 0o700
    assert paths[0].parent.parent == runtime
    assert [Home(root).socket("shim.sock"), Home(root).runner_socket(id)] == paths, "the same after a restart"
    paths[0].parent.chmod(0o777)
    assert Home(root).socket("shim.sock") != paths[0], "one that others may enter is not used"
    short = Home(Path("/run/x"))
    assert short.socket("shim.sock") == Path("/run/x/shim.sock")


async def test_a_shim_that_leaves_takes_it_along(shared_directory: Path, runtime: Path) -> None:
    """`stoker down`."""
    shim = prepared(long_home(shared_directory))
    try:
        await shim.start()
        assert len(os.listdir(runtime)) == 1
        assert (await shim.ask("POST", "/leave", json={})).status == 202
        assert shim.process is not None
        await until(lambda: shim.process is not None and shim.process.poll() is not None)
        assert os.listdir(runtime) == []
        await shim.start()
        task = await shim.start_job("true")
        await shim.read_log(task)
        assert (await shim.ended(task.id)).result is not None
    finally:
        shim.clear()


async def test_what_a_killed_one_leaves_is_removed_by_the_next_of_any_home(
    shared_directory: Path, runtime: Path
) -> None:
    """Everything was killed with -9, and somebody deleted the home: nobody else would ever look there again."""
    dead, alive = prepared(long_home(shared_directory)), prepared(long_home(shared_directory))
    other = shared_directory / f"x{uuid4().hex[:4]}"
    try:
        await dead.start()
        await alive.start()
        task = await alive.start_job("sleep 1000")
        dead.clear()
        await alive.kill()
        shutil.rmtree(dead.home)
        assert len(os.listdir(runtime)) == 2
        Home(other).prepare()
        assert [runtime / name for name in os.listdir(runtime)] == [Path(task.socket).parent]
        await alive.start()
        assert (await alive.task(task.id)).socket == task.socket
        assert (await alive.terminate(task.id)).state == "terminated"
    finally:
        alive.clear()


def test_only_what_is_ours_and_forsaken_is_swept(runtime: Path, shared_directory: Path) -> None:
    def made(name: str, home: Path | None, mode: int = 0o700) -> Path:
        directory = runtime / name
        directory.mkdir()
        if home is not None:
            (directory / "home").symlink_to(home)
        directory.chmod(mode)
        return directory

    gone = shared_directory / "no-such-home"
    home = long_home(shared_directory)
    named = made("stoker-sock-aaaaaaa1", home)
    (home / "sockets").write_text(f"{named}\n")
    kept = [
        named,
        made("stoker-tests-aaaaaaaa", None),
        made("stoker-sock-mine", gone),
        made("stoker-sock-aaaaaaa2", gone, 0o755),
        busy := made("stoker-sock-aaaaaaa3", gone),
    ]
    (runtime / "stoker-sock-aaaaaaa4").symlink_to(home)
    for name, whose in (("aaaaaaa5", gone), ("aaaaaaa6", home), ("aaaaaaa7", None)):
        left = made(f"stoker-sock-{name}", whose)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left / "r.sock"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(busy / "r.sock"))
        listener.listen()
        refuge.sweep(runtime)
        assert sorted(runtime.iterdir()) == sorted([*kept, runtime / "stoker-sock-aaaaaaa4"])
    refuge.sweep(runtime)
    assert not busy.exists(), "nobody listens any more"


def test_one_that_is_swept_while_it_is_made_is_made_again(
    shared_directory: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shims start at the same moment."""
    swept: list[Path] = []

    def write_and_be_late(path: Path, data: bytes) -> None:
        write_file(path, data)
        if not swept:
            swept.extend(runtime.iterdir())
            refuge.sweep(runtime)

    monkeypatch.setattr(refuge, "write_file", write_and_be_late)
    found = refuge.find(long_home(shared_directory))
    assert swept != [found]
    assert list(runtime.iterdir()) == [found]


def test_one_that_a_cleaner_of_tmp_took_away_is_made_again(shared_directory: Path, runtime: Path) -> None:
    home = Home(long_home(shared_directory))
    first = home.socket("shim.sock")
    shutil.rmtree(first.parent)
    assert home.socket("shim.sock").parent.is_dir()
