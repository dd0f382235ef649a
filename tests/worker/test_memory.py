"""What a task asks for is what it may take of the memory, wherever its processes went."""

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from stoker.runner import proc
from stoker.wire.worker import Work
from stoker.worker.attempt import Attempt
from stoker.worker.limits import MEMORY_S
from stoker.worker.memory import MemoryWatch
from stoker.worker.sample import PAGE_BYTES
from tests.worker.fake import serving
from tests.worker.stage import processes_of, until, working

MB = 1024 * 1024
EAT = "taken = bytearray(b'x' * {mb} * 1024 * 1024)"


async def test_a_task_that_takes_more_memory_than_it_asked_for_is_stopped(tmp_path: Path) -> None:
    """By a process that fled from its group, while the task beside it takes as much, and asked for it."""
    gate = tmp_path / "gate"
    hold = f"\nimport os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)"
    async with serving() as server, working(server, tmp_path):
        modest = server.add([sys.executable, "-c", EAT.format(mb=200) + hold], wants={"cpus": 1, "memory": 400})
        await until(lambda: modest in server.started)
        flee = f'setsid {sys.executable} -c "{EAT.format(mb=200)}; import time; time.sleep(1000)" & sleep 1000'
        greedy = server.add(flee, wants={"cpus": 1, "memory": 100}, grace_s=1000)
        ended = await until(lambda: server.ended.get(greedy))
        assert (ended.exit_status, ended.stopped) == (-9, False)
        assert ended.message.startswith("It took more memory than it had asked for: 2")
        assert ended.message.endswith(" MB instead of 100 MB.")
        assert ended.memory_bytes > 200 * MB
        await until(lambda: not processes_of(greedy))
        assert modest not in server.ended
        gate.touch()
        assert (await until(lambda: server.ended.get(modest))).exit_status == 0


@contextmanager
def python(code: str) -> Iterator[int]:
    """A process that has done this, and stays."""
    made = subprocess.Popen(
        [sys.executable, "-c", f"import os, time\n{code}\nprint('there', flush=True)\ntime.sleep(1000)"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert made.stdout is not None
    try:
        assert made.stdout.readline() == b"there\n"
        yield made.pid
    finally:
        os.killpg(made.pid, signal.SIGKILL)
        made.communicate()


def attempt(pid: int, wanted: dict[str, float], began_at: float) -> Attempt:
    work = Work(id=uuid4(), attempt=1, command="x", requested_resources=wanted)
    made = Attempt.of(work, began_at, spare=False)
    made.pid, made.began_at, made.wanted = pid, began_at, wanted
    return made


def test_what_processes_share_counts_once() -> None:
    with python(EAT.format(mb=100) + "\nfor n in range(4):\n    if not os.fork(): time.sleep(1000)") as pid:
        now = time.monotonic()
        began_at = now - 2 * MEMORY_S
        enough, little = (attempt(pid, {"memory": mb}, began_at) for mb in (250, 90))
        (found,) = MemoryWatch().look([enough, little], now)
        assert found[0] is little and 100 * MB < found[1] < 200 * MB


def test_a_mapped_file_is_not_memory_that_a_task_takes(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(200 * MB))
    look = (
        f"import mmap\nseen = mmap.mmap(os.open({str(file)!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)\nsum(seen[::4096])"
    )
    with python(look) as pid:
        told = proc.stat(pid)
        assert told is not None and told.memory_pages * PAGE_BYTES > 200 * MB
        assert MemoryWatch().look([attempt(pid, {"memory": 100}, 0.0)], time.monotonic()) == []


def test_who_asked_for_none_may_take_what_there_is_and_nobody_is_looked_at_all_the_time() -> None:
    with python(EAT.format(mb=50)) as pid:
        now = time.monotonic()
        silent, young = attempt(pid, {"cpus": 1}, now - 100), attempt(pid, {"memory": 1}, now)
        old = attempt(pid, {"memory": 1}, now - 100)
        watch = MemoryWatch()
        assert [one for one, _ in watch.look([silent, young, old], now)] == [old]
        assert watch.look([old], now + MEMORY_S / 2) == []
        assert [one for one, _ in watch.look([old], now + MEMORY_S)] == [old]


async def test_when_the_host_runs_out_of_memory_tasks_go_first(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        key = server.add("cat /proc/self/oom_score_adj")
        ended = await until(lambda: server.ended.get(key))
        assert int(base64.b64decode(ended.stdout)) >= 300
