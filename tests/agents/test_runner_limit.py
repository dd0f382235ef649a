"""What a runner counts by itself: how long its job may run, when it is warned, how busy it is, whom it has heard."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stoker.runner.place import write_file
from stoker.runner.utilization import Meter, period_s
from stoker.wire.runner import Failure, ProcessMetrics, RunnerState, Utilization
from tests.agents.running import Running, fork_server, runner, until

SAVES = "trap 'echo saved; read -r end why < $STOKER_DEADLINE_FILE; echo $why; exit 7' USR1"
WAITS = "while :; do sleep 0.05; done"
USR1 = {"signal": "USR1", "ahead_s": 60.0}


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-limit"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


async def set_deadline(one: Running, in_s: float | None, reason: str = "preemption", fence: int = 1) -> int:
    return (await one.ask("POST", "/deadline", json={"fence": fence, "in_s": in_s, "reason": reason})).status


async def test_a_job_is_stopped_when_its_time_is_over_though_nobody_says_so(fork_socket: Path, place: Path) -> None:
    """The server may be away: the runner counts by itself, from the order on."""
    async with runner(fork_socket, place) as one:
        began = time.monotonic()
        result = await one.runs(WAITS, max_duration_s=0.5)
        assert result.failure is Failure.MAX_DURATION
        assert (result.exit_code, result.signal) == (143, 15)
        assert "max_duration of 0.5 s" in result.message
        assert time.monotonic() - began >= 0.5


async def test_a_max_duration_that_is_changed_counts_instead_of_the_one_it_began_with(
    fork_socket: Path, place: Path
) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("echo here", WAITS, max_duration_s=3600.0)
        await one.printed(b"here\n")
        assert await set_deadline(one, 0.3, "max_duration") == 202
        assert (await one.result()).failure is Failure.MAX_DURATION
    async with runner(fork_socket, place.with_name(f"{place.name}-more")) as one:
        await one.start("echo here", "sleep 1.5", max_duration_s=1.0)
        await one.printed(b"here\n")
        assert await set_deadline(one, None, "max_duration") == 202
        assert (await one.result()).failure is None, "it was given all the time there is"


async def test_a_job_that_ends_in_time_has_no_limit_to_tell_of(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("exit 3", max_duration_s=60.0)
        assert (result.exit_code, result.failure) == (3, None)


async def test_a_job_that_was_stopped_before_its_time_was_not_ended_by_it(fork_socket: Path, place: Path) -> None:
    """The grace is longer than what is left: whoever was first is the reason."""
    async with runner(fork_socket, place) as one:
        await one.start(f"trap '' TERM; echo up; {WAITS}", max_duration_s=1.0)
        await one.printed(b"up")
        await one.stop(2.0)
        result = await one.result()
        assert (result.failure, result.signal) == (None, 9)


async def test_a_program_is_warned_before_its_time_is_over_and_told_when_and_why(
    fork_socket: Path, place: Path
) -> None:
    async with runner(fork_socket, place) as one:
        began = time.time()
        tells = "echo $STOKER_MAX_DURATION; echo $STOKER_DEADLINE; cat $STOKER_DEADLINE_FILE"
        await one.start(tells, SAVES, WAITS, max_duration_s=100.0, warning={"signal": "USR1", "ahead_s": 99.5})
        result = await one.result()
        assert (result.exit_code, result.failure) == (7, None)
        limit, variable, file, *rest = (await one.output()).decode().splitlines()
        assert (limit, rest) == ("100", ["saved", "max_duration"])
        assert began + 99 <= int(variable) <= time.time() + 101
        end, why = file.split()
        assert abs(int(end) - int(variable)) <= 1
        assert why == "max_duration"


async def test_a_warning_longer_than_what_is_left_comes_as_soon_as_the_program_listens(
    fork_socket: Path, place: Path
) -> None:
    """At its start nobody has a handler yet, and whoever has none would die."""
    async with runner(fork_socket, place) as one:
        result = await one.runs("sleep 1.2", SAVES, WAITS, max_duration_s=30.0, warning=USR1)
        assert (result.exit_code, result.failure) == (7, None)


async def test_only_those_who_listen_hear_the_warning(fork_socket: Path, place: Path) -> None:
    """Not the shell that waits for the program, and not what reads its output: without them it could not save."""
    program = (
        "import signal,sys; signal.signal(signal.SIGUSR1, lambda *_: (print('saved'), sys.exit(7))); signal.pause()"
    )
    async with runner(fork_socket, place) as one:
        await one.start("set -o pipefail", f'python3 -c "{program}" | cat', shell="/bin/bash", warning=USR1)
        await one.reaches(RunnerState.RUN)
        assert await set_deadline(one, 30.0) == 202
        result = await one.result()
        assert (result.exit_code, await one.output()) == (7, b"saved\n")


async def test_a_deadline_that_is_told_appears_in_the_file_and_is_withdrawn_again(
    fork_socket: Path, place: Path
) -> None:
    async with runner(fork_socket, place) as one:
        file = place / "deadline"
        await one.start("echo $STOKER_DEADLINE_FILE:$STOKER_DEADLINE:$STOKER_MAX_DURATION", WAITS)
        await one.printed(f"{file}::\n".encode())
        assert not file.exists()
        assert await set_deadline(one, 100.0, "drain") == 202
        await until(file.exists)
        assert file.stat().st_mode & 0o777 == 0o644
        end, why = file.read_text().split()
        assert (why, abs(int(end) - time.time() - 100) < 5) == ("drain", True)
        assert await set_deadline(one, 50.0, "preemption") == 202
        await until(lambda: file.read_text().endswith("preemption\n"))
        await set_deadline(one, None, "preemption")
        await until(lambda: file.read_text().endswith("drain\n"))
        await set_deadline(one, None, "drain")
        await until(lambda: not file.exists())
        assert (await one.health()).state == RunnerState.RUN


async def test_the_earlier_of_two_ends_is_the_one_that_counts(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start(SAVES, "echo up", WAITS, max_duration_s=1000.0, warning=USR1)
        await one.printed(b"up")
        assert (place / "deadline").read_text().endswith("max_duration\n")
        await set_deadline(one, 20.0)
        await one.result()
        assert await one.output() == b"up\nsaved\npreemption\n"


async def test_a_warning_is_given_once_however_often_it_is_told(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("trap 'echo heard' USR1", "echo up", WAITS, warning=USR1)
        await one.printed(b"up")
        for fence in (2, 2, 3):
            assert await set_deadline(one, 30.0, fence=fence) == 202
        await one.printed(b"heard")
        assert await set_deadline(one, 30.0, fence=2) == 409
        await one.stop(0.0, fence=4)
        await one.result()
        assert (await one.output()).count(b"heard") == 1


async def test_a_deadline_needs_a_job(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        assert await set_deadline(one, 30.0) == 409


async def test_a_deadline_of_somebody_else_is_his_to_keep(fork_socket: Path, place: Path) -> None:
    """The runner warns before it and goes on after it: a drain may have been called off on the way."""
    async with runner(fork_socket, place) as one:
        await one.start("trap 'echo heard' USR1", "echo up", WAITS, warning=USR1)
        await one.printed(b"up")
        await set_deadline(one, 0.2)
        await one.printed(b"heard")
        await asyncio.sleep(0.4)
        assert (await one.health()).state == RunnerState.RUN


async def test_a_job_that_uses_too_little_is_stopped_and_told_the_numbers(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        idle = {"window_s": 3.0, "min_cpu_percent": 20.0, "cpus": 1.0}
        result = await one.runs("sleep 60", utilization=idle)
        assert result.failure is Failure.UTILIZATION
        assert "CPU was used below 20 % for" in result.message
        assert "at most 0." in result.message


async def test_a_busy_job_and_a_long_setup_are_left_alone(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        busy = {"window_s": 3.0, "min_cpu_percent": 5.0, "cpus": 1.0}
        spin = "end=$(($(date +%s) + 6)); while [ $(date +%s) -lt $end ]; do :; done"
        result = await one.runs(spin, setup=["sleep 5"], utilization=busy)
        assert (result.exit_code, result.failure) == (0, None)


def metrics(cpu_s: float = 0.0, *gpus: float) -> ProcessMetrics:
    return ProcessMetrics(at=0.0, processes=1, cpu_s=cpu_s, memory_mb=1.0, gpu_percent=gpus)


def samples(order: Utilization, *seen: ProcessMetrics, every_s: float = 60.0) -> list[str | None]:
    meter = Meter(order)
    return [meter.sample(number * every_s, one) for number, one in enumerate(seen)]


def test_each_gpu_has_to_be_used() -> None:
    """One that idles for the whole window is one too many, however busy its neighbour is."""
    order = Utilization(window_s=120.0, min_gpu_percent=10.0)
    told = samples(order, metrics(0, 90.0, 3.0), metrics(0, 95.0, 9.5), metrics(0, 80.0, 0.0))
    assert told[:2] == [None, None]
    assert told[2] is not None
    assert told[2].startswith("GPU 1 was used below 10 % for 120 s")
    assert told[2].endswith("at most 9.5 %.")


def test_one_busy_look_begins_the_window_anew() -> None:
    order = Utilization(window_s=120.0, min_gpu_percent=10.0)
    assert samples(order, *(metrics(0, level) for level in (0.0, 0.0, 10.0, 0.0, 0.0))) == [None] * 5


def test_what_nobody_can_measure_is_not_held_against_a_job() -> None:
    order = Utilization(window_s=60.0, min_gpu_percent=10.0)
    assert samples(order, metrics(0, 0.0), metrics(), metrics(0, 0.0), metrics()) == [None] * 4


def test_cpus_are_counted_between_two_looks_and_of_all_that_it_asked_for() -> None:
    order = Utilization(window_s=120.0, min_cpu_percent=25.0, cpus=4.0)
    told = samples(order, metrics(0.0), metrics(30.0), metrics(60.0))
    assert told[0] is None
    assert told[2] is not None
    assert "at most 12.5 %" in told[2]
    assert samples(order, metrics(0.0), metrics(30.0), metrics(100.0), metrics(130.0)) == [None] * 4


@pytest.mark.parametrize(("window_s", "every_s"), [(10.0, 2.0), (60.0, 6.0), (1800.0, 30.0)])
def test_a_runner_looks_seldom(window_s: float, every_s: float) -> None:
    assert period_s(Utilization(window_s=window_s, min_cpu_percent=1.0)) == every_s


async def test_silence_is_the_reason_whatever_the_program_said_when_it_was_stopped(
    fork_socket: Path, place: Path
) -> None:
    async with runner(fork_socket, place, stop_after_s=0.5) as one:
        await one.start(f"trap 'exit 0' TERM; echo up; {WAITS}")
        await one.printed(b"up")
        await until((place / "result.json").exists)
        result = await one.result()
        assert (result.exit_code, result.failure) == (0, Failure.SILENCE)


async def test_silence_cuts_a_long_grace_short(fork_socket: Path, place: Path) -> None:
    """The server gave it an hour to stop and went away: it is gone before it may be run elsewhere."""
    async with runner(fork_socket, place, stop_after_s=0.5) as one:
        await one.start(f"trap '' TERM; echo up; {WAITS}", silence_grace_s=0.3, stop_duration_s=3600.0)
        await one.printed(b"up")
        await one.stop()
        await until((place / "result.json").exists)
        result = await one.result()
        assert (result.signal, result.failure) == (9, None)


async def test_a_word_that_the_shim_passes_on_is_as_old_as_it_says(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place, stop_after_s=1.0) as one:
        await one.start(f"echo up; {WAITS}")
        await one.printed(b"up")
        began = time.monotonic()
        while time.monotonic() < began + 2.0:
            assert (await one.ask("POST", "/heard", json={"ago_s": 0.1})).status == 202
            await asyncio.sleep(0.1)
        while not (place / "result.json").exists():
            assert time.monotonic() < began + 15
            assert (await one.ask("POST", "/heard", json={"ago_s": 5.0})).status == 202
            await asyncio.sleep(0.05)
        assert json.loads((place / "result.json").read_text())["failure"] == "silence"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/deadline", {"fence": 1, "in_s": -1, "reason": "drain"}),
        ("/deadline", {"fence": 1, "in_s": 1, "reason": "whim"}),
        ("/deadline", {"fence": 1, "reason": "drain"}),
        ("/heard", {"ago_s": -1}),
        ("/heard", {}),
    ],
)
async def test_what_is_no_order_is_refused(fork_socket: Path, place: Path, route: str, body: dict[str, Any]) -> None:
    async with runner(fork_socket, place) as one:
        await one.start(WAITS)
        assert (await one.ask("POST", route, json=body)).error == (422, "validation")


def test_a_file_for_others_is_theirs_to_read_whatever_our_umask(tmp_path: Path) -> None:
    write_file(tmp_path / "told", b"x", durable=False, mode=0o644)
    write_file(tmp_path / "ours", b"x")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("told", "ours")] == [0o644, 0o600]
