"""A real shim in a home of its own, with real runners below it, and what a server would say to it."""

import asyncio
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp

from stoker.runner.fork_client import server_version
from stoker.runner.identity import Identity
from stoker.runner.place import Place
from stoker.runner.reaper import kill_leftovers
from stoker.shim import cgroup
from stoker.wire.runner import Header
from stoker.wire.shim import Changes, TaskInfo

PATIENCE_S = 30.0
PROJECT = UUID(int=1)
GPUS = 4
SERVE = f"""
import sys
from pathlib import Path
from stoker.shim.start import serve
from stoker.wire.shim import HostGpu
serve(Path(sys.argv[1]), [HostGpu(index=n, id=f"GPU-{{n}}", name="T1000", memory_mb=4096, vendor="nvidia")
                          for n in range({GPUS})])
"""
"""A host with GPUs, whatever this one has."""

_numbers = itertools.count(1)


def existing(*paths: str) -> list[str]:
    return [path for path in paths if os.path.lexists(path)]


async def until(holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
    return found


@dataclass(frozen=True)
class Told:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def task(self) -> TaskInfo:
        assert self.status in (200, 201, 202), self.body
        return TaskInfo.model_validate_json(self.body)

    @property
    def changes(self) -> Changes:
        assert self.status == 200, self.body
        return Changes.model_validate_json(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json["error"]["code"]

    @property
    def next(self) -> int:
        return int(self.headers[Header.NEXT])

    @property
    def complete(self) -> bool:
        return self.headers.get(Header.COMPLETE) == "true"


class Stage:
    def __init__(self, home: Path, script: str = SERVE, command: Sequence[str] = ()) -> None:
        """`command` instead of the script: a shim that was started some other way."""
        self.home = home
        self._command = [*command, "--home", str(home)] if command else [sys.executable, "-c", script, str(home)]
        self.environ: dict[str, str] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    # The shim as a process.

    async def start(self) -> None:
        self._spawn()
        await until(self._announced)

    def _spawn(self) -> None:
        (self.home / "address").unlink(missing_ok=True)
        with open(self.home.parent / f"{self.home.name}.stderr", "ab") as errors:
            self.process = subprocess.Popen(self._command, stderr=errors, cwd="/", env=self.environ)

    def _announced(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home.parent / f"{self.home.name}.stderr").read_text()[-2000:]
        return (self.home / "address").exists()

    async def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends the shim and nothing else; how it ended."""
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    def clear(self) -> None:
        """Ends whatever a test left behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for directory in self.directories():
            if (runner := self.runner(UUID(directory.name))) is not None:
                with suppress(ProcessLookupError):
                    os.kill(runner, signal.SIGKILL)
            kill_leftovers(UUID(directory.name), self.cgroups(UUID(directory.name)))
            cgroup.remove(self.cgroups(UUID(directory.name)))
        if (pid := self.fork_server()) is not None:
            os.kill(pid, signal.SIGKILL)
        cgroup.find(cgroup.name_of(self.home)).close()

    # What can be seen from outside.

    def directories(self) -> list[Path]:
        return sorted((self.home / "tasks").glob("*-*-*-*-*"))

    def directory(self, id: UUID) -> Path:
        return self.home / "tasks" / str(id)

    def record(self, id: UUID) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory(id) / "task.jsonl").read_text().splitlines()[-1])
        return found

    def cgroups(self, id: UUID) -> list[str]:
        with suppress(FileNotFoundError, ValueError):
            return list(self.record(id).get("cgroups", []))
        return []

    def runner(self, id: UUID) -> int | None:
        """Its process, if it lives."""
        identity = Identity.read(Place(self.directory(id)).identity)
        return identity.pid if identity is not None and identity.alive() else None

    async def born(self, id: UUID) -> int:
        """Its runner, once it has said who it is."""
        pid: int = await until(lambda: self.runner(id))
        return pid

    @property
    def fork_socket(self) -> Path:
        note = self.home / "sockets"
        return (Path(note.read_text().strip()) if note.exists() else self.home) / "fork.sock"

    def fork_server(self) -> int | None:
        path = self.fork_socket
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.settimeout(5.0)
            line.connect(str(path))
            line.send(b"{}")
            return int(json.loads(line.recv(4096))["pid"])
        return None

    async def fork_server_ready(self) -> int:
        def answers() -> bool:
            with suppress(Exception):
                return bool(server_version(self.fork_socket))
            return False

        await until(answers)
        pid = self.fork_server()
        assert pid is not None
        return pid

    # What a server says.

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    async def ask(self, method: str, path: str, **more: Any) -> Told:
        connector = aiohttp.UnixConnector(path=(self.home / "address").read_text().strip())
        headers = {"Authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://shim{path}", headers=headers, **more) as response,
        ):
            return Told(response.status, await response.read(), dict(response.headers))

    def order(self, **more: Any) -> dict[str, Any]:
        plain = {"id": str(uuid4()), "fence": 1, "name": "a-run", "project_id": str(PROJECT)}
        return plain | {"token": "t" * 32} | more

    async def submit(self, **more: Any) -> TaskInfo:
        return (await self.ask("POST", "/tasks", json=self.order(**more))).task

    async def task(self, id: UUID) -> TaskInfo:
        return (await self.ask("GET", f"/tasks/{id}")).task

    async def terminate(self, id: UUID, fence: int = 2, grace_s: float = 0.0, wait_s: float = PATIENCE_S) -> TaskInfo:
        body = {"fence": fence, "grace_s": grace_s}
        return (await self.ask("POST", f"/tasks/{id}/terminate?wait_s={wait_s}", json=body)).task

    async def remove(self, id: UUID, fence: int = 2) -> Told:
        return await self.ask("DELETE", f"/tasks/{id}?fence={fence}")

    async def changes(self, cursor: str = "", wait_s: float = 0.0) -> Changes:
        return (await self.ask("GET", "/changes", params={"cursor": cursor, "wait_s": wait_s})).changes

    async def reaches(self, id: UUID, holds: Callable[[TaskInfo], Any]) -> TaskInfo:
        """By long poll, as a server learns of it."""
        deadline = time.monotonic() + PATIENCE_S
        changes = await self.changes()
        while True:
            for task in changes.tasks:
                if task.id == id and holds(task):
                    return task
            assert time.monotonic() < deadline, await self.task(id)
            changes = await self.changes(changes.cursor, 5.0)

    async def ended(self, id: UUID) -> TaskInfo:
        return await self.reaches(id, lambda task: task.state == "terminated")

    # What a server says to a runner.

    async def tell_runner(self, task: TaskInfo, method: str, path: str, **more: Any) -> Told:
        connector = aiohttp.UnixConnector(path=task.socket)
        headers = {"Authorization": "Bearer " + "t" * 32}
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.request(method, f"http://runner{path}", **more) as response,
        ):
            return Told(response.status, await response.read(), dict(response.headers))

    def job(self, id: object, *commands: str, **more: Any) -> dict[str, Any]:
        order = {"fence": 1, "job_id": str(id), "run_id": str(uuid4()), "run_name": "a-run", "project": "main"}
        order |= {"submission": 1, "commands": commands, "log_quota_bytes": 10**9, "stop_duration_s": 5.0}
        return order | more

    async def run(self, task: TaskInfo, *commands: str, **more: Any) -> None:
        order = self.job(task.id, *commands, **more)
        assert (await self.tell_runner(task, "POST", "/job", json=order)).status == 200
        assert (await self.tell_runner(task, "POST", "/run")).status == 202

    async def start_job(self, *commands: str, **more: Any) -> TaskInfo:
        task = await self.submit(**more)
        assert task.state == "running", task
        await self.run(task, *commands)
        return task

    async def read_log(self, task: TaskInfo) -> None:
        """As a server does: to the end, and then once more, to say that it has it all."""
        offset = 0
        while True:
            told = await self.tell_runner(task, "GET", f"/pull?offset={offset}&wait_s=10")
            if told.complete and told.next == offset:
                break
            offset = told.next
        await self.tell_runner(task, "GET", "/own")


def prepared(directory: Path, script: str = SERVE, command: Sequence[str] = ()) -> Stage:
    made = Stage(directory / f"s{next(_numbers)}-{secrets.token_hex(2)}", script, command)
    made.home.mkdir(parents=True)
    made.home.chmod(0o711)
    return made


@asynccontextmanager
async def stage(
    directory: Path, script: str = SERVE, command: Sequence[str] = (), environ: dict[str, str] | None = None
) -> AsyncIterator[Stage]:
    """A shim that serves; at the end of the block nothing is left of it."""
    made = prepared(directory, script, command)
    made.environ = environ
    try:
        await made.start()
        yield made
    finally:
        made.clear()


@contextmanager
def shared_stage(directory: Path) -> Iterator[Stage]:
    """The same, for several tests."""
    made = prepared(directory)
    try:
        asyncio.run(made.start())
        yield made
    finally:
        made.clear()
