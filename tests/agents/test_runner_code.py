"""What an archive may hold, and that no sequence of its members writes or points out of the directory."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.core.errors import UserError
from stoker.runner.code import unpack


def directory(name: str) -> tarfile.TarInfo:
    return member(name, type=tarfile.DIRTYPE)


def link(name: str, to: str, *, hard: bool = False) -> tarfile.TarInfo:
    return member(name, type=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, linkname=to)


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(made, key, value)
    return made


def unpacked(tmp_path: Path, members: Sequence[tarfile.TarInfo]) -> Path:
    """Every file says its own name, and a word more."""
    code, work = tmp_path / "code.tar", tmp_path / "work"
    work.mkdir()
    with tarfile.open(code, "w") as tar:
        for one in members:
            said = f"{one.name}!".encode() if one.isreg() else b""
            one.size = len(said)
            tar.addfile(one, io.BytesIO(said))
    unpack(code, work, None)
    return work


def test_a_tree_with_links_among_its_files_arrives(tmp_path: Path) -> None:
    """As `tar` packs one, with its root and without some of its directories."""
    work = unpacked(
        tmp_path,
        [
            directory("./"),
            member("./a", mode=0o4777, mtime=1_000_000),
            member("deep/er/b"),
            link("deep/er/up", "../../a"),
            link("there", "deep/er"),
            link("same", "deep/er/b", hard=True),
            member("a"),
        ],
    )
    assert (work / "a").read_text() == "a!"
    assert (work / "there" / "up").read_text() == "a!"
    assert (work / "same").samefile(work / "deep" / "er" / "b")


def test_a_file_keeps_its_time_and_the_rights_that_are_safe(tmp_path: Path) -> None:
    found = (unpacked(tmp_path, [member("a", mode=0o4777, mtime=1_000_000)]) / "a").stat()
    assert (found.st_mode & 0o7777, found.st_mtime) == (0o755, 1_000_000)


@pytest.mark.parametrize(
    "members",
    [
        [member("a/../../outside")],
        [link("out", "..")],
        [link("a/out", "../..")],
        [directory("p/q"), link("p/q/top", "../.."), link("out", "p/q/top/../outside")],
        [directory("d"), link("in", "d"), member("in/x")],
        [directory("d"), link("in", "d"), directory("in")],
        [directory("d"), link("d", ".")],
        [member("d"), directory("d")],
        [link("out", "../code.tar", hard=True)],
        [member("a"), link("in", "a"), link("b", "in", hard=True)],
        [directory("d"), link("in", "d"), link("b", "in/../../code.tar", hard=True)],
        [link("b", "missing", hard=True)],
        [member("pipe", type=tarfile.FIFOTYPE)],
        [member(".")],
    ],
    ids=lambda members: " ".join(f"{one.name}>{one.linkname}" if one.linkname else one.name for one in members),
)
def test_what_leads_astray_is_refused_whole(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    with pytest.raises(UserError) as refused:
        unpacked(tmp_path, [member("good"), *members])
    assert refused.value.code == "bad_archive"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code.tar", "work"]
    assert list((tmp_path / "work").iterdir()) == []
