"""A home on disk and the PostgreSQL data in it: the lock, the directories, initdb, and who works there now.

HOME/lock                the server that uses this home holds a lock on it; its pid is inside
HOME/postgres.log        what PostgreSQL says
HOME/postgres/           belongs to PostgreSQL's account, closed to everybody else
    cluster/data         PostgreSQL's data directory
    cluster/password     of the only user, made together with the data
    socket/              where PostgreSQL listens
    new-*/               a cluster in the making; renamed to `cluster` when complete, swept away when left behind
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stoker.core.errors import Conflict, StokerError, Unavailable, UserError
from stoker.store.installation import ENVIRONMENT, MAJOR, Account, Installation

USER: Final = "stoker"
PORT: Final = 5432
NO_SPACE: Final = "No space left on device"
_DENIED: Final = "Permission denied"
_NO_ENTRY: Final = "could not look up effective user ID"
_SOCKET_PATH_BYTES: Final = 103  # the smaller one of macOS (103) and Linux (107)
_ENOUGH_BYTES: Final = 16 * 1024 * 1024  # one WAL segment
_SWEEP_S: Final = 10.0
_LINES: Final = 8


class Cluster:
    """The data of one home; only the holder of the home's lock may use it."""

    def __init__(self, home: Path, account: Account) -> None:
        self.home, self.account = home, account
        self.place = home / "postgres"
        self.data = self.place / "cluster" / "data"
        self.log = home / "postgres.log"
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
        # Shown in the title of every PostgreSQL process, so that those of this home are known by it.
        self.name = f"stoker-{digest}"
        self.socket = self.place / "socket"
        too_long = len(os.fsencode(self.socket / f".s.PGSQL.{PORT}")) > _SOCKET_PATH_BYTES
        # PostgreSQL reads its option as a list, in which these two have a meaning.
        if too_long or not {",", '"'}.isdisjoint(str(self.socket)):
            self.socket = Path("/tmp", self.name)

    def prepare(self, installation: Installation, *, sync: bool) -> None:
        """Makes what is missing and refuses what is not ours."""
        self._private(self.place)
        self._sweep()
        if not self.data.parent.exists():
            self._create(installation, sync=sync)
        self._check()
        self._private(self.socket)

    def password(self) -> str:
        return (self.data.parent / "password").read_text().strip()

    def postmaster(self) -> int | None:
        """The pid of the PostgreSQL that serves this data now."""
        pid = self.pid_file()[:1]
        return int(pid[0]) if pid and int(pid[0]) in self.processes() else None

    def pid_file(self) -> list[str]:
        """Its lines: pid, data, start time, port, socket directory, address, shared memory, status."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []
        return lines if lines and lines[0].strip().isdigit() else []

    def processes(self) -> list[int]:
        """The living PostgreSQL processes of this data, known by their account and their command line or title.

        Not by their working directory: in a container root may not look at that of another user's process.
        """
        title = f"postgres: {self.name}:"
        return [
            pid
            for pid, command in _commands_of(self.account.uid)
            if command.startswith(title) or f" -D {self.data} " in f"{command} "
        ]

    def clear(self, patience_s: float) -> None:
        """Waits for processes that outlived their postmaster, and kills them when they do not notice by themselves."""
        patience = time.monotonic() + patience_s
        while left := self.processes():
            if time.monotonic() > patience:
                # Their postmaster is gone, so the log is replayed anyway: nothing that was committed is at stake.
                _kill(left)
            time.sleep(0.02)
        pid_file = self.pid_file()
        if pid_file and "postgres" not in dict(_commands_of(self.account.uid)).get(int(pid_file[0]), "postgres"):
            # The number now belongs to another program of this account, which PostgreSQL would take for itself.
            (self.data / "postmaster.pid").unlink()
        # The same, and a postmaster that is dead but not buried yet: nobody listens here, for nobody of ours is left.
        (self.socket / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)

    def tidy(self) -> None:
        """Removes the socket directory if it is not below the home."""
        if self.socket.parent != self.place:
            shutil.rmtree(self.socket, ignore_errors=True)

    def out_of_space(self) -> bool:
        # The log is on the same disk, so a full one leaves nothing in it to read.
        free = os.statvfs(self.place)
        return free.f_bavail * free.f_frsize < _ENOUGH_BYTES

    def trouble(self, what: str, said: str) -> StokerError:
        """Why a program of PostgreSQL failed, in words of who can do something about it."""
        if NO_SPACE in said or self.out_of_space():
            return disk_full(self.home)
        if _NO_ENTRY in said:
            return UserError(
                f"The user with the number {self.account.uid} has no entry in /etc/passwd, which PostgreSQL asks for.",
                hint="Add one, or let STOKER_DATABASE_URL name a PostgreSQL that runs elsewhere.",
                code="no_passwd_entry",
            )
        if _DENIED in said:
            return denied(self.place, said.strip().splitlines()[-1], self.account)
        last = "\n".join(said.splitlines()[-_LINES:]).strip() or "it said nothing"
        return Unavailable(f"{what}: {last}", hint=f"More may be in {self.log}.", code="postgres_failed")

    def _private(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700)
            self.account.own(directory)
        except FileExistsError:
            found = directory.lstat()
            if found.st_uid != self.account.uid or not directory.is_dir() or directory.is_symlink():
                raise UserError(
                    f"{directory} does not belong to the user {self.account.name}.",
                    hint="Start Stoker as the user who owns it, or move it away.",
                    code="permission_denied",
                ) from None
            directory.chmod(0o700)

    def _sweep(self) -> None:
        """Removes clusters whose making was interrupted; their initdb may still be at it."""
        deadline = time.monotonic() + _SWEEP_S
        while left := list(self.place.glob("new-*")):
            _kill([pid for pid, command in _commands_of(self.account.uid) if f" {self.place}/new-" in command])
            for directory in left:
                shutil.rmtree(directory, ignore_errors=True)
            if time.monotonic() > deadline:
                raise UserError(f"{left[0]} cannot be removed.", hint="Remove it by hand.", code="permission_denied")

    def _create(self, installation: Installation, *, sync: bool) -> None:
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.place))
        password = new / "password"
        with open(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.account.own(password)
        self.account.own(new)
        options = [
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--data-checksums", "--no-instructions"]
        options += [] if sync else ["--no-sync"]
        initdb = self.account.popen(
            installation.program("initdb"),
            "-D",
            str(new / "data"),
            *options,
            cwd=new,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = initdb.communicate()
        if initdb.returncode != 0:
            error = self.trouble("The database could not be made", said)
            shutil.rmtree(new, ignore_errors=True)
            raise error
        _sync_directory(new)
        new.rename(self.data.parent)
        _sync_directory(self.place)

    def _check(self) -> None:
        try:
            major = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise UserError(
                f"{self.data} holds no database.", hint="Restore it, or move it away to begin anew.", code="no_database"
            ) from None
        if major != str(MAJOR):
            raise UserError(
                f"The data in {self.data} belong to PostgreSQL {major}, and this Stoker brings PostgreSQL {MAJOR}.",
                hint="Dump them with the Stoker that made them (pg_dump), move them away, and load the dump here.",
                code="database_version",
            )


def locked(home: Path) -> int:
    """Takes the home's lock and returns its descriptor: closing it, or dying, gives the lock back."""
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise Conflict(
            f"Another Stoker server{f', process {holder},' if holder else ''} uses {home}.",
            hint="Stop it first, or give this one another STOKER_HOME.",
            code="home_in_use",
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def explained(home: Path, account: Account | None = None) -> Iterator[None]:
    """Turns what the operating system refuses into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(home) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise denied(Path(error.filename or home), error.strerror or _DENIED, account) from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            hint = "Choose a directory as STOKER_HOME."
            raise UserError(
                f"{error.filename or home} is not a directory.", hint=hint, code="not_a_directory"
            ) from error
        raise


def disk_full(home: Path) -> Unavailable:
    return Unavailable(
        f"There is no space left on the disk that holds {home}.",
        hint="Free some (a new database needs 100 MB), or put STOKER_HOME on another disk.",
        code="disk_full",
        retry_after_s=10.0,
    )


def denied(path: Path, why: str, account: Account | None) -> UserError:
    who = f"the user {account.name}" if account else "this user"
    return UserError(
        f"Permission denied at {path}: {why.rstrip('.')}.",
        hint=f"Let {who} write there and enter every directory above (chmod o+x), or choose another STOKER_HOME.",
        code="permission_denied",
    )


def _commands_of(uid: int) -> Iterator[tuple[int, str]]:
    """The living processes of a user with their command lines."""
    if Path("/proc/self/cmdline").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if entry.stat().st_uid == uid:
                        yield (
                            int(entry.name),
                            (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
                        )
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return
    listing = subprocess.run(
        ["ps", "-ww", "-U", str(uid), "-o", "pid=,command="], capture_output=True, text=True, env=dict(ENVIRONMENT)
    )
    for line in listing.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        yield int(pid), command


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
