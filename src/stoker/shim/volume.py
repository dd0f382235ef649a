"""Volumes on this host: made once, mounted once, and let go by the last task that uses them.

**On disk.** `volumes/ID` is where the data is found: a directory, or the place where a file system is mounted. Beside
it `volumes/ID.kept` has what we need: `image`, the file of one that has a size, and `users`, a file for each task
that uses it. A task is a user before anything is mounted for it and until after it is unmounted, so whatever a crash
leaves behind belongs to somebody, whose end undoes it. An image is formatted under another name and renamed when that
is on disk: one that has its name is never formatted, so no crash and no second try can cost anybody's data.

**Who sees it.** A container gets a bind (`mounted`). A process has no file system of its own: with root its runner
mounts in a namespace that only the job has (`runner/view.py`), at any path; without root there is a link below the
job's directory, and what cannot be had so is refused in words.
"""

import errno
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from stoker.core.errors import Conflict, Unavailable, UserError
from stoker.runner.segment import sync_directory
from stoker.shim.disk import remove_tree
from stoker.shim.mount import BUSY, is_mounted, mount, unmount, users_of
from stoker.wire.shim import Mount, Source, TaskOrder, VolumeInfo

MKFS_S: Final = 600.0
_MB: Final = 1024 * 1024
_SPARE_MB: Final = 64
"""Left to the host beside a volume that takes the rest of its disk."""


class Owner(NamedTuple):
    """Whose the data of a new volume is; None: ours."""

    uid: int | None = None
    gid: int | None = None


class Bound(NamedTuple):
    """A directory of the host, and where the task finds it."""

    source: str
    inside: str
    read_only: bool


class Volumes:
    """Blocks, and may be called from any thread: a volume is worked on by one at a time."""

    def __init__(self, root: Path, *, is_root: bool, now: Callable[[], float] = time.time) -> None:
        # As the kernel writes it in its list of mounts, where no links are.
        self.root, self._is_root, self._now = Path(os.path.realpath(root)), is_root, now
        self._turns: defaultdict[UUID, threading.Lock] = defaultdict(threading.Lock)

    def prepare(self) -> None:
        self.root.mkdir(exist_ok=True)
        # Passed through by jobs on the way to what is theirs.
        self.root.chmod(0o711 if self._is_root else 0o700)

    # For tasks.

    def mounted(self, order: TaskOrder) -> list[Bound]:
        """What a container has to be given, once `take` has returned."""
        return [Bound(str(self._source(one)), one.inside, one.read_only) for one in order.mounts]

    def take(self, task: UUID, mounts: Iterable[Mount], owner: Owner) -> None:
        """Returns when everything is there. Said again, it changes nothing."""
        for one in mounts:
            if one.source is Source.PATH:
                _check_directory(one)
            else:
                with self._turns[_id(one)]:
                    self._take(task, one, owner)

    def release(self, task: UUID, mounts: Iterable[Mount], detach_s: float) -> None:
        """Raises while one is busy, until that has lasted for `detach_s`; then it is let go by force."""
        failed: list[Unavailable] = []
        for one in mounts:
            if one.source is not Source.PATH:
                with self._turns[_id(one)]:
                    try:
                        self._release(_id(one), task, one.name, detach_s)
                        if one.source is Source.NFS:
                            self._forget(_id(one))
                    except Unavailable as error:
                        failed.append(error)
        if failed:
            raise failed[0]

    def recover(self, tasks: Iterable[UUID]) -> None:
        """Of users that no task stands for, nothing is left: their records were lost."""
        known = set(tasks)
        for id in self._ids():
            for task in self._users(id) - known:
                with self._turns[id], suppress(Unavailable):
                    self._release(id, task, "", 0.0)

    # For the server.

    def make(self, id: UUID, name: str, size_mb: int | None, owner: Owner) -> VolumeInfo:
        with self._turns[id]:
            self._make(id, name, size_mb, owner)
            return self._info(id)

    def remove(self, id: UUID) -> None:
        """With all that is in it."""
        with self._turns[id]:
            if users := self._users(id):
                raise Conflict(
                    f"Volume {id} is used by {len(users)} tasks here.", hint="End them first.", code="volume_used"
                )
            if is_mounted(self.place(id)):
                self._unmount(id, "", None, 0.0)
            # The data last: what is half deleted still has its name, and is found again.
            remove_tree(self.place(id))
            remove_tree(self._kept(id))

    def infos(self) -> list[VolumeInfo]:
        return [self._info(id) for id in sorted(self._ids(), key=str)]

    def place(self, id: UUID) -> Path:
        """Where its data is found."""
        return self.root / str(id)

    # Within the turn of a volume.

    def _take(self, task: UUID, one: Mount, owner: Owner) -> None:
        id = _id(one)
        self._enlist(id, task)
        if one.source is Source.NFS:
            self._root_for(f"volume {one.name} is mounted from {one.place}")
            self.place(id).mkdir(exist_ok=True)
            if not is_mounted(self.place(id)):
                mount(one.place, self.place(id), "nfs", f"volume {one.name}")
        else:
            self._make(id, one.name, one.size_mb, owner)
            if one.size_mb is not None and not is_mounted(self.place(id)):
                mount(str(self._image(id)), self.place(id), "ext4", f"volume {one.name}")

    def _release(self, id: UUID, task: UUID, name: str, detach_s: float) -> None:
        if not self._users(id) - {task} and is_mounted(self.place(id)):
            self._unmount(id, name, task, detach_s)
        self._user(id, task).unlink(missing_ok=True)
        for path in (self._kept(id) / "users", self._kept(id)):
            # While there is something in it, it stays.
            with suppress(OSError):
                path.rmdir()

    def _forget(self, id: UUID) -> None:
        """What was only mounted here leaves nothing behind."""
        if not self._users(id):
            with suppress(OSError):
                self.place(id).rmdir()

    def _unmount(self, id: UUID, name: str, task: UUID | None, detach_s: float) -> None:
        error = unmount(self.place(id), force=False)
        if error is None:
            return
        since = self._busy_since(id, task) if task is not None else 0.0
        if self._now() - since >= detach_s:
            error = unmount(self.place(id), force=True)
            if error is None:
                return
        who = users_of(self.place(id)) if error == BUSY else ""
        raise Unavailable(
            f"Volume {name or id} cannot be unmounted: {who or error}.",
            hint="It is tried again, and let go by force after a while.",
            code="volume_busy",
        )

    def _busy_since(self, id: UUID, task: UUID) -> float:
        """Noted at the first time that it did not work, so that a restart does not begin the wait anew."""
        path = self._user(id, task)
        with suppress(OSError, ValueError):
            if noted := path.read_text():
                # By a clock that somebody may have set back.
                return min(float(noted), self._now())
        with suppress(OSError):
            path.write_text(str(self._now()))
        return self._now()

    def _make(self, id: UUID, name: str, size_mb: int | None, owner: Owner) -> None:
        if size_mb is None:
            self._make_directory(id, owner)
            return
        self._root_for(f"volume {name} has a size, so it is a file system of its own")
        self.place(id).mkdir(exist_ok=True)
        if not self._image(id).exists():
            self._kept(id).mkdir(exist_ok=True)
            _format(self._image(id), name, size_mb, owner)

    def _make_directory(self, id: UUID, owner: Owner) -> None:
        if self.place(id).exists():
            return
        fresh = self.root / f"{id}.fresh"
        fresh.mkdir(exist_ok=True)
        fresh.chmod(0o770)
        if owner.uid is not None and owner.gid is not None:
            os.chown(fresh, owner.uid, owner.gid)
        # As whole as it has to be, or not there at all.
        fresh.rename(self.place(id))
        sync_directory(self.root)

    def _enlist(self, id: UUID, task: UUID) -> None:
        users = self._kept(id) / "users"
        if self._user(id, task).exists():
            return
        users.mkdir(parents=True, exist_ok=True)
        self._user(id, task).touch()
        for directory in (users, self._kept(id), self.root):
            sync_directory(directory)

    def _root_for(self, what: str) -> None:
        if not self._is_root:
            raise UserError(
                f"{what[:1].upper()}{what[1:]}, and this host's agent runs without root, which may not mount.",
                hint="Leave the size out, or run the agent as root.",
                code="needs_root",
            )

    # Where things are.

    def _source(self, one: Mount) -> Path:
        return Path(one.place) if one.source is Source.PATH else self.place(_id(one))

    def _kept(self, id: UUID) -> Path:
        return self.root / f"{id}.kept"

    def _image(self, id: UUID) -> Path:
        return self._kept(id) / "image"

    def _user(self, id: UUID, task: UUID) -> Path:
        return self._kept(id) / "users" / str(task)

    def _users(self, id: UUID) -> set[UUID]:
        with suppress(FileNotFoundError):
            return {UUID(name) for name in os.listdir(self._kept(id) / "users")}
        return set()

    def _ids(self) -> set[UUID]:
        found = set()
        for name in os.listdir(self.root):
            with suppress(ValueError):
                found.add(UUID(name.removesuffix(".kept")))
        return found

    def _info(self, id: UUID) -> VolumeInfo:
        made = self.place(id).exists()
        users = sorted(self._users(id), key=str)
        return VolumeInfo(id=id, made=made, mounted=is_mounted(self.place(id)), tasks=tuple(users))


