"""A root directory with hardly anything in it, and processes that live in it as in a container: with a tree of files, a
list of processes and a first process of their own. Nothing of it stays."""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.bundle.place import Bundle
from tests.agents.running import PATIENCE_S, Running, prepare, talk, until
from tests.machine import unavailable

AT = Path("/stoker")
TASK = Path("/task")


@dataclass(frozen=True)
class Cell:
    root: Path
    bundle: Bundle

    @property
    def task(self) -> Path:
        return self.root / "task"

    @asynccontextmanager
    async def runner(self, user: int = 0, **more: Any) -> AsyncIterator[tuple[Running, "subprocess.Popen[bytes]"]]:
        """As the first process; both ends of the block find nobody in there."""
        assignment = prepare(self.task, **more)
        inside = assignment | {"socket": str(TASK / "runner.sock")}
        (self.task / "runner.json").write_text(json.dumps(inside))
        command = [*Bundle.command(AT, "stoker.runner"), "--directory", str(TASK)]
        for path in (self.task, *self.task.rglob("*")):
            os.chown(path, user, user)
        first = self.start(command, user)
        try:
            await until(lambda: (self.task / "runner.sock").exists() or first.poll() is not None)
            assert first.poll() is None, f"it ended with {first.returncode}"
            async with talk(self.task, assignment, first.pid) as running:
                yield running, first
        finally:
            first.kill()
            first.wait(PATIENCE_S)

    def start(self, command: Sequence[str], user: int = 0, **more: Any) -> "subprocess.Popen[bytes]":
        """As the first process. It dies with the `unshare` that we see, and all others in there with it."""
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"]
        enter = 'mount -t proc proc "$1/proc" && root=$1 && shift && exec chroot --userspec="$USERSPEC" "$root" "$@"'
        environ = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "USERSPEC": f"{user}:{user}"}
        return subprocess.Popen([*apart, "sh", "-c", enter, "sh", str(self.root), *command], env=environ, **more)


@contextmanager
def cell(root: Path, bundle: Bundle) -> Iterator[Cell]:
    """With the bundle, a directory for a task, /proc and /dev/null, and nothing else."""
    for name in ("stoker", "task", "proc", "dev", "dev/pts"):
        (root / name).mkdir(parents=True)
    mounts = [
        ["--bind", str(bundle.root), str(root / "stoker")],
        ["-o", "remount,bind,ro", str(root / "stoker")],
        ["--bind", "/dev/pts", str(root / "dev/pts")],
    ]
    try:
        for words in mounts:
            done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
            if done.returncode:
                unavailable(f"this root may not mount: {done.stderr.strip()}")
        for name, minor in (("null", 3), ("zero", 5), ("urandom", 9)):
            os.mknod(root / "dev" / name, 0o020666, os.makedev(1, minor))
        os.mknod(root / "dev/ptmx", 0o020666, os.makedev(5, 2))
        os.mknod(root / "dev/tty", 0o020666, os.makedev(5, 0))
        yield Cell(root, bundle)
    finally:
        for name in ("dev/pts", "stoker"):
            subprocess.run(["umount", "--lazy", str(root / name)], capture_output=True, check=False)
        shutil.rmtree(root, ignore_errors=True)
