"""The embedded PostgreSQL: one per home, started, adopted and stopped by the server that holds the home's lock.

**Who owns it.** A home has a lock; the Stoker server that holds it owns the PostgreSQL of that home, whether it
started it or found it running. PostgreSQL runs in a session of its own, so neither Ctrl-C nor the death of the server
touches it. After `kill -9` of the server its PostgreSQL goes on; the next server takes the lock, finds it by its pid
file and adopts it when it is ours (our account, our data directory), is the version and has the options that we would
start, and answers to our password. Otherwise it is shut down and started anew. `stop` is the owner's word that the
home is no longer in use: it shuts PostgreSQL down (fast: open transactions are rolled back), adopted or not, and then
gives the lock back.

**What a crash leaves.** A postmaster killed with -9 leaves its pid file and backends that need a moment to notice; we
wait for them and kill those that do not, then PostgreSQL replays its log. An initdb killed half-way leaves a
directory that was never renamed into place; it is swept away. Starting is therefore always the same: sweep, make what
is missing, adopt or start.

**Who may connect.** Nobody but the account itself and root can enter the socket directory, there is no TCP, and the
password (SCRAM) is in a file that only that account can read. As root the account is a system user, because
PostgreSQL refuses to run as root.
"""

import asyncio
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import asyncpg
import structlog

from stoker.core.errors import StokerError, UserError
from stoker.store.cluster import PORT, USER, Cluster, explained, locked
from stoker.store.installation import Installation, account, runnable, shipped

START_S: Final = 120.0  # a long log may have to be replayed
FAST_S: Final = 60.0
IMMEDIATE_S: Final = 10.0
ORPHANS_S: Final = 5.0
LOG_BYTES: Final = 4 * 1024 * 1024
DATABASE: Final = "postgres"
_TICK_S: Final = 0.01

SETTINGS: Final[Mapping[str, str]] = {
    "shared_buffers": "64MB",
    "max_connections": "100",
    "fsync": "on",
    "synchronous_commit": "on",
    # Nothing replicates or archives this log, so it need not carry what only replicas read.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "min_wal_size": "64MB",
    "jit": "off",
    # Small queries on small machines: parallel workers and I/O workers cost more than they give.
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Statements may carry what users keep secret.
    "log_min_error_statement": "panic",
    "log_line_prefix": "%m [%p] ",
}

_log = structlog.get_logger()


