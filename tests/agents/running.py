"""A real runner for a test: forked by a real fork server, asked over its real socket."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp

from stoker.core.errors import Unavailable
from stoker.runner import proc
from stoker.runner.fork_client import server_version, start_runner
from stoker.runner.listening import listen
from stoker.runner.reaper import kill_leftovers
from stoker.wire.frame import Frame, Stream, decode
from stoker.wire.runner import Header, Health, Result, RunnerState

PATIENCE_S = 20.0


async def until(holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
    return found


@contextmanager
def fork_server(directory: Path) -> Iterator[Path]:
    """One that listens; ended at the end of the block. It was started with `nohup … &`, which leaves its mark."""
    path = directory / "fork.sock"
    command = [sys.executable, "-m", "stoker.runner.fork", "--socket", str(path)]
    with open(directory / "fork.log", "ab") as log:
        process = subprocess.Popen(["/bin/sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh", *command], stderr=log)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(Unavailable):
            server_version(path)
            break
        assert time.monotonic() < deadline, (directory / "fork.log").read_text()
        time.sleep(0.01)
    try:
        yield path
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@dataclass(frozen=True)
class Told:
    """An answer."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def health(self) -> Health:
        assert self.status in (200, 202), self.body
        return Health.model_validate_json(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, json.loads(self.body)["error"]["code"]

    @property
    def sentence(self) -> str:
        return str(json.loads(self.body)["error"]["message"])

    @property
    def next(self) -> int:
        return int(self.headers[Header.NEXT])

    @property
    def complete(self) -> bool:
        return self.headers[Header.COMPLETE] == "true"


class Running:
    """A runner, and what a server would say to it."""

    def __init__(self, directory: Path, job_id: UUID, token: str, pid: int, session: aiohttp.ClientSession) -> None:
        self.directory, self.job_id, self.token, self.pid, self.session = directory, job_id, token, pid, session

    async def ask(self, method: str, path: str, **more: Any) -> Told:
        headers = {"Authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        async with self.session.request(method, f"http://runner{path}", headers=headers, **more) as response:
            return Told(response.status, await response.read(), dict(response.headers))

    def order(self, *commands: str, **more: Any) -> dict[str, Any]:
        return {
            "fence": 1,
            "job_id": str(self.job_id),
            "run_id": str(uuid4()),
            "run_name": "a-run",
            "project": "main",
            "submission": 1,
            "commands": commands,
            "log_quota_bytes": 10 * 1024**3,
            "stop_duration_s": 5.0,
        } | more

    async def submit(self, *commands: str, **more: Any) -> None:
        told = await self.ask("POST", "/job", json=self.order(*commands, **more))
        assert told.status == 200, told.body

    async def start(self, *commands: str, **more: Any) -> None:
        await self.submit(*commands, **more)
        assert (await self.ask("POST", "/run")).status == 202

    async def stop(self, grace_s: float | None = None, fence: int = 1) -> Told:
        return await self.ask("POST", "/stop", json={"fence": fence, "grace_s": grace_s})

    async def health(self) -> Health:
        return (await self.ask("GET", "/healthz")).health

    async def frames(self, offset: int = 0) -> list[Frame]:
        """The whole log of a job that ends, without saying that we have it all."""
        found: list[Frame] = []
        while True:
            told = await self.ask("GET", f"/pull?offset={offset}&wait_s=10")
            assert told.status == 200, told.body
            found += decode(told.body)
            offset = told.next
            if told.complete and offset == int(told.headers[Header.END]):
                return found

    async def output(self, stream: Stream = Stream.STDOUT) -> bytes:
        return b"".join(frame.data for frame in await self.frames() if frame.stream == stream)

    async def printed(self, *lines: bytes) -> None:
        """Returns when the job has printed all of these, which it does while it runs."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = b"".join(frame.data for frame in decode((await self.ask("GET", "/pull?wait_s=0")).body))
            if all(line in seen for line in lines):
                return
            assert time.monotonic() < deadline, f"only {seen[-500:]!r}"
            await asyncio.sleep(0.01)

    async def result(self) -> Result:
        deadline = time.monotonic() + PATIENCE_S
        while (health := await self.health()).result is None:
            assert time.monotonic() < deadline, health
            await asyncio.sleep(0.005)
        return health.result

    async def runs(self, *commands: str, **more: Any) -> Result:
        await self.start(*commands, **more)
        return await self.result()

    async def reaches(self, state: RunnerState) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (health := await self.health()).state != state:
            assert time.monotonic() < deadline, health
            await asyncio.sleep(0.005)

    async def own_log(self) -> str:
        told = await self.ask("GET", "/own")
        return b"".join(frame.data for frame in decode(told.body)).decode()

    def alive(self) -> bool:
        return proc.alive(self.pid)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)


def prepare(directory: Path, **more: Any) -> dict[str, Any]:
    """What a shim does before it asks for a runner."""
    directory.mkdir(mode=0o711, exist_ok=True)
    (directory / "work").mkdir(exist_ok=True)
    if more.get("uid") is not None:
        os.chown(directory / "work", more["uid"], more["gid"])
    assignment = {
        "id": str(uuid4()),
        "project_id": str(uuid4()),
        "token": secrets.token_hex(16),
        "socket": str(directory / "runner.sock"),
        "notify": "",
        "uid": None,
        "gid": None,
        "cgroups": [],
        "gpu_ids": [],
        "gpu_indices": [],
        "stop_after_s": None,
    } | more
    (directory / "runner.json").write_text(json.dumps(assignment))
    (directory / "runner.json").chmod(0o600)
    return assignment


@asynccontextmanager
async def runner(fork_socket: Path, directory: Path, **more: Any) -> AsyncIterator[Running]:
    """A runner on a directory that may be new; killed at the end of the block with all that is left of its job."""
    assignment = prepare(directory, **more)
    with listen(Path(assignment["socket"])) as listener:
        pid = start_runner(fork_socket, directory, listener)
    async with talk(directory, assignment, pid) as running:
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                running.kill()
            await until(lambda: not running.alive())
            # As its shim would: what loops for ever would do so until the machine is turned off.
            await asyncio.to_thread(kill_leftovers, running.job_id)


@asynccontextmanager
async def talk(directory: Path, assignment: dict[str, Any], pid: int) -> AsyncIterator[Running]:
    """To a runner that listens, or will in a moment."""
    connector = aiohttp.UnixConnector(path=assignment["socket"])
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Running(directory, UUID(assignment["id"]), assignment["token"], pid, session)
