"""The worker's directory: output files that are used again and again, results, and what a worker that died left there.

Making and removing files costs a good part of what a short task costs, so a pair of output files serves one task after
the other. It may do so only when nobody has it open any more: a process that fled from its task must not write into
the output of another one. The kernel knows, and tells by refusing a lease on the file.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.runner import proc
from stoker.runner.reaper import kill_each
from stoker.worker.limits import INLINE_BYTES, MOST_SPARE_FILES

RESULT_VARIABLE: Final = "STOKER_RESULT"
_LOCK: Final = "lock"


class Pair:
    """Two files for what a task prints. We hold them open, to read and to know who else does."""

    def __init__(self, stdout: str, stderr: str) -> None:
        self.paths = (stdout, stderr)
        self.files: list[int] = []
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        try:
            self.files += (os.open(path, flags, 0o600) for path in self.paths)
        except OSError:
            self.remove()
            raise
        self.actions = (
            (os.POSIX_SPAWN_OPEN, 1, stdout, os.O_WRONLY | os.O_APPEND, 0),
            (os.POSIX_SPAWN_OPEN, 2, stderr, os.O_WRONLY | os.O_APPEND, 0),
        )

    def there(self) -> bool:
        """Nobody has removed or replaced them."""
        return all(os.path.exists(path) for path in self.paths)

    def begin(self) -> list[bytes]:
        """The first bytes of both: one more than travels inline, where there is more."""
        return [os.pread(file, INLINE_BYTES + 1, 0) for file in self.files]

    def size(self, stream: int) -> int:
        return os.fstat(self.files[stream]).st_size

    def read(self, stream: int, offset: int, most: int) -> bytes:
        return os.pread(self.files[stream], most, offset)

    def empty(self, stream: int) -> None:
        os.ftruncate(self.files[stream], 0)

    def unused(self) -> bool:
        """Nobody but us has them open."""
        try:
            for file in self.files:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            # Somebody has, or this file system cannot tell.
            return False
        return True

    def remove(self) -> None:
        while self.files:
            os.close(self.files.pop())
        for path in self.paths:
            with suppress(OSError):
                os.unlink(path)


class Place:
    """A directory of this process below the worker's; it is ours as long as we hold its lock."""

    def __init__(self, base: Path) -> None:
        self.base = base
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        fresh = base / f".{name}"
        fresh.mkdir(mode=0o700)
        self._lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only under its name it is looked at by others, and then it is locked.
        self.own = fresh.rename(base / name)
        self._text = str(self.own)
        self._spare: list[Pair] = []
        self._number = 0

    def take(self) -> Pair:
        """Two empty files."""
        if self._spare:
            return self._spare.pop()
        self._number += 1
        paths = f"{self._text}/{self._number}.out", f"{self._text}/{self._number}.err"
        try:
            return Pair(*paths)
        except FileNotFoundError:
            # Somebody tidied up too well.
            self.own.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Pair(*paths)

    def doubt(self) -> None:
        """Files of ours were removed: those that are kept for later may be, too."""
        while self._spare:
            self._spare.pop().remove()

    def give_back(self, pair: Pair, *, empty: bool) -> None:
        if len(self._spare) < MOST_SPARE_FILES and pair.unused():
            try:
                if not empty:
                    for stream in (0, 1):
                        pair.empty(stream)
            except OSError:
                pair.remove()
            else:
                self._spare.append(pair)
        else:
            pair.remove()

    def result(self, task: str, attempt: int) -> str:
        """Where an attempt may write its result."""
        return f"{self._text}/{task}-{attempt}.result"

    @property
    def outputs(self) -> Path:
        """Of tasks that keep them on their worker's host, and do not say where."""
        return self.base / "output"

    def clear_dead(self) -> int:
        """Kills what dead workers left running here, where their keeper died with them, and removes their files."""
        cleared = 0
        for directory in _dead(self.base):
            mark = f"{RESULT_VARIABLE}={directory}/".encode()
            kill_each(pid for pid in proc.pids() if b"\0" + mark in b"\0" + proc.environment(pid))
            shutil.rmtree(directory, ignore_errors=True)
            cleared += 1
        return cleared

    def close(self) -> None:
        for pair in self._spare:
            pair.remove()
        shutil.rmtree(self.own, ignore_errors=True)
        os.close(self._lock)


def _dead(base: Path) -> Iterator[Path]:
    for lock in base.glob(f"[0-9]*/{_LOCK}"):
        try:
            file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # Removed meanwhile, or somebody else's.
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield lock.parent
        except BlockingIOError:
            continue
        finally:
            os.close(file)
