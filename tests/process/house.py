"""A server in the test's own event loop with real shims of this host below it: machines that a test may freeze,
preempt and drain, and a server that it may send away and call back."""

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp

from stoker.core.block import AUTO
from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId, InstanceId, RunId, derived
from stoker.core.instance_facts import PreemptionNoticed
from stoker.engine.change import Change, of_instance
from stoker.engine.engine import Engine
from stoker.runner.identity import Identity
from stoker.runner.place import Place
from stoker.runner.proc import alive, has_in_environment, pids
from stoker.runner.reaper import JOB_VARIABLE, kill_leftovers
from stoker.server.first_start import Keyring
from stoker.server.local_host import find_shim, host_id, instance_of, look
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.store import fleet as fleet_store
from stoker.store import host as host_store
from stoker.store.database import Database
from stoker.wire.frame import decode
from tests.api.conftest import Client

PATIENCE_S = 60.0

SPEC = '{"type": "fleet", "name": "local", "backends": ["local"]}'


async def until(happened: Callable[[], Any], what: str, deadline_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it is true; it may be asked in vain."""
    deadline = time.monotonic() + deadline_s
    while True:
        answer = happened()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Machine:
    """One shim and what it runs."""

    home: Path
    id: InstanceId = field(default_factory=lambda: InstanceId(uuid4()))

    def place(self, job: UUID) -> Place:
        return Place(self.home / "tasks" / str(job))

    def tasks(self) -> list[UUID]:
        with suppress(FileNotFoundError):
            return [UUID(name) for name in os.listdir(self.home / "tasks") if len(name) == 36]
        return []

    def shim(self) -> int:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect((self.home / "address").read_text().strip())
            return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def runner(self, job: UUID) -> int:
        identity = Identity.read(self.place(job).identity)
        assert identity is not None
        return identity.pid

    def clear(self) -> None:
        with suppress(OSError):
            os.kill(self.shim(), signal.SIGKILL)
        for job in self.tasks():
            with suppress(AssertionError, ProcessLookupError):
                os.kill(self.runner(job), signal.SIGKILL)
            kill_leftovers(job, [])
        shutil.rmtree(self.home, ignore_errors=True)


class House:
    def __init__(self, home: Path, url: str) -> None:
        self.home, self._url = home, url
        self.machines: list[Machine] = []
        self.prepare: Callable[[Path], object] = lambda home: None
        """What is done with the home of a machine before its shim is started."""
        self._served: Served | None = None

    @property
    def engine(self) -> Engine:
        assert self._served is not None
        return self._served.context.engine

    @property
    def database(self) -> Database:
        assert self._served is not None
        return self._served.context.database

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["House"]:
        """The server is there; afterwards it is away, and what runs goes on."""
        settings = Settings(self.home / "server", port=0, database_url=self._url)
        async with running(settings) as served:
            self._served = served
            yield self

    async def machine(self) -> Machine:
        """One more, of this very host, with a shim of its own."""
        home = self.home / f"m{len(self.machines)}" / "shim"
        home.parent.mkdir(mode=0o711)
        self.prepare(home)
        address, token = await find_shim(home)
        info = await look(address, token)
        one = Machine(home, InstanceId(await asyncio.to_thread(host_id, home)))
        self.machines.append(one)
        fleet_id = FleetId(derived(one.id, "fleet"))
        async with self.database.transaction() as tx:
            fleet_id, _ = await fleet_store.ensure(tx, fleet_id, "local", None, SPEC, Fleet(), self.engine.clock.now())
            await host_store.put(tx, one.id, host_store.Host(address, token), None)
        await self.engine.commit(
            Change(instances=(instance_of(info, one.id, fleet_id, AUTO, self.engine.clock.now()),))
        )
        self.engine.wake("errands")
        self.engine.wake("watch")
        await until(lambda: self._instance_is(one, "IDLE"), "the machine is up")
        return one

    async def _instance_is(self, one: Machine, state: str) -> bool:
        async with self.database.connection() as connection:
            return bool(await connection.fetchval("SELECT state = $2 FROM instance WHERE id = $1", one.id, state))

    async def noticed(self, one: Machine, notice_s: float) -> None:
        """Its provider takes it back. These have none that could say so."""
        await self.engine.commit(Change(facts=(of_instance(one.id, PreemptionNoticed(notice_s)),)))

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """As a person does, over HTTP."""
        assert self._served is not None
        secret = Keyring(self._served.context.settings.config_file).secret
        async with aiohttp.ClientSession() as http:
            answer = await Client(http, self._served.url, secret).ask(method, f"/api/projects/main/{path}", body)
        assert answer.status < 300, answer.body
        return answer.body

    async def submit(self, *commands: str, **more: Any) -> RunId:
        made = await self.ask("POST", "runs", {"configuration": {"type": "task", "commands": list(commands), **more}})
        return RunId(UUID(made["id"]))

    async def stop(self, run: RunId, *, abort: bool = False) -> None:
        await self.ask("POST", f"runs/{run}/stop", {"abort": abort})

    async def drain(self, one: Machine, deadline: str) -> None:
        await self.ask("POST", f"instances/{one.id}/drain", {"deadline": deadline})

    async def uncordon(self, one: Machine) -> None:
        await self.ask("POST", f"instances/{one.id}/uncordon")

    async def jobs(self, run: RunId) -> list[dict[str, Any]]:
        """Its submissions, the oldest first."""
        async with self.database.connection() as connection:
            rows = await connection.fetch("SELECT * FROM job WHERE run_id = $1 ORDER BY attempt", run)
        return [dict(row) for row in rows]

    async def job(self, run: RunId, state: str, attempt: int = 1, deadline_s: float = PATIENCE_S) -> dict[str, Any]:
        """That submission, once it is in that state."""

        async def there() -> dict[str, Any] | None:
            jobs = await self.jobs(run)
            return jobs[attempt - 1] if len(jobs) >= attempt and jobs[attempt - 1]["state"] == state else None

        job: dict[str, Any] = await until(there, f"submission {attempt} is {state}", deadline_s)
        return job

    async def ended(self, run: RunId, deadline_s: float = PATIENCE_S) -> dict[str, Any]:
        async def over() -> dict[str, Any] | None:
            async with self.database.connection() as connection:
                row = await connection.fetchrow("SELECT * FROM run WHERE id = $1", run)
            assert row is not None
            return dict(row) if row["state"] in ("DONE", "FAILED", "TERMINATED") else None

        run_row: dict[str, Any] = await until(over, "the run has ended", deadline_s)
        return run_row

    async def log(self, job: UUID) -> str:
        assert self._served is not None
        logs = self._served.context.logs
        frames = await logs.read(job, 0, 1024 * 1024)
        return b"".join(frame.data for frame in decode(frames)).decode()

    def on_disk(self, job: UUID) -> str:
        """What it has printed, as far as its runner has it."""
        for machine in self.machines:
            pieces = sorted(machine.place(job).log.glob("*.log"))
            if pieces:
                return "".join(piece.read_bytes().decode(errors="replace") for piece in pieces)
        return ""

    @staticmethod
    def processes(job: UUID) -> list[int]:
        mark = f"{JOB_VARIABLE}={job}".encode()
        return [pid for pid in pids() if has_in_environment(pid, mark) and alive(pid)]

    def result(self, job: UUID) -> dict[str, Any] | None:
        for machine in self.machines:
            with suppress(FileNotFoundError):
                result: dict[str, Any] = json.loads(machine.place(job).result.read_text())
                return result
        return None