def _id(one: Mount) -> UUID:
    if one.id is None:
        raise UserError(f"Volume {one.name} has no id.", code="validation")
    return one.id


def _check_directory(one: Mount) -> None:
    if not os.path.isdir(one.place):
        raise UserError(f"There is no directory {one.place} on this host to be mounted at {one.inside}.", code="mount")


def _format(image: Path, name: str, size_mb: int, owner: Owner) -> None:
    """Under another name until it is whole. What a crash left of an earlier try is not looked at."""
    fresh = image.with_name("image.new")
    fresh.unlink(missing_ok=True)
    disk = os.statvfs(image.parent)
    free_mb = disk.f_bavail * disk.f_frsize // _MB
    if free_mb < size_mb + _SPARE_MB:
        raise UserError(
            f"Volume {name} takes {size_mb} MB, and this host's disk has {free_mb} MB free.",
            hint="Make it smaller, or on another host.",
            code="no_space",
        )
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_mb * _MB)
        _run_mkfs(fresh, name, owner)
        os.fsync(descriptor)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise UserError(f"There is no space for volume {name} on this host's disk.", code="no_space") from error
        raise
    except UserError:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    fresh.rename(image)
    sync_directory(image.parent)


def _run_mkfs(path: Path, name: str, owner: Owner) -> None:
    root = f"root_owner={owner.uid or 0}:{owner.gid or 0}"
    command = ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", f"{root},lazy_itable_init=1,nodiscard", str(path)]
    _run(command, f"volume {name} cannot be formatted")


def _run(command: Sequence[str], what: str) -> None:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MKFS_S, env=env)
    except FileNotFoundError:
        hint = "Install e2fsprogs there."
        raise UserError(f"{what[:1].upper()}{what[1:]}: this host has no {command[0]}.", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"{what[:1].upper()}{what[1:]}: {command[0]} took longer than {MKFS_S:g} s.") from None
    if done.returncode:
        raise UserError(f"{what[:1].upper()}{what[1:]}: {done.stderr.strip()[:500] or done.returncode}.")
