"""What a runner does with real commands: how they end, how they are stopped, and that nothing of them is left."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.runner import proc
from stoker.runner.reaper import JOB_VARIABLE, kill_leftovers
from stoker.wire.frame import Stream
from stoker.wire.runner import Failure
from tests.agents.running import Running, fork_server, runner, until


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-process"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


def left_of(running: Running) -> set[int]:
    """Processes of the job that still run, whoever their parent is."""
    mark = f"{JOB_VARIABLE}={running.job_id}".encode()
    return {pid for pid in proc.pids() if proc.has_in_environment(pid, mark) and proc.alive(pid)}


async def test_commands_run_in_one_shell_and_both_streams_are_told_apart(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("cd /tmp; X=5", "echo $X $PWD; echo oops >&2")
        assert (result.exit_code, result.signal, result.setup, result.failure) == (0, None, False, None)
        assert await one.output() == b"5 /tmp\n"
        assert await one.output(Stream.STDERR) == b"oops\n"
        assert not left_of(one)


async def test_the_first_failure_ends_the_commands(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("echo one", "exit 7", "echo two")
        assert result.exit_code == 7
        assert await one.output() == b"one\n"


@pytest.mark.parametrize("shell", ["/bin/sh", "bash"])
async def test_a_failing_program_in_the_middle_ends_them_too(fork_socket: Path, place: Path, shell: str) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("false", "echo never", shell=shell)
        assert (result.exit_code, result.signal) == (1, None)
        assert await one.output() == b""


async def test_a_setup_that_fails_is_told_apart_and_the_commands_never_run(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("echo never", setup=["echo setting up", "exit 3"])
        assert (result.exit_code, result.setup) == (3, True)
        assert await one.output() == b"setting up\n"


async def test_the_commands_find_what_the_setup_left(fork_socket: Path, place: Path) -> None:
    """A file, and also a background process, which ends with the job and not with the setup."""
    async with runner(fork_socket, place) as one:
        result = await one.runs(
            "cat made; kill -0 $(cat pid) && echo alive", setup=["echo x > made; sleep 60 & echo $! > pid"]
        )
        assert (result.exit_code, result.setup) == (0, False)
        assert await one.output() == b"x\nalive\n"
        assert not left_of(one)


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        ("kill -SEGV $$", 139, signal.SIGSEGV),
        ("kill -TERM $$", 143, signal.SIGTERM),
        ("kill -40 $$", 168, 40),
        ("sh -c 'kill -KILL $$'; echo never", 137, signal.SIGKILL),
    ],
)
async def test_an_end_by_signal_is_reported(
    fork_socket: Path, place: Path, command: str, code: int, number: int
) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs(command)
        assert (result.exit_code, result.signal, result.oom) == (code, number, False)


async def test_a_polite_job_is_stopped_at_once(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("echo up; exec sleep 60")
        await one.printed(b"up")
        began = time.monotonic()
        assert (await one.stop()).status == 202
        result = await one.result()
        assert (result.exit_code, result.signal) == (143, signal.SIGTERM)
        assert time.monotonic() - began < 2


async def test_the_exit_code_of_a_stopped_job_is_its_own(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        await one.stop()
        result = await one.result()
        assert (result.exit_code, result.signal) == (5, None)
        assert await one.output() == b"up\nbye\n"


async def test_a_program_may_save_its_work_after_its_shell_has_died(fork_socket: Path, place: Path) -> None:
    """`sh -c "python train.py; echo done"`: SIGTERM ends the shell at once, and the program wants its grace."""
    save = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    async with runner(fork_socket, place) as one:
        await one.start(f'sh -c "{save}"; echo done')
        await one.printed(b"up")
        await one.stop(grace_s=15)
        result = await one.result()
        assert result.exit_code == 143
        assert await one.output() == b"up\nsaved\n"


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        began = time.monotonic()
        await one.stop(grace_s=0.5)
        result = await one.result()
        assert (result.exit_code, result.signal, result.oom) == (137, signal.SIGKILL, False)
        assert 0.4 < time.monotonic() - began < 5
        assert not left_of(one)


async def test_a_shorter_grace_overtakes_and_a_longer_one_does_not(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        for grace_s in (60, 0.2, 60):
            assert (await one.stop(grace_s)).status == 202
        began = time.monotonic()
        assert (await one.result()).signal == signal.SIGKILL
        assert time.monotonic() - began < 5


async def test_an_abort_does_not_ask(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done")
        await one.printed(b"up")
        await one.stop(grace_s=0)
        assert (await one.result()).signal == signal.SIGKILL
        assert await one.output() == b"up\n"


async def test_a_suspended_job_hears_the_stop(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap 'exit 4' TERM; echo up; kill -STOP $$; while :; do sleep 0.05; done")
        await one.printed(b"up")
        await one.stop()
        assert (await one.result()).exit_code == 4


DAEMON = """python3 - <<'END'
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.environ.clear()
        os.execve('/bin/sleep', ['sleep', '60'], {} if %r else {'STOKER_JOB_ID': %r})
    os._exit(0)
