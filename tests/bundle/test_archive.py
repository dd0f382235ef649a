"""Archives that depend on nothing but what is in them."""

import os
import tarfile
import time
from pathlib import Path

from stoker.bundle import archive


def files(directory: Path) -> dict[str, Path]:
    directory.mkdir()
    (directory / "one").write_text("first")
    (directory / "two").write_bytes(bytes(100_000))
    return {"bin/one": directory / "one", "lib/deep/two": directory / "two"}


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    """Written on another day, by somebody else, named in another order."""
    first = archive.write(tmp_path / "a.tar.gz", files(tmp_path / "a"), ["bin/one"])
    others = files(tmp_path / "b")
    for path in others.values():
        os.utime(path, (time.time() - 1e6, time.time() - 1e6))
        path.chmod(0o600)
    second = archive.write(tmp_path / "b.tar.gz", dict(reversed(others.items())), ["bin/one"])
    assert first == second
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    assert first[1] == (tmp_path / "a.tar.gz").stat().st_size


def test_what_was_unpacked_can_be_used_by_anybody(tmp_path: Path) -> None:
    """An agent closes what it writes to others; containers of other users read a bundle."""
    archive.write(tmp_path / "a.tar.gz", files(tmp_path / "a"), ["bin/one"])
    before = os.umask(0o077)
    try:
        archive.unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert modes == {"bin": 0o755, "one": 0o755, "lib": 0o755, "deep": 0o755, "two": 0o644}


def test_any_tar_can_unpack_it(tmp_path: Path) -> None:
    archive.write(tmp_path / "a.tar.gz", files(tmp_path / "a"), [])
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        members = {member.name: (member.uid, member.uname, int(member.mtime)) for member in tar}
    assert set(members) == {"bin", "bin/one", "lib", "lib/deep", "lib/deep/two"}
    assert len(set(members.values())) == 1
