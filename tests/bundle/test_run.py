"""Agents that run from a bundle, and jobs that notice nothing of it."""

import asyncio
import base64
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.bundle import tree
from stoker.bundle.place import Bundle
from stoker.runner.program import module_command
from stoker.wire.frame import decode
from tests.agents.shim_stage import Stage, stage, until
from tests.machine import as_root
from tests.worker.fake import serving

HARMLESS = ("/usr/lib/locale/", "/lib/locale/", "gconv-modules.cache")
"""Data of the host that any C library reads."""
LOOK = """
import sys
sys.path += [sys.prefix + "/packages", sys.prefix + "/agents"]
import ssl, asyncio, lzma, ctypes, zoneinfo, json
import stoker.shim.main, stoker.runner.fork, stoker.runner.main, stoker.runner.gate, stoker.worker.main
print(*sorted({line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/" in line}), sep="\\n")
print(*sorted(getattr(module, "__file__", None) or "" for module in sys.modules.values()), sep="\\n")
"""


def loads(bundle: Bundle, root: Path) -> set[str]:
    """Which files a process has opened that has imported all agents."""
    command = Bundle.command(root, "stoker.shim")
    at = command.index(str(root / tree.START))
    done = subprocess.run([*command[:at], "-c", LOOK], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {line for line in done.stdout.splitlines() if line and not any(part in line for part in HARMLESS)}


def test_everything_is_loaded_from_the_tree_wherever_it_lies(bundle: Bundle, tmp_path: Path) -> None:
    """It was built at one place, is unpacked at another, and mounted at a third."""
    moved = tmp_path / "some where else"
    shutil.copytree(bundle.root, moved)
    for root in (bundle.root, moved):
        files = loads(bundle, root)
        assert len(files) > 300
        assert {name for name in files if not name.startswith((str(root) + "/", "frozen"))} == set()


def test_nothing_is_written_to_the_tree(bundle: Bundle, tmp_path: Path) -> None:
    """It is mounted for reading only, and every container has the same."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle.root, copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    loads(bundle, copy)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_anybody_may_read_it(bundle: Bundle) -> None:
    for path in bundle.root.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (
            0o755 if path.is_dir() or path in (bundle.root / tree.LOADER, bundle.root / tree.PYTHON) else 0o644
        )


def test_variables_for_another_python_or_other_libraries_change_nothing(bundle: Bundle, tmp_path: Path) -> None:
    """As an image with conda or CUDA has them."""
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    environ = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path), "LD_LIBRARY_PATH": "/usr/lib/x86_64-linux-gnu"}
    command = [*Bundle.command(bundle.root, "stoker.shim"), "--help"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_outside_of_a_bundle_modules_are_started_as_usual() -> None:
    assert module_command("stoker.runner.fork") == [sys.executable, "-m", "stoker.runner.fork"]


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """Of a shim that a host without anything starts: nothing to find programs by."""
    yield {"PATH": "", "HOME": "/nonexistent"}


async def output(shim: Stage, *commands: str, **more: object) -> list[str]:
    order = shim.order()
    job = shim.job(order["id"], *commands, start=True, **more)
    task = (await shim.ask("POST", "/tasks", json=order | {"job": job})).task
    assert task.state == "running", task
    ended = await shim.reaches(task.id, lambda one: one.result)
    assert ended.result is not None and ended.result.exit_code == 0, ended
    told = await shim.ask("GET", f"/tasks/{task.id}/log?offset=0")
    await shim.terminate(task.id)
    return b"".join(frame.data for frame in decode(told.body)).decode().splitlines()


async def test_a_shim_from_a_bundle_runs_a_task_from_its_order_to_its_log(
    bundle: Bundle, shared_directory: Path, environ: dict[str, str]
) -> None:
    """On a host without Python; all that it starts is of the bundle, and what the job sees is of the host."""
    command = Bundle.command(bundle.root, "stoker.shim")
    async with stage(shared_directory, command=command, environ=environ) as shim:
        fork_server = await shim.fork_server_ready()
        assert os.readlink(f"/proc/{fork_server}/exe") == str(bundle.root / tree.LOADER)
        health = (await shim.ask("GET", "/healthz")).json
        assert health["version"] == bundle.version
        lines = await output(shim, "echo hello", "env", "cat /proc/self/maps /proc/$$/maps")
        assert lines[0] == "hello"
        assert not [line for line in lines if str(bundle.root) in line], "neither variables nor libraries of ours"
        names = {line.partition("=")[0] for line in lines if "=" in line and " " not in line.partition("=")[0]}
        assert not names & {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "LC_CTYPE", "PYTHONUTF8"}
        assert any("/libc" in line for line in lines), "the host's own"


async def test_a_program_without_a_shell_is_what_its_arguments_say(
    bundle: Bundle, shared_directory: Path, environ: dict[str, str]
) -> None:
    """Nothing is split, replaced or found by a pattern."""
    async with stage(shared_directory, command=Bundle.command(bundle.root, "stoker.shim"), environ=environ) as shim:
        argv = ["printf", "<%s>\n", "a b", "$HOME", "*", ""]
        assert await output(shim, argv=argv) == ["<a b>", "<$HOME>", "<*>", "<>"]
        assert await output(shim, argv=["tty"], tty=True) != ["not a tty"]


@as_root
async def test_a_task_of_a_project_cannot_change_the_bundle(
    bundle: Bundle, shared_directory: Path, environ: dict[str, str]
) -> None:
    async with stage(shared_directory, command=Bundle.command(bundle.root, "stoker.shim"), environ=environ) as shim:
        start = bundle.root / tree.START
        tries = [f"echo x >> {start}", f"rm -f {start}", f"touch {bundle.root}/new"]
        lines = await output(shim, *(f"{{ {one}; }} 2>/dev/null || echo no" for one in tries))
        assert lines == ["no"] * 3


async def test_a_worker_from_a_bundle_runs_tasks_that_notice_nothing(bundle: Bundle, tmp_path: Path) -> None:
    """On a host with no locale, for which Python sets a variable that its children would inherit."""
    options = ["--project", "main", "--dir", str(tmp_path / "worker"), "--cpus", "2", "--memory", "1GB"]
    async with serving() as server:
        command = [*Bundle.command(bundle.root, "stoker.worker"), "--url", server.url, *options]
        environ = {"STOKER_TOKEN": "a-token", "PATH": "", "MINE": "1"}
        worker = await asyncio.create_subprocess_exec(*command, env=environ, cwd="/")
        try:
            key = server.add("/usr/bin/env && /bin/cat /proc/self/maps")
            told = (await until(lambda: server.ended.get(key))).stdout
            assert told is not None
            lines = base64.b64decode(told).decode().splitlines()
            assert "MINE=1" in lines
            assert not [line for line in lines if str(bundle.root) in line]
            assert not [line for line in lines if line.startswith(("LC_", "LD_", "PYTHON"))]
            assert server.workers[0].version == bundle.version
        finally:
            worker.terminate()
            await worker.wait()
