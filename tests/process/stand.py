"""A whole Stoker as a person has it: a server process, its PostgreSQL, its shim, and what runs below them.

Every part is known by its process id and can be killed alone. Whatever a test did to it, nothing is left at its end.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

from stoker.cli.server import ready
from stoker.cli.shim import leave
from stoker.client import log as client_log
from stoker.client import run as client_run
from stoker.client.client import Client, Json
from stoker.client.config import read
from stoker.client.log import Which
from stoker.core.errors import StokerError
from stoker.runner.identity import Identity
from stoker.runner.place import Place
from stoker.runner.proc import alive, has_in_environment, pids
from stoker.runner.reaper import JOB_VARIABLE, kill_leftovers
from stoker.store.cluster import PORT, USER, Cluster
from stoker.store.installation import account
from stoker.store.postgres import DATABASE
from stoker.wire.frame import Stream, decode, intact

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
MARK = "STOKER_STAND"
T = TypeVar("T")


def until(happened: Callable[[], T | None], what: str, deadline_s: float = PATIENCE_S) -> T:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + deadline_s
    while not (found := happened()):
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        time.sleep(0.01)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stand:
    """`server` is its process; it is started with `start`, and `clear` ends everything."""

    def __init__(self, home: Path, *, local: bool = True, **environ: str) -> None:
        self.home, self._local = home, local
        self.port, self._mark = free_port(), f"{MARK}={uuid4()}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        name, _, value = self._mark.partition("=")
        self.environ = {**kept, "PYTHONPATH": str(ROOT / "src"), "STOKER_HOME": str(home), name: value, **environ}
        self.program: tuple[str, ...] = ("-m", "stoker.cli.main")
        """What Python is asked to run as the server."""
        self.server: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # The server as a process.

    def launch(self) -> None:
        """Does not wait until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o711)
        words = ["up"] if self._local else ["server"]
        command = [sys.executable, *self.program, *words, "--port", str(self.port)]
        with open(self.home / "server.log", "ab") as log:
            self.server = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def start(self) -> None:
        self.launch()
        until(self.answers, f"the server answers:\n{self.said()}")

    def answers(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, f"the server ended by itself:\n{self.said()}"
        return ready(self.url)

    def kill_server(self) -> None:
        assert self.server is not None
        assert self.server.poll() is None, f"the server ended by itself:\n{self.said()}"
        self.server.kill()
        self.server.wait(PATIENCE_S)

    def said(self) -> str:
        with suppress(FileNotFoundError):
            return (self.home / "server.log").read_text(errors="replace")[-4000:]
        return ""

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command of the CLI, as a person calls it."""
        command = [sys.executable, "-m", "stoker.cli.main", *args]
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")

    # The other parts, by their process ids.

    @property
    def shim_home(self) -> Path:
        return self.home / "shim"

    def shim(self) -> int | None:
        """Who listens on its socket."""
        with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5.0)
            line.connect(self.shim_socket)
            pid: int = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            return pid if alive(pid) else None
        return None

    def fork_server(self) -> int | None:
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.settimeout(5.0)
            line.connect(str(self.shim_home / "fork.sock"))
            line.send(b"{}")
            return int(json.loads(line.recv(4096))["pid"])
        return None

    def postgres(self) -> list[int]:
        return Cluster(self.home.resolve(), account(os.geteuid())).processes()

    @property
    def database_url(self) -> str:
        """Of its PostgreSQL, for whoever looks at the tables themselves."""
        cluster = Cluster(self.home.resolve(), account(os.geteuid()))
        host = quote(str(cluster.socket), safe="")
        return f"postgresql://{USER}:{cluster.password()}@/{DATABASE}?host={host}&port={PORT}"

    def tasks(self) -> list[UUID]:
        """What the shim has on disk."""
        with suppress(FileNotFoundError):
            return [UUID(name) for name in os.listdir(self.shim_home / "tasks") if len(name) == 36]
        return []

    def place(self, job: UUID | str) -> Place:
        return Place(self.shim_home / "tasks" / str(job))

    def runner(self, job: UUID | str) -> int | None:
        identity = Identity.read(self.place(job).identity)
        return identity.pid if identity is not None and identity.alive() else None

    def agent_token(self, job: UUID | str) -> str:
        token: str = json.loads(self.place(job).assignment.read_text())["token"]
        return token

    def agent_socket(self, job: UUID | str) -> str:
        path: str = json.loads(self.place(job).assignment.read_text())["socket"]
        return path

    @property
    def shim_socket(self) -> str:
        return (self.shim_home / "address").read_text().strip()

    def written(self, name: str) -> bytes:
        """What its runner has on disk of its standard output, whether or not the server has seen it."""
        directory = self.place(self.job(name)["id"]).log
        data = b"".join(segment.read_bytes() for segment in sorted(directory.glob("*.log")))
        return b"".join(frame.data for frame in decode(data[: intact(memoryview(data))]))

    def processes_of(self, jobs: Iterable[str]) -> list[int]:
        """Living processes of these jobs."""
        marks = [f"{JOB_VARIABLE}={job}".encode() for job in jobs]
        return [pid for pid in pids() if alive(pid) and any(has_in_environment(pid, mark) for mark in marks)]

    def agents(self) -> list[int]:
        """Server, shim, fork server and runners, wherever they are in their lives."""
        return [pid for pid in pids() if has_in_environment(pid, self._mark.encode()) and alive(pid)]

    # What a person asks.

    @property
    def client(self) -> Client:
        if self._client is None:
            config = read(self.home / "config.yml")
            self._client = Client(self.url, config["token"], config.get("project", "main"))
        return self._client

    def known_as(self, other: "Stand") -> None:
        """Two servers on one database know the same people; only the first one's home has a token."""
        self._client = Client(self.url, other.client.token, other.client.project)

    def submit(self, name: str | None, *commands: str, key: str = "", **more: Any) -> Json:
        configuration = {"type": "task", "commands": list(commands)} | ({"name": name} if name else {}) | more
        return client_run.submit(self.client, configuration, expected=None, key=key or str(uuid4()))

    def run(self, name: str, *commands: str, patience_s: float = PATIENCE_S, **more: Any) -> Json:
        """Submitted, and waited for."""
        self.submit(name, *commands, **more)
        return self.finished(name, patience_s)

    def get(self, name: str) -> Json:
        return client_run.get(self.client, name)

    def job(self, name: str) -> Json:
        job: Json = self.get(name)["jobs"][0]
        return job

    def reaches(self, name: str, *states: str, deadline_s: float = PATIENCE_S) -> Json:
        def there() -> Json | None:
            run = self.get(name)
            return run if run["status"] in states else None

        return until(there, f"{name} is {' or '.join(states)}", deadline_s)

    def finished(self, name: str, patience_s: float = PATIENCE_S) -> Json:
        """The run, which has a deadline for its end; the server may be away meanwhile."""
        run = client_run.wait(self.client, name, timeout_s=patience_s, away=lambda error: None)
        assert client_run.finished(run), f"{name} has not ended after {patience_s:.0f} s: {run}"
        return run

    def stop(self, name: str, *, abort: bool = False) -> Json:
        stopped: Json = self.client.post(self.client.at("runs", name, "stop"), {"abort": abort})
        return stopped

    def frames(self, name: str, client: Client | None = None) -> bytes:
        pieces = client_log.backlog(client or self.client, name, Which())
        return b"".join(piece.frames for piece in pieces)

    def log(self, name: str, stream: Stream = Stream.STDOUT, client: Client | None = None) -> bytes:
        return b"".join(frame.data for frame in decode(self.frames(name, client)) if frame.stream == stream)

    # The end.

    def clear(self) -> None:
        """First in good order, then by force; asked twice it does nothing."""
        try:
            self._leave()
        finally:
            for pid in (*self.agents(), *(pid for job in self.tasks() if (pid := self.runner(job)))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for job in self.tasks():
                kill_leftovers(job, self.cgroups(job))
            if self.server is not None:
                self.server.wait(PATIENCE_S)
            Cluster(self.home.resolve(), account(os.geteuid())).clear(patience_s=0.0)
            self._remove_cgroups()

    def _leave(self) -> None:
        if self.server is None or self.server.poll() is not None:
            return
        with suppress(StokerError):
            names = [run["name"] for run in client_run.stop_all(self.client, abort=True)]
            deadline = time.monotonic() + 20.0
            for name in names:
                client_run.wait(self.client, name, timeout_s=max(0.0, deadline - time.monotonic()))
        self.server.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.server.wait(30.0)
        if self._local:
            leave(self.home)

    def cgroups(self, job: UUID | str) -> list[str]:
        with suppress(FileNotFoundError, ValueError):
            lines = (self.shim_home / "tasks" / str(job) / "task.jsonl").read_text().split("\n")
            return list(json.loads(lines[1]).get("cgroups", []))
        return []

    def _remove_cgroups(self) -> None:
        """A shim that was killed could not."""
        for base in {Path(group).parent for job in self.tasks() for group in self.cgroups(job)}:
            for group in (*base.glob("*-*-*-*-*"), base):
                with suppress(OSError):
                    group.rmdir()


@contextmanager
def standing(home: Path, *, local: bool = True, **environ: str) -> Iterator[Stand]:
    made = Stand(home, local=local, **environ)
    try:
        made.start()
        yield made
    finally:
        made.clear()
