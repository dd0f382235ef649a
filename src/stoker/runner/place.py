"""The directory of a task: which file is where, and how it gets there whole."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.runner.segment import sync_directory


@dataclass(frozen=True)
class Place:
    """The shim makes it and the runner fills it."""

    directory: Path

    @property
    def assignment(self) -> Path:
        return self.directory / "runner.json"

    @property
    def identity(self) -> Path:
        return self.directory / "runner.pid"

    @property
    def order(self) -> Path:
        return self.directory / "order.json"

    @property
    def result(self) -> Path:
        return self.directory / "result.json"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def own(self) -> Path:
        return self.directory / "own"

    @property
    def reserve(self) -> Path:
        """Holds space for the end of a job that has filled the disk; then the result is written to it."""
        return fresh(self.result)

    @property
    def deadline(self) -> Path:
        """What the job is told about its end. This and the host file are all that it reads here."""
        return self.directory / "deadline"

    @property
    def hosts(self) -> Path:
        """Its nodes, as MPI wants to read them."""
        return self.directory / "hostfile"

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def code(self) -> Path:
        return self.directory / "code.tar"


def hold_space(path: Path, size_bytes: int) -> None:
    """Takes space on the disk that `free_space` gives back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def free_space(path: Path) -> None:
    """Not unlinked: to make a file costs more than to fill one, and this one is wanted next."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)


def fresh(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".new")


def write_file(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Replaces a file by a whole one that only its owner reads, unless `mode` says otherwise.

    On disk before this returns, if `durable`.
    """
    descriptor = os.open(fresh(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode & 0o700)
    try:
        if mode & 0o077:
            # Whatever our umask is.
            os.fchmod(descriptor, mode)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh(path), path)
    if durable:
        sync_directory(path.parent)
