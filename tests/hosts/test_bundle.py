"""A runner from a bundle as the first process, where there is nothing else, or another C library."""

import asyncio
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.bundle import tree
from stoker.bundle.place import Bundle
from stoker.runner import proc
from stoker.wire.runner import Failure
from tests.agents.running import PATIENCE_S, until
from tests.hosts.cell import AT, TASK, Cell, cell
from tests.hosts.packages import need
from tests.machine import as_root

pytestmark = as_root
MUSL = f"ld-musl-{platform.machine()}.so.1"


@pytest.fixture
def scratch(bundle: Bundle, shared_directory: Path) -> Iterator[Cell]:
    with cell(shared_directory / "scratch", bundle) as made:
        yield made


@pytest.fixture
def busybox(scratch: Cell) -> str:
    """One program of a user's image; not a shell, as far as anybody can see."""
    shutil.copy(need("busybox", "busybox-static"), scratch.root / "busybox")
    return "/busybox"


@pytest.fixture
def musl(scratch: Cell, busybox: str, tmp_path: Path) -> Cell:
    """As in Alpine: a shell, and a program that needs musl's loader."""
    need("gcc", "gcc")
    need("musl-gcc", "musl-tools")
    (scratch.root / "bin").mkdir()
    for name in ("sh", "cat", "sleep"):
        (scratch.root / "bin" / name).symlink_to("/busybox")
    (tmp_path / "hello.c").write_text(
        "#include <stdio.h>\n#include <stdlib.h>\nint main(void) {\n"
        'printf("hello %s\\n", getenv("WHO")); fflush(stdout); return system("/bin/cat /proc/$PPID/maps"); }\n'
    )
    program = scratch.root / "bin" / "hello"
    subprocess.run(["musl-gcc", "-o", program, tmp_path / "hello.c"], check=True)
    (scratch.root / "lib").mkdir()
    shutil.copy(f"/lib/{MUSL}", scratch.root / "lib")
    return scratch


async def test_in_a_place_with_nothing_it_runs_a_program_without_a_shell(scratch: Cell, busybox: str) -> None:
    async with scratch.runner() as (runner, _):
        result = await runner.runs(argv=[busybox, "echo", "hello", "$HOME"])
        assert (result.exit_code, result.failure) == (0, None), result
        assert await runner.output() == b"hello $HOME\n"


async def test_a_user_of_the_image_needs_no_rights(scratch: Cell, busybox: str) -> None:
    """`user: 1000`, who is in no list of users, and the bundle is root's."""
    async with scratch.runner(user=1000) as (runner, _):
        result = await runner.runs(argv=[busybox, "id"])
        assert result.exit_code == 0, result
        assert (await runner.output()).startswith(b"uid=1000 gid=1000")


async def test_commands_where_there_is_no_shell_are_told_from_commands_that_fail(scratch: Cell) -> None:
    async with scratch.runner() as (runner, _):
        result = await runner.runs("echo hello")
        assert result.failure is Failure.EXECUTOR
        assert "there is no shell /bin/sh here" in result.message
        assert "a program with its arguments" in result.message


async def test_a_program_that_is_not_there_is_told(scratch: Cell) -> None:
    async with scratch.runner() as (runner, _):
        result = await runner.runs(argv=["/no/such", "x"])
        assert result.failure is Failure.EXECUTOR
        assert "there is no program /no/such here" in result.message


async def test_a_program_has_a_terminal_without_a_shell(scratch: Cell, busybox: str) -> None:
    async with scratch.runner() as (runner, _):
        result = await runner.runs(
            argv=[busybox, "sh", "-c", "test -t 0 && test -t 1 && echo yes > /dev/tty"], tty=True
        )
        assert result.exit_code == 0, result
        assert b"yes" in await runner.output()


async def test_its_environment_and_libraries_are_its_own(musl: Cell) -> None:
    """The program is linked with musl, our runner with the C library of the machine that made the bundle."""
    async with musl.runner() as (runner, _):
        result = await runner.runs("echo $PATH", "/bin/hello", env={"WHO": "musl"})
        assert result.exit_code == 0, result
        told = (await runner.output()).decode()
        assert "hello musl\n" in told
        assert f"/lib/{MUSL}" in told
        assert str(AT) not in told


