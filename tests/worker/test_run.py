"""What a worker does with the commands it is given: real processes, a server that only listens."""

import base64
import json
import os
import signal
import sys
from pathlib import Path

from tests.worker.fake import serving
from tests.worker.stage import processes_of, until, working


def text(encoded: str | None) -> str:
    return base64.b64decode(encoded or "").decode()


async def test_a_command_runs_and_its_end_is_told(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        key = server.add(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
        ended = await until(lambda: server.ended.get(key))
        assert (ended.exit_status, ended.stopped, ended.message) == (3, False, "")
        assert (text(ended.stdout), text(ended.stderr)) == ("out\n", "err\n")
        assert ended.ran_s is not None and 0 < ended.ran_s < 10
        assert ended.cpu_s is not None


async def test_the_most_memory_that_a_task_had_is_its_own_and_not_its_workers(tmp_path: Path) -> None:
    """The kernel says of what began in a larger process that it had as much. So of a small one it is not known."""
    async with serving() as server, working(server, tmp_path):
        small, large = server.add(["/bin/true"]), server.add([sys.executable, "-c", "x = bytearray(150 << 20)"])
        await until(lambda: len(server.ended) == 2)
        assert server.ended[small].memory_bytes is None
        most = server.ended[large].memory_bytes
        assert most is not None and 150 << 20 < most < 200 << 20


async def test_a_string_is_for_the_shell_and_a_signal_is_a_negative_status(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        shell, killed = server.add("echo $((6*7))"), server.add("kill -9 $$")
        await until(lambda: len(server.ended) == 2)
        assert text(server.ended[shell].stdout) == "42\n"
        assert server.ended[killed].exit_status == -9


async def test_a_task_knows_who_it_is_and_returns_a_result(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        script = 'echo "$STOKER_TASK_ID $STOKER_ATTEMPT $STOKER_PROJECT $STOKER_GROUP $A" > "$STOKER_RESULT"'
        key = server.add(script, attempt=4, env={"A": "b"}, group="sweep")
        ended = await until(lambda: server.ended.get(key))
        assert ended.result == f"{key[0]} 4 main sweep b\n"


async def test_a_task_has_its_directory_and_its_input(tmp_path: Path) -> None:
    """One after the other in different places: no task inherits the place of the one before."""
    place = tmp_path / "there"
    place.mkdir()
    async with serving() as server, working(server, tmp_path / "home", "--cpus", "1"):
        there = server.add("pwd; cat", working_dir=str(place), stdin="héllo")
        here = server.add("pwd; cat")
        await until(lambda: len(server.ended) == 2)
        assert text(server.ended[there].stdout) == f"{place}\nhéllo"
        assert text(server.ended[here].stdout) == f"{tmp_path / 'home'}\n"


async def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    async with serving() as server, working(server, tmp_path / "home"):
        cases = {
            server.add(["no-such-command"]): (127, "no-such-command"),
            server.add(["/no/such/path"]): (127, "/no/such/path"),
            server.add([str(plain)]): (126, "Permission denied"),
            server.add([str(tmp_path)]): (126, "Permission denied"),
            server.add(["/bin/true"], working_dir="/no/such/dir"): (125, "/no/such/dir"),
            server.add(["/bin/true"], output="files", output_dir="/proc/nowhere"): (125, "/proc/nowhere"),
            server.add(["/bin/true"], env={f"V{i}": "x" * 120_000 for i in range(60)}): (126, "too long"),
            server.add(["/bin/true", "nul\0"]): (125, "null"),
        }
        await until(lambda: len(server.ended) == len(cases))
        for key, (status, word) in cases.items():
            assert server.ended[key].exit_status == status, server.ended[key]
            assert word in server.ended[key].message
        last = server.add("echo fine")
        assert text((await until(lambda: server.ended.get(last))).stdout) == "fine\n"


LOOK = """
import os, signal, json
ignored = [n for n in range(1, 32) if n not in (9, 19) and signal.getsignal(n) == signal.SIG_IGN]
files, blocked = sorted(map(int, os.listdir("/proc/self/fd"))), list(signal.pthread_sigmask(0, []))
print(json.dumps({"files": files, "blocked": blocked,
                  "ignored": ignored, "session": os.getsid(0) == os.getpid(), "group": os.getpgrp() == os.getpid()}))
"""


async def test_a_task_inherits_nothing_of_the_worker(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        key = server.add([sys.executable, "-c", LOOK])
        seen = json.loads(text((await until(lambda: server.ended.get(key))).stdout))
        # The third file is the directory that is read; Python itself ignores the two signals.
        assert seen["files"] == [0, 1, 2, 3]
        assert seen["blocked"] == []
        assert set(seen["ignored"]) == {signal.SIGPIPE, signal.SIGXFSZ}
        assert seen["session"] and seen["group"]


async def test_gpus_are_shared_out_by_index(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path, "--gpus", "2"):
        ask = "echo gpu=$CUDA_VISIBLE_DEVICES; sleep 0.3"
        both = [server.add(ask, wants={"gpus": 1}), server.add(ask, wants={"gpus": 1}), server.add(ask)]
        await until(lambda: len(server.ended) == 3)
        assert {text(server.ended[key].stdout) for key in both} == {"gpu=0\n", "gpu=1\n", "gpu=\n"}
        assert server.workers[0].total.gpus == (1, 1)


async def test_a_part_of_a_gpu_and_an_alternative(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path, "--gpus", "1", "--resource", "licence=1"):
        part = server.add("echo $CUDA_VISIBLE_DEVICES", wants={"cpus": 0.5, "gpus": 0.5})
        other = server.add("echo ran", wants={"gpus": 4}, alternatives=[{"licence": 1}])
        await until(lambda: len(server.ended) == 2)
        assert text(server.ended[part].stdout) == "0\n"
        assert text(server.ended[other].stdout) == "ran\n"


async def test_pinned_tasks_have_a_cpu_of_their_own(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    async with serving() as server, working(server, tmp_path, "--pin", "--cpus", "1"):
        show = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['STOKER_CPUS'])"
        key = server.add([sys.executable, "-c", show])
        ended = await until(lambda: server.ended.get(key))
        assert text(ended.stdout) == f"[{cpus[0]}] {cpus[0]}\n"


async def test_outputs_may_stay_on_the_host_or_go_nowhere(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path / "home"):
        kept = server.add("echo kept; echo and >&2", output="files", output_dir=str(tmp_path / "logs"))
        usual = server.add("echo usual", output="files")
        none = server.add("echo lost", output="none")
        await until(lambda: len(server.ended) == 3)
        assert (tmp_path / "logs" / f"{kept[0]}-1.out").read_text() == "kept\n"
        assert (tmp_path / "logs" / f"{kept[0]}-1.err").read_text() == "and\n"
        assert (tmp_path / "home" / "worker" / "output" / f"{usual[0]}-1.out").read_text() == "usual\n"
        assert all(server.ended[key].stdout is None for key in (kept, usual, none))


async def test_a_hundred_megabytes_of_output_pass_through(tmp_path: Path) -> None:
    """All of it, in order, while the worker stays as small as it was."""
    async with serving() as server, working(server, tmp_path) as hand:
        status = Path(f"/proc/{hand.pid}/status")

        def peak_mb() -> float:
            return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024

        before = peak_mb()
        key = server.add("head -c 104857600 /dev/zero | tr '\\0' x; echo end >&2")
        ended = await until(lambda: server.ended.get(key))
        assert len(server.output(key)) == 104857600
        assert server.output(key, "stderr") == b"end\n"
        assert ended.stdout is None and ended.stderr is None
        assert peak_mb() - before < 30


async def test_what_a_task_prints_is_seen_while_it_runs(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        gate = tmp_path / "gate"
        key = server.add(f"echo first; while [ ! -e {gate} ]; do sleep 0.05; done; echo second")
        await until(lambda: server.output(key) == b"first\n")
        assert key in server.started and key not in server.ended
        gate.touch()
        await until(lambda: key in server.ended)
        assert server.output(key) == b"first\nsecond\n"


async def test_a_task_leaves_nobody_behind(tmp_path: Path) -> None:
    """Neither in its group nor out of it."""
    async with serving() as server, working(server, tmp_path):
        inside = server.add("sleep 1000 & echo done")
        outside = server.add("setsid sleep 1000 >/dev/null 2>&1 & sleep 0.1")
        await until(lambda: len(server.ended) == 2)
        await until(lambda: not processes_of(inside) and not processes_of(outside))
        assert server.ended[inside].exit_status == 0


async def test_a_process_that_fled_does_not_write_into_the_output_of_another_task(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path, "--cpus", "1"):
        server.add("setsid sh -c 'while :; do echo mine; sleep 0.001; done' & sleep 0.05")
        others = [server.add("sleep 0.02; echo yours") for _ in range(20)]
        await until(lambda: all(key in server.ended for key in others))
        assert {text(server.ended[key].stdout) for key in others} == {"yours\n"}


async def test_long_tasks_are_measured(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        code = "import time; x = bytearray(80_000_000); t = time.time()\nwhile time.time() < t + 60: pass"
        key = server.add([sys.executable, "-c", code], grace_s=1)
        sample = await until(lambda: server.sampled and server.sampled[0])
        assert sample.memory_bytes > 80_000_000
        assert 0.1 < sample.cpus < 1.5
        await server.cancel(key)
        await until(lambda: key in server.ended)


async def test_many_short_tasks_are_claimed_ahead_and_reported_together(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        keys = [server.add(["/bin/true"]) for _ in range(500)]
        await until(lambda: len(server.ended) == 500)
        assert {server.ended[key].exit_status for key in keys} == {0}
        assert server.log.count("report") < 250
        assert not server.held


async def test_long_tasks_are_not_claimed_ahead(tmp_path: Path) -> None:
    """Another worker may be idle."""
    async with serving() as server, working(server, tmp_path):
        keys = [server.add("sleep 0.5") for _ in range(4)]
        await until(lambda: len(server.started) >= 2)
        assert len(server.available) == 2
        await until(lambda: all(key in server.ended for key in keys))


async def test_what_was_claimed_ahead_goes_back_when_it_cannot_begin(tmp_path: Path) -> None:
    """Short tasks made it claim ahead, and then came long ones: they are for others."""
    async with serving() as server, working(server, tmp_path):
        for _ in range(200):
            server.add(["/bin/true"])
        slow = [server.add("sleep 1000", grace_s=0.1) for _ in range(30)]
        await until(lambda: sum(key in server.started for key in slow) == 2)
        await until(lambda: len(server.held) == 2 and server.given_back)
        assert not set(server.given_back) & set(server.ended)
