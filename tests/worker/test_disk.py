"""A worker whose directory is full, or taken from under its feet."""

import shutil
import subprocess
from pathlib import Path

from tests.machine import fill, small_disk
from tests.worker.fake import serving
from tests.worker.stage import until, working


async def test_a_task_that_cannot_write_its_output_fails_and_the_next_one_does_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        async with serving() as server, working(server, tmp_path / "home", "--dir", str(disk / "worker")):
            fill(disk / "ballast")
            full = server.add("head -c 100000 /dev/zero")
            assert (await until(lambda: server.ended.get(full))).exit_status == 1
            (disk / "ballast").unlink()
            fine = server.add("head -c 100000 /dev/zero")
            assert (await until(lambda: server.ended.get(fine))).exit_status == 0
            assert len(server.output(fine)) == 100000


async def test_where_no_file_can_be_made_tasks_go_back(tmp_path: Path) -> None:
    """It is no fault of theirs: another worker takes them, or this one when it has room again."""
    with small_disk(tmp_path / "disk", 8) as disk:
        async with serving() as server, working(server, tmp_path / "home", "--dir", str(disk / "worker")) as hand:
            _remount(disk, 2)
            keys = [server.add("true") for _ in range(3)]
            await until(lambda: server.given_back)
            assert "nothing can be started here" in hand.said()
            assert not server.ended
            _remount(disk, 1000)
            for _ in keys:
                server.add("true")
            await until(lambda: server.ended)


def _remount(disk: Path, inodes: int) -> None:
    used = int(subprocess.run(["df", "--output=iused", disk], capture_output=True, check=True).stdout.split()[-1])
    option = f"remount,size=8m,nr_inodes={max(used, inodes)}"
    subprocess.run(["mount", "-o", option, disk], check=True)


async def test_a_directory_that_is_removed_is_made_again(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        keys = [server.add("echo before") for _ in range(10)]
        await until(lambda: len(server.ended) == len(keys))
        shutil.rmtree(tmp_path / "worker")
        keys = [server.add('echo after; echo 7 > "$STOKER_RESULT"') for _ in range(10)]
        await until(lambda: all(key in server.ended for key in keys))
        assert {server.ended[key].exit_status for key in keys} == {0}
        assert server.ended[keys[-1]].result == "7\n"