async def test_a_job_that_came_along_runs_without_a_word(musl: Cell) -> None:
    """The runner is given its job in its file; nobody has to knock."""
    async with musl.runner() as (runner, _):
        pass
    order = runner.order("echo alone > done", start=True)
    async with musl.runner(id=order["job_id"], job=order):
        await until(lambda: (musl.task / "work" / "done").exists())
        await until(lambda: (musl.task / "result.json").exists())


async def test_orphans_are_reaped_by_the_first_process(musl: Cell) -> None:
    """Nobody else would, and the container would fill with the dead."""
    async with musl.runner() as (runner, _):
        await runner.start("for i in 1 2 3 4 5; do (sleep 0.01 & ) ; done", "echo left", "exec sleep 1000")
        await runner.printed(b"left")
        inside = await asyncio.to_thread(ready, runner.pid)
        await until(lambda: len(children(inside)) == 1)
        assert dead(inside) == []


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def dead(pid: int) -> list[int]:
    return [one for one in children(pid) if (told := proc.stat(one)) is not None and told.state == "Z"]


def ready(unshare: int) -> int:
    """The first process in there, seen from here."""
    (first,) = children(unshare)
    return first


async def test_sigterm_ends_the_first_process_and_its_job(musl: Cell) -> None:
    """`docker stop`. The kernel gives a first process only signals that it has a handler for."""
    async with musl.runner() as (runner, process):
        await runner.start("trap 'echo saved; exit 3' TERM", "echo began", "while true; do sleep 0.01; done")
        await runner.printed(b"began")
        os.kill(ready(process.pid), signal.SIGTERM)
        await asyncio.to_thread(process.wait, PATIENCE_S)
        result = (musl.task / "result.json").read_text()
        assert '"exit_code":3' in result, result


async def test_sigterm_before_it_listens_is_not_lost(musl: Cell) -> None:
    """It was stopped in the moment in which it was started."""
    async with musl.runner() as (first, _):
        pass
    command = [*Bundle.command(AT, "stoker.runner"), "--directory", str(TASK)]
    process = musl.start(command)
    try:
        await until(lambda: blocks_sigterm(process.pid))
        os.kill(ready(process.pid), signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert first.job_id


def blocks_sigterm(unshare: int) -> bool:
    for pid in children(unshare):
        if not os.readlink(f"/proc/{pid}/exe").endswith(tree.LOADER):
            # What makes its place for it blocks signals as well.
            continue
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigBlk:"):
                return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))
    return False


def test_without_an_order_it_says_so_and_ends(scratch: Cell) -> None:
    command = [*Bundle.command(AT, "stoker.runner"), "--directory", "/task"]
    process = scratch.start(command, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert said.decode().startswith("No runner can begin in /task: ")


def test_a_shim_serves_where_there_is_nothing(scratch: Cell) -> None:
    """A host that has nothing but a kernel."""
    process = scratch.start([*Bundle.command(AT, "stoker.shim"), "--home", "/task"])
    try:
        asyncio.run(until(lambda: (scratch.task / "address").exists() and (scratch.task / "fork.sock").exists()))
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_the_driver_of_a_gpu_is_found_where_the_host_says(scratch: Cell, tmp_path: Path) -> None:
    """It is the one library that agents take from the host: it belongs to the host's kernel. Its own needs are ours."""
    need("gcc", "gcc")
    (tmp_path / "driver.c").write_text("#include <string.h>\nint answer(char *s) { return 40 + strlen(s); }\n")
    place = scratch.root / "opt" / "vendor"
    place.mkdir(parents=True)
    (scratch.root / "etc").mkdir()
    name = "libnvidia-ml.so.1"
    shared = ["-shared", "-fPIC", f"-Wl,-soname,{name}"]
    subprocess.run(["gcc", *shared, "-o", place / name, tmp_path / "driver.c"], check=True)
    (scratch.root / "etc" / "ld.so.conf").write_text("/opt/vendor\n")
    subprocess.run(["/sbin/ldconfig", "-r", str(scratch.root)], check=True)
    command = Bundle.command(AT, "")
    load = f"import ctypes; print(ctypes.CDLL('{name}').answer(b'ab'))"
    process = scratch.start([*command[: command.index(str(AT / tree.START))], "-c", load], stdout=subprocess.PIPE)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert told == b"42\n"
