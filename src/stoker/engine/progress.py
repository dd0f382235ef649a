"""What is being done on a host, step by step, for those who watch: written down while it happens."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from stoker.core.errors import StokerError
from stoker.store import ssh as ssh_store
from stoker.store.database import Database
from stoker.store.ssh import SshHost

CONNECT: Final = "connect"
CHECK: Final = "check"
SHIP: Final = "ship the agents"
START: Final = "start the agents"
READ: Final = "read what it has"
REMOVE: Final = "remove the agents"
DOING, DONE, FAILED = "doing", "done", "failed"


class Step:
    def __init__(self, name: str, at: float) -> None:
        self.name, self.at = name, at
        self.state, self.message = DOING, ""

    def say(self, message: str) -> None:
        self.message = message

    def share(self, done: int, total: int) -> None:
        """Shown by whoever looks next."""
        self.message = f"{100 * done // max(1, total)} %"

    def to_json(self) -> dict[str, Any]:
        return {"step": self.name, "state": self.state, "message": self.message, "at": self.at}


class Progress:
    def __init__(self, database: Database, host: SshHost, now: Callable[[], float]) -> None:
        self._database, self._host, self._now = database, host, now
        self._steps: list[Step] = []
        self._trouble = host.trouble
        """Of the last time, until this time goes better."""

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[Step]:
        step = Step(name, self._now())
        self._steps.append(step)
        await self._write()
        try:
            yield step
        except StokerError as error:
            step.state, step.message = FAILED, error.sentence
            self._trouble = str(error)
            await self._write()
            raise
        step.state = DONE

    async def ended(self) -> None:
        """All went well."""
        self._trouble = ""
        await self._write()

    async def _write(self) -> None:
        async with self._database.connection() as connection:
            steps = [one.to_json() for one in self._steps]
            await ssh_store.set_steps(connection, self._host, steps, self._trouble)