class Embedded:
    """The PostgreSQL of a home; `start` makes one, and `stop` must be called on it."""

    def __init__(self, cluster: Cluster, installation: Installation, settings: Mapping[str, str], lock: int) -> None:
        self._cluster, self._installation = cluster, installation
        self._settings, self._lock = {**SETTINGS, **settings}, lock
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()
        self.pid = 0
        self.url = ""

    @classmethod
    async def start(
        cls, home: Path, *, settings: Mapping[str, str] | None = None, installation: Installation | None = None
    ) -> Self:
        """Takes the home and returns when PostgreSQL answers; makes home and database when they do not exist."""
        starting = asyncio.ensure_future(asyncio.to_thread(cls._start, home, settings or {}, installation))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, and what it starts must not be left behind.
            with suppress(StokerError, OSError):
                await (await starting).stop()
            raise

    async def revive(self) -> None:
        """Starts PostgreSQL again if it has died; its URL stays the same."""
        await asyncio.to_thread(self._run)

    async def stop(self) -> None:
        """Shuts PostgreSQL down and gives the home back; safe to call twice."""
        await asyncio.to_thread(self._stop)

    @classmethod
    def _start(cls, home: Path, settings: Mapping[str, str], installation: Installation | None) -> Self:
        uid = os.geteuid()
        with explained(home):
            # As root PostgreSQL's account must be able to pass through, and to see nothing else.
            home.mkdir(parents=True, exist_ok=True, mode=0o711 if uid == 0 else 0o700)
            home = home.resolve()
            lock = locked(home)
        try:
            by = account(uid)
            with explained(home, by):
                cluster = Cluster(home, by)
                server = cls(cluster, runnable(installation or shipped(), by, home), settings, lock)
                cluster.prepare(server._installation, sync=server._settings["fsync"] != "off")
            server._run()
        except BaseException:
            os.close(lock)
            raise
        return server

    def _run(self) -> None:
        with self._turn, explained(self._cluster.home, self._cluster.account):
            socket, password = quote(str(self._cluster.socket), safe=""), self._cluster.password()
            self.url = f"postgresql://{USER}:{password}@/{DATABASE}?host={socket}&port={PORT}"
            self._shorten_log()
            running = self._cluster.postmaster()
            if running is not None and self._adoptable(running):
                self.pid = running
                return
            if running is not None:
                self._shut_down(running)
            self._cluster.clear(ORPHANS_S)
            self._launch()

    def _command(self) -> list[str]:
        settings = {
            **self._settings,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self._cluster.socket),
            "unix_socket_permissions": "0700",
            "cluster_name": self._cluster.name,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return ["-D", str(self._cluster.data), *options]

    def _launch(self) -> None:
        log = self._cluster.log
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as output:
            before = os.fstat(output.fileno()).st_size
            process = self._cluster.account.popen(
                self._installation.program("postgres"),
                *self._command(),
                cwd=self._cluster.data,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._process, self.pid = process, process.pid
        deadline = time.monotonic() + START_S
        while not self._ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                died = process.poll() is not None
                self._shut_down(process.pid)
                said = _tail(log, before)
                what = "died at its start" if died else f"was not ready after {START_S:.0f} s"
                raise self._cluster.trouble(f"PostgreSQL {what}", said)
            time.sleep(_TICK_S)
        _log.debug("postgres started", pid=process.pid, data=str(self._cluster.data))

    def _ready(self, pid: int) -> bool:
        lines = self._cluster.pid_file()
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _adoptable(self, pid: int) -> bool:
        deadline = time.monotonic() + START_S
        while not self._ready(pid):
            # It may still be replaying its log, which a restart would only begin again.
            if self._cluster.postmaster() != pid or time.monotonic() > deadline:
                return False
            time.sleep(_TICK_S)
        started_with = shlex.split((self._cluster.data / "postmaster.opts").read_text())[1:]
        if started_with != self._command():
            return False
        try:
            version, data = asyncio.run(_asked(self.url))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        ours = subprocess.run([self._installation.program("postgres"), "--version"], capture_output=True, text=True)
        return data == str(self._cluster.data) and ours.stdout.split()[-1:] == version.split()[:1]

    def _stop(self) -> None:
        with self._turn:
            if self._lock < 0:
                return
            if self._alive(self.pid):
                self._shut_down(self.pid)
            self._cluster.clear(ORPHANS_S)
            self._cluster.tidy()
            lock, self._lock = self._lock, -1
            os.close(lock)

    def _shut_down(self, pid: int) -> None:
        """Fast; when that does not help immediate, which leaves the log to be replayed; then without asking."""
        for number, patience_s in (
            (signal.SIGINT, FAST_S),
            (signal.SIGQUIT, IMMEDIATE_S),
            (signal.SIGKILL, IMMEDIATE_S),
        ):
            deadline = time.monotonic() + patience_s
            with suppress(ProcessLookupError):
                if self._alive(pid):
                    os.kill(pid, number)
            while self._alive(pid):
                if time.monotonic() > deadline:
                    break
                time.sleep(_TICK_S)
            else:
                return

    def _alive(self, pid: int) -> bool:
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None
        return pid in self._cluster.processes()

    def _shorten_log(self) -> None:
        """Keeps one old log; copied and cut rather than renamed, because a PostgreSQL to be adopted goes on writing."""
        log = self._cluster.log
        if log.exists() and log.stat().st_size > LOG_BYTES:
            with suppress(OSError):
                shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


async def _asked(url: str) -> tuple[str, str]:
    connection = await asyncpg.connect(url, timeout=10.0)
    try:
        return await connection.fetchval("SHOW server_version"), await connection.fetchval("SHOW data_directory")
    finally:
        await connection.close(timeout=5.0)


def _tail(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(max(offset, file.seek(0, os.SEEK_END) - 16 * 1024))
        return file.read().decode(errors="replace")


def default_home(environ: Mapping[str, str], uid: int) -> Path:
    """`STOKER_HOME`, or the system's place for root, or a directory of the user's own."""
    if chosen := environ.get("STOKER_HOME"):
        return Path(chosen).expanduser().absolute()
    if uid == 0:
        return Path("/var/lib/stoker")
    return Path(environ.get("HOME") or pwd.getpwuid(uid).pw_dir) / ".stoker"


def external_url(environ: Mapping[str, str]) -> str | None:
    """The shared PostgreSQL that `STOKER_DATABASE_URL` names, or None: then the embedded one is used."""
    url = environ.get("STOKER_DATABASE_URL", "").strip()
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise UserError(
            "STOKER_DATABASE_URL is not a PostgreSQL URL.",
            hint="It looks like postgresql://user:password@host:5432/stoker; PostgreSQL is the only database.",
            code="database_url",
        )
    return url or None


@asynccontextmanager
async def served(environ: Mapping[str, str], home: Path) -> AsyncIterator[str]:
    """The URL of the PostgreSQL to use: the shared one as it is, or the embedded one for as long as the block runs."""
    if url := external_url(environ):
        yield url
        return
    server = await Embedded.start(home)
    try:
        yield server.url
    finally:
        await server.stop()
