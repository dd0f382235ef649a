"""The records of tasks on disk: one file a task, a line for each of its changes, synced before anybody is told.

The last line that is whole counts. A line is appended because that costs a disk much less than another file does.
A directory without a record was never acknowledged, or its removal was under way: nothing runs for it, and it goes.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from pydantic import ValidationError

from stoker.core.errors import Unavailable
from stoker.core.shim_task import Runtime, ShimTask
from stoker.runner.identity import Identity
from stoker.runner.place import Place, write_file
from stoker.runner.segment import sync_directory
from stoker.shim.disk import explained, remove_tree
from stoker.shim.home import BOX, Home
from stoker.wire.model import Answer
from stoker.wire.shim import TaskOrder

RECORD = "task.jsonl"
RECORD_BYTES = 64 * 1024
"""A longer one is written anew, with its last line alone."""
BULK = ("work", "log", "own", BOX)
"""What may be large. A job owns the first; its runner makes the others when it has something to keep. In the last one
lies all of it, where there is a container."""


class Record(Answer):
    """A task as it is kept, with what it was given on this host."""

    task: ShimTask
    order: TaskOrder
    fence: int
    """The highest that was seen."""
    socket: str
    uid: int | None = None
    gid: int | None = None
    cgroups: tuple[str, ...] = ()

    @property
    def id(self) -> UUID:
        return self.task.id


@dataclass
class Found:
    records: list[Record] = field(default_factory=list)
    unreadable: dict[UUID, str] = field(default_factory=dict)


class Shelf:
    """Safe for several threads, as long as one task is written by one at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def accept(self, record: Record) -> None:
        """All that the task needs on disk, so that it does not run out of space half-way; or nothing at all."""
        directory = self._home.directory(record.id)
        # Nobody knows of what might lie here from before.
        remove_tree(directory)
        try:
            with explained("another task"):
                self._make_directories(record)
                write_file(directory / RECORD, _line(record))
                sync_directory(self._home.tasks)
        except (OSError, Unavailable):
            remove_tree(directory)
            raise

    def write(self, record: Record) -> None:
        path, line = self._home.directory(record.id) / RECORD, _line(record)
        with explained(f"the record of task {record.id}"):
            try:
                if not _append(path, line):
                    write_file(path, line)
            except FileNotFoundError:
                # Somebody deleted it, or all of it. The task has to be ended and removed like any other.
                with suppress(FileExistsError):
                    self._make_directory(record.id)
                write_file(path, line)

    def find(self) -> Found:
        """Everything that is there; what was never acknowledged is deleted."""
        found = Found()
        for id, directory in self._directories():
            try:
                found.records.append(_read((directory / RECORD).read_bytes()))
            except FileNotFoundError as error:
                if not _cleared(directory):
                    found.unreadable[id] = str(error)
            except (ValidationError, OSError) as error:
                # Somebody has to look at it.
                found.unreadable[id] = str(error)
        return found

    def empty(self, id: UUID) -> None:
        """Deletes what is large. First of all, since a full disk may keep us from writing that the task is gone."""
        for name in BULK:
            remove_tree(self._home.directory(id) / name)

    def clear_work(self, id: UUID) -> None:
        for directory in (self._home.directory(id), self._home.box(id)):
            remove_tree(directory / "work")

    def delete(self, id: UUID) -> None:
        remove_tree(self._home.directory(id))

    def _make_directories(self, record: Record) -> None:
        directory = self._make_directory(record.id)
        if record.task.runtime is Runtime.DOCKER:
            # Passed through by the user of the job, who has his own in it.
            directory = f"{directory}/{BOX}"
            os.mkdir(directory)
            os.chmod(directory, 0o711)
        os.mkdir(f"{directory}/work", 0o700)
        if record.uid is not None and record.gid is not None:
            os.chown(f"{directory}/work", record.uid, record.gid)

    def _make_directory(self, id: UUID) -> str:
        directory = str(self._home.directory(id))
        try:
            os.mkdir(directory)
        except FileNotFoundError:
            self._home.make_tasks()
            os.mkdir(directory)
        if self._home.is_root:
            # Passed through by the job on the way to its own; each file here is ours alone.
            os.chmod(directory, 0o711)
        return directory

    def _directories(self) -> Iterator[tuple[UUID, Path]]:
        for name in sorted(os.listdir(self._home.tasks)):
            try:
                id = UUID(name)
            except ValueError:
                continue
            if str(id) == name:
                yield id, self._home.tasks / name


def _line(record: Record) -> bytes:
    """With a break before it too: what a full disk left of the line before stands alone."""
    return b"\n" + record.model_dump_json().encode() + b"\n"


def _append(path: Path, line: bytes) -> bool:
    """False when the file is long enough."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size > RECORD_BYTES:
            return False
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _read(data: bytes) -> Record:
    """The last that is whole; when none is, what is wrong with the first."""
    first, *others = [line for line in data.split(b"\n") if line] or [b""]
    for line in reversed(others):
        with suppress(ValidationError):
            return Record.model_validate_json(line)
    return Record.model_validate_json(first)


def _cleared(directory: Path) -> bool:
    """Whether a directory without a record is gone now. One in which something runs is not touched."""
    identity = Identity.read(Place(directory).identity)
    if identity is not None and identity.alive():
        return False
    try:
        remove_tree(directory)
    except OSError:
        return False
    return True
