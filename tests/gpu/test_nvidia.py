"""One real GPU: found, given to one job at a time, hidden from the others, and measured.

`make gpu` runs this on a machine that has one, and fails on one that has none.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from tests.cli.conftest import ROOT, Real, command

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def gpu() -> str:
    """The id by which its driver knows the first one."""
    pynvml.nvmlInit()
    return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))


@pytest.fixture(scope="module")
def real(shared_directory: Path) -> Iterator[Real]:
    server = Real(shared_directory / "gpu")
    server.up()
    yield server
    server.clear()


@pytest.fixture(scope="module")
def burn(shared_directory: Path) -> str:
    """The command of a program that keeps a GPU busy; jobs run as another user, who may not read this checkout."""
    program = shared_directory / "burn.py"
    program.write_text((ROOT / "tests/gpu/burn.py").read_text())
    program.chmod(0o644)
    return f"/usr/bin/python3 {program}" if os.path.exists("/usr/bin/python3") else f"{sys.executable} {program}"


def told(real: Real, *args: str) -> Any:
    done = real(*args, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return seen


def test_a_host_says_which_gpus_it_has(real: Real, gpu: str) -> None:
    name = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
    (host,) = told(real, "instance", "list")
    assert name in json.dumps(host)


def test_a_job_sees_the_gpu_that_it_was_given(real: Real, gpu: str, burn: str) -> None:
    asked = real("run", "--name", "asks", "--gpu", "1", f"echo $CUDA_VISIBLE_DEVICES $STOKER_GPUS_NUM; {burn} 0.1")
    assert asked.stdout.decode().split() == [gpu, "1", "gpus", "1", "burnt"], asked.stderr.decode()


def test_a_gpu_has_one_job_at_a_time_and_is_released_once(real: Real, burn: str) -> None:
    count = pynvml.nvmlDeviceGetCount()
    assert real("run", "-d", "--name", "first", "--gpu", str(count), f"{burn} 600").returncode == 0
    until(lambda: b"gpus" in real("logs", "first").stdout)
    assert real("run", "-d", "--name", "second", "--gpu", "1", f"{burn} 0.1").returncode == 0
    until(lambda: b"GPU" in real("why", "second").stdout)
    assert told(real, "get", "second")["status"] == "SUBMITTED"
    assert real("stop", "first").returncode == 0
    assert real("wait", "second", "--timeout", "60s").returncode == 0
    assert b"burnt" in real("logs", "second").stdout


def test_a_job_that_leaves_its_gpu_idle_is_ended_by_its_policy_and_a_busy_one_is_not(
    real: Real, burn: str, tmp_path: Path
) -> None:
    for name, command_ in (("busy", f"{burn} 25"), ("idle", "sleep 600")):
        (tmp_path / f"{name}.yaml").write_text(
            f"type: task\nname: {name}\ncommands: [{json.dumps(command_)}]\nresources: {{gpu: 1}}\n"
            "utilization_policy: {min_gpu_utilization: 20, time_window: 10s}\n"
        )
        assert real("apply", "-y", "-d", "-f", str(tmp_path / f"{name}.yaml")).returncode == 0
        real("wait", name, "--timeout", "100s")
    assert told(real, "get", "busy")["status"] == "DONE"
    ended = told(real, "get", "idle")
    assert ended["status"] == "TERMINATED" and "UTILIZATION" in json.dumps(ended)


def test_a_worker_finds_its_gpus_shares_them_out_and_measures_them(
    real: Real, gpu: str, burn: str, shared_directory: Path
) -> None:
    place = ["--dir", str(shared_directory / "gpu-worker"), "--name", "hand", "--cpus", "4"]
    started = subprocess.Popen(command("worker", *place), env=real.env, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        halves = f"echo $CUDA_VISIBLE_DEVICES; {burn} 8"
        for name in ("one", "other"):
            assert real("task", "add", "--name", name, "--gpus", "0.5", halves).returncode == 0
        assert real("task", "add", "--name", "none", "-w", 'echo "[$CUDA_VISIBLE_DEVICES]"').returncode == 0
        assert real("task", "logs", "none").stdout == b"[]\n"
        for name in ("one", "other"):
            assert real("task", "wait", name, "--timeout", "60s").returncode == 0
            assert real("task", "logs", name).stdout.decode().split()[1:] == ["gpus", "1", "burnt"]
        one, other = (told(real, "task", "get", name)["execution_info"] for name in ("one", "other"))
        # Both at once on the one that they share.
        assert max(one["time_started"], other["time_started"]) < min(one["time_terminated"], other["time_terminated"])
        assert one["gpu_usage"]["most"] > 0.2, one["gpu_usage"]
    finally:
        started.terminate()
        started.wait(timeout=30)
