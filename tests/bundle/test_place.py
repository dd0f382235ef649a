"""Where bundles are: made once, the same each time, whole or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.bundle import content, prune, tree
from stoker.bundle.place import Bundle, find, find_or_build
from stoker.core.errors import Unavailable, UserError
from tests.machine import as_root, fill, small_disk

PATIENCE_S = 60.0
BUILD = """
import json, sys
from pathlib import Path
from stoker.bundle.place import find_or_build
made = find_or_build(Path(sys.argv[1]), lambda said: print(said, flush=True))
layers = {one.name: one.sha256 for one in made.layers}
print(json.dumps({"digest": made.digest, "version": made.version, "root": str(made.root), "layers": layers}))
"""


class Builder:
    """A process with a copy of our code, which makes a bundle."""

    def __init__(self, source: Path, home: Path) -> None:
        environ = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", BUILD, str(home)]
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)

    def said(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.strip()

    def result(self) -> tuple[list[str], dict[str, Any]]:
        *said, told = self.said()
        assert self.process.wait(PATIENCE_S) == 0
        return said, json.loads(told)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Our code, elsewhere, and written just now."""
    shutil.copytree(content.PACKAGE, tmp_path / "src" / "stoker", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


@pytest.fixture
def home(bundle: Bundle, tmp_path: Path) -> Path:
    """Where the layers are known already, and no bundle is unpacked: what is not looked at need not be made."""
    made = tmp_path / "home" / "bundle"
    for name in ("layers", "known"):
        shutil.copytree(bundle.root.parent / name, made / name, copy_function=shutil.copy2)
    return tmp_path / "home"


def holds(bundle: Bundle) -> None:
    """It has all files of its layers, as they are there, and no others."""
    expected: dict[str, bytes] = {}
    for layer in bundle.layers:
        with tarfile.open(layer.archive) as tar:
            expected |= {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}  # type: ignore[union-attr]
    found = {str(path.relative_to(bundle.root)): path for path in bundle.root.rglob("*") if path.is_file()}
    assert set(found) == {*expected, tree.MANIFEST}
    assert all(found[name].read_bytes() == data for name, data in expected.items())


def test_it_is_small_and_says_what_it_is(bundle: Bundle) -> None:
    assert bundle.size_bytes <= 60_000_000, "asked for; 16 MB are usual"
    told = json.loads((bundle.root / tree.MANIFEST).read_text())
    assert told["digest"] == bundle.digest == bundle.root.name
    assert told["version"] == bundle.version == (bundle.root / tree.VERSION).read_text().strip()
    assert [layer["sha256"] for layer in told["layers"]] == [layer.sha256 for layer in bundle.layers]
    for layer in bundle.layers:
        done = subprocess.run(["sha256sum", layer.archive], capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == layer.sha256 == layer.archive.name.partition(".")[0]
    holds(bundle)


def test_it_is_found_again_without_work(bundle: Bundle) -> None:
    home = bundle.root.parents[1]

    def say(what: str) -> None:
        raise AssertionError(what)

    assert find_or_build(home, say) == find(home) == bundle
    assert find(home / "another") is None


def test_the_same_source_gives_the_same_bundle_elsewhere(bundle: Bundle, source: Path, tmp_path: Path) -> None:
    """In another home, from a copy of our code that was written just now, by another process."""
    _, told = Builder(source, tmp_path / "home").result()
    assert told["layers"] == {layer.name: layer.sha256 for layer in bundle.layers}
    assert (told["digest"], told["version"]) == (bundle.digest, bundle.version)


def test_a_change_of_our_code_changes_the_smallest_layer_only(bundle: Bundle, source: Path, home: Path) -> None:
    """So that an upgrade of a host sends half a megabyte; what agents say they are changes as well."""
    _, before = Builder(source, home).result()
    for _ in range(2):
        with open(source / "stoker" / "runner" / "limits.py", "a") as file:
            file.write("MORE = 1\n")
        said, after = Builder(source, home).result()
        assert "making the layer of agents" in said
        assert {"making the layer of python", "making the layer of packages"} & set(said) == set()
        assert {name for name, sha in after["layers"].items() if before["layers"][name] != sha} == {"agents"}
        assert after["version"] != before["version"]
        assert Path(before["root"]).is_dir(), "somebody may run from it"
        before = after
    assert max(bundle.layers, key=lambda one: one.size_bytes).name == "python"
    assert next(one for one in bundle.layers if one.name == "agents").size_bytes < 1_000_000


def test_a_second_bundle_shares_what_did_not_change(source: Path, home: Path) -> None:
    """Somebody works on our code and starts a server again and again."""
    _, first = Builder(source, home).result()
    (Path(first["root"]) / tree.PACKAGES / "pynvml.pyc").unlink()
    with open(source / "stoker" / "runner" / "limits.py", "a") as file:
        file.write("MORE = 1\n")
    _, second = Builder(source, home).result()
    own = [path for path in Path(second["root"]).rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    names = {str(path.relative_to(second["root"])) for path in own}
    assert f"{tree.PACKAGES}/pynvml.pyc" in names, "somebody had removed it from the first"
    assert sum(path.stat().st_size for path in own) < 4_000_000
    assert tree.LOADER in names, "who runs from it is told by this file"


def test_code_that_is_touched_and_not_changed_changes_nothing(source: Path, home: Path) -> None:
    _, before = Builder(source, home).result()
    os.utime(source / "stoker" / "runner" / "limits.py")
    said, after = Builder(source, home).result()
    assert after == before
    assert "unpacking it" not in said
    assert Builder(source, home).result() == ([], before), "and then it is known again"


def test_two_who_ask_at_once_make_it_once(bundle: Bundle, source: Path, tmp_path: Path) -> None:
    """Two servers on one host begin together."""
    builders = [Builder(source, tmp_path / "home") for _ in range(3)]
    results = [one.result() for one in builders]
    assert {told["digest"] for _, told in results} == {bundle.digest}
    assert [said for said, _ in results].count([]) + sum("waiting" in said[0] for said, _ in results if said) >= 2
    assert sum("unpacking it" in said for said, _ in results) == 1


def test_who_is_killed_while_it_is_made_leaves_nothing_half_made(source: Path, tmp_path: Path) -> None:
    """Again and again, always later; what was finished before is not made again."""
    place = tmp_path / "home" / "bundle"
    for moment in ("making the layer of python", "making the layer of packages", "unpacking it"):
        builder = Builder(source, tmp_path / "home")
        for said in builder.said():
            if said == moment:
                # Into the middle of it.
                time.sleep(0.05)
                builder.process.kill()
                break
        assert builder.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert list(place.glob(f"{prune.UNFINISHED}*")), "something was begun"
        assert not list(place.glob(f"*/{tree.MANIFEST}"))
    done, told = Builder(source, tmp_path / "home").result()
    assert "making the layer of packages" not in done
    made = find_or_build(tmp_path / "home")
    assert made.digest == told["digest"]
    holds(made)
    assert not list(place.glob(f"{prune.UNFINISHED}*"))


def test_a_bundle_of_which_something_was_removed_is_made_anew(source: Path, home: Path) -> None:
    """Somebody tidied up: an archive, or all of it."""
    _, told = Builder(source, home).result()
    shutil.rmtree(told["root"])
    said, again = Builder(source, home).result()
    assert again == told
    assert "unpacking it" in said
    next((home / "bundle" / "layers").glob("*.tar.gz")).unlink()
    said, again = Builder(source, home).result()
    assert again == told
    holds(find_or_build(home))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """While it is compiled, while a layer is packed, while it is unpacked."""
    with small_disk(tmp_path / "disk", 200) as disk:
        place = disk / "home" / "bundle"
        for room_mb in (1, 16, 40):
            fill(disk / "ballast", room_mb * 1024 * 1024)
            with pytest.raises(Unavailable, match="no room for the agents' bundle") as caught:
                find_or_build(disk / "home")
            assert caught.value.code == "no_space"
            assert "make room" in caught.value.hint
            assert not list(place.glob(f"*/{tree.MANIFEST}"))
            assert not list(place.glob(f"{prune.UNFINISHED}*")), "what was begun does not fill the disk for ever"
            (disk / "ballast").unlink()
        assert len(list(place.glob("layers/*"))) == 3, "the last one was unpacking"
        holds(find_or_build(disk / "home"))


@as_root
def test_a_disk_that_no_program_may_be_started_from_is_told(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(UserError, match="noexec"):
            find_or_build(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(Unavailable, match="cannot be made"):
        find_or_build(tmp_path / "home")


def old(place: Path, name: str, days: float, sha: str) -> Path:
    root = place / name
    (root / "lib").mkdir(parents=True)
    shutil.copy("/bin/sleep", root / tree.LOADER)
    (root / tree.MANIFEST).write_text(json.dumps({"layers": [{"sha256": sha}]}))
    (place / "layers").mkdir(exist_ok=True)
    archive = place / "layers" / f"{sha}.tar.gz"
    archive.write_text("")
    for path in (root / tree.MANIFEST, archive):
        os.utime(path, (time.time() - days * 86400,) * 2)
    return root


def test_old_bundles_are_removed_unless_somebody_runs_from_them(tmp_path: Path) -> None:
    """A server is upgraded every week; a job of last month still runs, maybe in a container."""
    trees = [old(tmp_path, f"{number:032}", days=40 - number, sha=f"{number:064}") for number in range(7)]
    running = subprocess.Popen([trees[1] / tree.LOADER, "1000"])
    try:
        prune.remove_old(tmp_path, trees[0])
    finally:
        running.kill()
        running.wait()
    left = [root for root in trees if root.exists()]
    assert left == [trees[0], trees[1], *trees[-prune.KEPT :]], "the one that was asked for, the one in use, the newest"
    assert len(list((tmp_path / "layers").iterdir())) == len(left)


def test_a_path_that_the_loader_would_take_for_two_is_refused() -> None:
    with pytest.raises(Exception, match="has a colon"):
        Bundle.command(Path("/a:b"), "stoker.shim")