os.wait()
END"""


@pytest.mark.parametrize("anonymous", [False, True])
async def test_what_daemonized_does_not_outlive_the_job(fork_socket: Path, place: Path, anonymous: bool) -> None:
    """Double fork, own session, nothing open; with its environment or without it."""
    async with runner(fork_socket, place) as one:
        await one.start(
            DAEMON % (anonymous, str(one.job_id)),
            "nohup sleep 60 & setsid sleep 60 & echo up; read x < fifo",
            setup=["mkfifo fifo"],
        )
        await one.printed(b"up")
        await until(lambda: len(sleeping(one)) == 3)
        daemons = sleeping(one)
        (place / "work" / "fifo").write_text("go\n")
        assert (await one.result()).exit_code == 0
        assert [pid for pid in daemons if proc.alive(pid)] == []
        assert proc.descendants([one.pid]) == set()


def sleeping(running: Running) -> set[int]:
    """Those below the runner that are a `sleep`."""
    found = set()
    for pid in proc.descendants([running.pid]):
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                found.add(pid)
    return found


async def test_a_background_process_that_holds_the_output_does_not_hold_the_end(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        began = time.monotonic()
        assert (await one.runs("sleep 60 & echo done")).exit_code == 0
        assert time.monotonic() - began < 5
        assert await one.output() == b"done\n"


async def test_the_last_lines_through_a_tee_are_kept(fork_socket: Path, place: Path) -> None:
    """The shell ends before the `tee` that it writes to; the tee gets a moment."""
    async with runner(fork_socket, place) as one:
        await one.runs("exec > >(tee copy); seq 1 20000", shell="/bin/bash")
        wanted = b"".join(b"%d\n" % n for n in range(1, 20001))
        assert await one.output() == wanted
        assert (place / "work" / "copy").read_bytes() == wanted


async def test_a_job_that_closes_its_output_runs_on(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("echo x; exec >&- 2>&-; sleep 0.2; exit 9")
        assert result.exit_code == 9
        assert await one.output() == b"x\n"


async def test_nothing_of_the_agent_leaks_into_the_environment(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.runs(
            "env",
            env={"MINE": "a b", "STOKER_JOB_ID": "forged", "PATH": "/usr/bin:/bin"},
            nodes_num=2,
            gpus_per_node=4,
            gpus_num=8,
        )
        seen = dict(line.split("=", 1) for line in (await one.output()).decode().splitlines() if "=" in line)
        assert seen["MINE"] == "a b"
        assert seen["PATH"] == "/usr/bin:/bin"
        assert seen["HOME"] == str(place / "work")
        assert seen[JOB_VARIABLE] == str(one.job_id)
        assert (seen["STOKER_GPUS_NUM"], seen["STOKER_NODES_NUM"], seen["STOKER_PROJECT"]) == ("8", "2", "main")
        assert seen["USER"]
        ours = {"PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTEST_CURRENT_TEST", "STOKER_HOME"}
        assert not ours & seen.keys()


async def test_a_job_inherits_no_file_and_an_ordinary_mask_and_signals(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        look = "grep SigIgn /proc/self/status; readlink /proc/self/fd/0; cat /proc/self/oom_score_adj"
        await one.runs(f"ls /proc/self/fd; umask; {look}")
        lines = (await one.output()).decode().split()
        # The fourth is the directory that `ls` reads.
        assert lines[:4] == ["0", "1", "2", "3"]
        ignored = int(lines.pop(6), 16)
        # 32 and 33 belong to the C library: whoever started us decides about them, and nobody can ask to change it.
        assert ignored & ~(3 << 31) == 0
        assert lines[4:] == ["0022", "SigIgn:", "/dev/null", "300"]


async def test_a_working_directory_may_be_below_or_absolute(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        (place / "work" / "deep").mkdir()
        await one.runs("pwd", working_dir="deep")
        assert await one.output() == f"{place / 'work' / 'deep'}\n".encode()
    async with runner(fork_socket, place.with_name("other")) as two:
        await two.runs("pwd", working_dir="/usr")
        assert await two.output() == b"/usr\n"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"shell": "/bin/no-such-shell"}, "no shell /bin/no-such-shell"),
        ({"working_dir": "nowhere"}, "working_dir nowhere"),
        ({"env": {f"V{n}": "x" * 100_000 for n in range(30)}}, "too long"),
    ],
)
async def test_what_cannot_be_started_says_why(
    fork_socket: Path, place: Path, more: dict[str, object], sentence: str
) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("true", **more)
        assert result.failure == Failure.EXECUTOR
        assert sentence in result.message


async def test_a_terminal_where_one_is_wanted(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs(
            "test -t 0 && test -t 1 && test -t 2 && echo terminal",
            "tty; echo $TERM; echo $(ps -o tty= -p $$)",
            tty=True,
        )
        assert result.exit_code == 0
        first, tty, term, controlling = (await one.output()).decode().split("\r\n")[:4]
        assert (first, term, f"/dev/{controlling}") == ("terminal", "xterm-256color", tty)


async def test_a_job_with_a_terminal_is_stopped_like_any_other(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("echo up; sleep 60", tty=True)
        await one.printed(b"up")
        await one.stop()
        assert (await one.result()).signal == signal.SIGTERM
        assert not left_of(one)


async def test_metrics_count_the_whole_tree(fork_socket: Path, place: Path) -> None:
    busy = (
        "import time; b = bytearray(64 << 20); t = time.process_time()\n"
        "while time.process_time() < t + 0.2: pass\n"
        "print('up', flush=True); time.sleep(60)"
    )
    async with runner(fork_socket, place) as one:
        await one.start(f'python3 -c "{busy}"; true')
        await one.printed(b"up")
        told = await one.ask("GET", "/metrics")
        latest = json.loads(told.body)["latest"]
        assert latest["processes"] == 2
        assert latest["cpu_s"] >= 0.2
        assert latest["memory_mb"] > 64
        await one.stop(grace_s=0)
        await one.result()
        after = json.loads((await one.ask("GET", "/metrics")).body)["latest"]
        assert (after["processes"], after["cpu_s"] >= latest["cpu_s"]) == (0, True)


async def test_what_a_killed_runner_leaves_is_found_and_killed(fork_socket: Path, place: Path) -> None:
    """kill -9 of the runner: nobody adopts its children, and the shim finds them by their environment."""
    async with runner(fork_socket, place) as one:
        await one.start("sleep 60 & setsid sleep 60 & env -i sleep 60 & echo up; wait")
        await one.printed(b"up")
        await until(lambda: len(proc.descendants([one.pid])) == 4)
        # `env` knows the job too, until it becomes the program that does not.
        await until(lambda: len(left_of(one)) == 3)
        tree = proc.descendants([one.pid])
        one.kill()
        await until(lambda: not one.alive())
        assert len(left_of(one)) == 3
        assert await asyncio.to_thread(kill_leftovers, one.job_id) == 4
        await until(lambda: not any(proc.alive(pid) for pid in tree))
        assert await asyncio.to_thread(kill_leftovers, one.job_id) == 0
