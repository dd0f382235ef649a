"""Who may have something to do after a commit: names of loops, told in process and over NOTIFY."""

import asyncio
from collections.abc import Callable, Iterable

import asyncpg
import structlog

from stoker.core.commitment import Moved
from stoker.core.errors import StokerError
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import S as J
from stoker.store.database import Database

CHANNEL = "stoker"
_OPENING = JOB_FINISHED | {J.SUBMITTED}
PLACEMENT, MANAGED, ERRANDS, RUNS, FLEETS = "placement", "managed", "errands", "runs", "fleets"
CLAIMS, CANCELS, MOMENTS = "claims", "cancels", "moments"
"""Of the swarm: tasks became available; some that run were cancelled; one has a deadline or begins later."""

log = structlog.get_logger()


def hints(moved: Iterable[Moved]) -> frozenset[str]:
    """Placement cares for jobs that wait and room that opens; the scheduler of managed jobs for its slots; people who
    watch a run, for its states."""
    names: set[str] = set()
    for one in moved:
        if one.kind in ("instance", "volume") or (one.kind == "job" and one.after.state in _OPENING):
            names.add(PLACEMENT)
        elif one.kind == "managed_job":
            names.add(MANAGED)
        elif one.kind == "run" and one.before is not None and one.before.state is not one.after.state:
            names.add(RUNS)
    return frozenset(names)


class Speaker:
    """Tells the other replicas, beside the commits and not within them: a transaction that notifies holds a lock on the
    whole database until it is on disk. What comes while it speaks is said in the next breath; alone, it is silent."""

    def __init__(self, database: Database, owner: Callable[[], int], heard: Callable[[], bool]) -> None:
        self._database, self._owner, self._heard = database, owner, heard
        self._names: set[str] = set()
        self._speaking: asyncio.Task[None] | None = None

    def say(self, names: Iterable[str]) -> None:
        if self._heard():
            self._names.update(names)
            if self._names and self._speaking is None:
                self._speaking = asyncio.get_running_loop().create_task(self._speak())

    async def _speak(self) -> None:
        try:
            while self._names:
                names, self._names = self._names, set()
                async with self._database.connection() as connection:
                    words = " ".join((str(self._owner()), *sorted(names)))
                    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, words)
        except StokerError as error:
            log.warning("other replicas are not told", error=str(error))
        finally:
            self._speaking = None


class Listener:
    """Hears the hints of the other replicas, on a connection of its own."""

    def __init__(self, database: Database, owner: Callable[[], int], wake: Callable[[str], None]) -> None:
        self._database, self._owner, self._wake = database, owner, wake

    async def run(self) -> None:
        """Losing the connection loses hints: the next one begins with a look at everything."""
        while True:
            try:
                await self._listen()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.warning("hints of other replicas are not heard", error=str(error))
            await asyncio.sleep(1.0)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._database.url)
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(CHANNEL, self._heard)
            # What was said while nobody listened, and what an interrupted commit left behind, is looked for now.
            for name in (PLACEMENT, MANAGED, ERRANDS, FLEETS, CLAIMS, CANCELS, MOMENTS):
                self._wake(name)
            await ended.wait()
        finally:
            await connection.close()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        speaker, *names = str(payload).split()
        if speaker != str(self._owner()):
            for name in names:
                self._wake(name)
