"""The parts of a shim that can be tried without one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from stoker.core.errors import UserError
from stoker.shim import cgroup, log
from stoker.shim.change import Changes
from stoker.shim.diary import Diary
from stoker.shim.fence import Removed
from stoker.shim.ledger import Ledger
from stoker.wire.frame import FRAME_BYTES, Frame, encode

V1 = """\
25 1 0:21 / /sys rw - sysfs sysfs rw
31 25 0:27 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / {root}/memory rw - cgroup cgroup rw,memory
33 25 0:29 / {root}/unified rw - cgroup2 cgroup2 rw
"""
V2 = "31 25 0:27 {below} {root} rw - cgroup2 cgroup2 rw,nsdelegate\n"


# Control groups. The files are ordinary ones: what is written is looked at, not what the kernel makes of it.


def group(path: Path, *files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in ("cgroup.procs", *files):
        (path / name).touch()
    return path


def test_version_1_is_used_below_our_own_group(tmp_path: Path) -> None:
    """A session that is confined itself: its jobs are confined with it."""
    memory, cpu = group(tmp_path / "memory/session/ours"), group(tmp_path / "cpu/ours")
    membership = "4:memory:/session\n1:cpu,cpuacct:/\n0::/\n"
    found = cgroup.find("ours", V1.format(root=tmp_path), membership)
    assert (found.version, found.places) == (1, (memory, cpu))
    id = uuid4()
    group(memory / str(id), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    group(cpu / str(id), "cpu.cfs_quota_us", "cpu.cfs_period_us")
    found.make(found.directories(id), 0.25, 100)
    found.make(found.directories(id), 0.25, 100)
    assert (memory / str(id) / "memory.limit_in_bytes").read_text() == str(100 << 20)
    assert (memory / str(id) / "memory.memsw.limit_in_bytes").read_text() == str(100 << 20)
    assert (cpu / str(id) / "cpu.cfs_quota_us").read_text() == "25000"


def test_version_2_is_used_beside_our_own_group(tmp_path: Path) -> None:
    """Our own group holds processes, so it cannot hand down controllers; the one above it can."""
    group(tmp_path / "user.slice/session.scope", "cgroup.subtree_control")
    group(tmp_path / "user.slice", "cgroup.subtree_control")
    ours = group(tmp_path / "user.slice/ours", "cgroup.subtree_control")
    mount = V2.format(root=tmp_path, below="/")
    found = cgroup.find("ours", mount, "0::/user.slice/session.scope\n")
    assert (found.version, found.places) == (2, (ours,))
    assert (ours / "cgroup.subtree_control").read_text() == "+memory +cpu"
    id = uuid4()
    task = group(ours / str(id), "memory.max", "memory.swap.max", "cpu.max")
    found.make(found.directories(id), 2.0, 512)
    assert [(task / name).read_text() for name in ("memory.max", "memory.swap.max", "cpu.max")] == [
        str(512 << 20),
        "0",
        "200000 100000",
    ]
    contained = cgroup.find("ours", V2.format(root=tmp_path, below="/docker/x"), "0::/docker/x/user.slice/y\n")
    assert contained.places == (ours,)


def test_without_a_place_for_groups_there_are_none(tmp_path: Path) -> None:
    """No mounts, a mount that is elsewhere, or one where nothing may be made."""
    assert cgroup.find("ours", "", "0::/\n") == cgroup.Cgroups()
    assert cgroup.find("ours", V2.format(root=tmp_path, below="/other"), "0::/\n").version == 0
    assert cgroup.find("ours", V2.format(root=tmp_path, below="/"), "0::/a/b\n").version == 0
    nothing = cgroup.Cgroups()
    assert nothing.directories(uuid4()) == ()
    nothing.make((), 1.0, 1)
    cgroup.remove(())


def test_groups_that_a_job_made_within_are_removed_too(tmp_path: Path) -> None:
    (tmp_path / "task" / "inner" / "most").mkdir(parents=True)
    cgroup.remove([str(tmp_path / "task"), str(tmp_path / "gone")])
    assert list(tmp_path.iterdir()) == []


# What changed.


async def test_a_cursor_is_known_only_if_it_was_given() -> None:
    changes = Changes()
    first = changes.cursor
    assert changes.number(first) == 0
    changes.bump()
    assert changes.number(changes.cursor) == 1
    for wrong in ("", ":", f"{changes.boot}:", f"{changes.boot}:2", f"{changes.boot}:-1", f"{changes.boot}:²", "x:0"):
        assert changes.number(wrong) is None


async def test_all_who_wait_are_woken_by_one_change_and_by_the_end() -> None:
    changes = Changes()
    waiting = [asyncio.create_task(changes.beyond(0, 30.0)) for _ in range(3)]
    await asyncio.sleep(0)
    changes.bump()
    await asyncio.wait_for(asyncio.gather(*waiting), 5.0)
    await asyncio.wait_for(changes.beyond(0, 30.0), 5.0)
    last = asyncio.create_task(changes.beyond(1, 30.0))
    await asyncio.sleep(0)
    changes.close()
    await asyncio.wait_for(last, 5.0)


# Fences.


def test_the_last_removed_tasks_are_remembered_and_no_more(tmp_path: Path) -> None:
    ids = [UUID(int=number) for number in range(30)]
    removed = Removed(Ledger(tmp_path / "removed"), kept=4)
    for number, id in enumerate(ids):
        removed.add(id, number)
    removed.add(ids[-1], 3)
    again = Removed(Ledger(tmp_path / "removed"), kept=4)
    for found in (removed, again):
        assert [found.fence(id) for id in ids[-5:]] == [None, 26, 27, 28, 29]
    assert len((tmp_path / "removed").read_text().splitlines()) <= 9


def test_removals_from_several_threads_are_all_noted(tmp_path: Path) -> None:
    removed = Removed(Ledger(tmp_path / "removed"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: removed.add(UUID(int=number), number), range(50)))
    again = Removed(Ledger(tmp_path / "removed"))
    assert all(again.fence(UUID(int=number)) == number for number in range(50))


# Logs on disk.


def frames(*sizes: int) -> bytes:
    return b"".join(encode(Frame(1, 1, bytes([65 + number]) * size)) for number, size in enumerate(sizes))


def test_the_end_of_a_log_follows_its_segments(tmp_path: Path) -> None:
    """Segments begin where the one before ended; those that were read may be deleted, the end never moves back."""
    end = log.LogEnd(tmp_path / "log")
    assert end.look() == 0
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / f"{0:020}.log").write_bytes(b"x" * 100)
    assert end.look() == 100
    (tmp_path / "log" / f"{100:020}.log").write_bytes(b"")
    assert end.look() == 100
    (tmp_path / "log" / f"{100:020}.log").write_bytes(b"x" * 50)
    (tmp_path / "log" / f"{150:020}.log").write_bytes(b"x" * 7)
    assert end.look() == 157
    for segment in (tmp_path / "log").iterdir():
        segment.unlink()
    assert end.look() == 157
    (tmp_path / "log" / f"{157:020}.log").write_bytes(b"x")
    assert end.look() == 158
    assert log.LogEnd(tmp_path / "log").look() == 158


def test_a_piece_of_a_log_is_whole_frames(tmp_path: Path) -> None:
    first, second = frames(10, 20, FRAME_BYTES), frames(5)
    (tmp_path / f"{0:020}.log").write_bytes(first)
    (tmp_path / f"{len(first):020}.log").write_bytes(second + frames(9)[:-1])
    assert log.read(tmp_path, 0, 100) == frames(10, 20)
    assert log.read(tmp_path, len(frames(10, 20)), 1) == first[len(frames(10, 20)) :], "one frame, however long"
    assert log.read(tmp_path, len(first), 1000) == second, "not the one that is being written"
    assert log.read(tmp_path, len(first) + len(second), 1000) == b""
    assert log.read(tmp_path, 2**63 - 1, 1000) == b""
    with pytest.raises(UserError):
        log.read(tmp_path, 3, 1000)
    (tmp_path / f"{0:020}.log").unlink()
    with pytest.raises(UserError, match="begins at"):
        log.read(tmp_path, 0, 1000)
    assert log.read(tmp_path / "nowhere", 0, 1000) == b""


def test_a_log_ends_where_a_lost_power_left_zeros(tmp_path: Path) -> None:
    whole = frames(10, 20)
    (tmp_path / f"{0:020}.log").write_bytes(whole + bytes(4096))
    assert log.read(tmp_path, 0, 10_000) == whole
    assert log.read(tmp_path, len(whole), 10_000) == b""
    with pytest.raises(UserError):
        log.read(tmp_path, len(whole) + 1, 10_000)


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    assert log.tail(tmp_path) == ""
    text = b"".join(b"line %d\n" % number for number in range(1000)) + b"\xff end"
    (tmp_path / f"{0:020}.log").write_bytes(encode(Frame(1, 1, text)) + frames(9)[:-2])
    assert log.tail(tmp_path).splitlines()[0] == "line 991"
    assert log.tail(tmp_path).endswith("\ufffd end")


# Files.


def test_a_line_that_was_cut_short_was_never_said(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.read() == []
    ledger.append([("a", 1), ("b", 2)])
    with open(tmp_path / "ledger", "a") as file:
        file.write("c 3")
    assert ledger.read() == [["a", "1"], ["b", "2"]]
    ledger.append([("d", 4)])
    assert ledger.read()[-1] == ["d", "4"]


def test_the_diary_does_not_grow_without_end(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "shim.log", most_bytes=1000)
    for number in range(200):
        diary.write(f"line {number}\n")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"shim.log", "shim.log.1"}
    assert max(sizes.values()) <= 1020
    assert (tmp_path / "shim.log").read_text().endswith("line 199\n")
