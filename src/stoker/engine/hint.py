"""Who may have something to do after a commit: names of loops, told in process and over NOTIFY."""

import asyncio
from collections.abc import Callable, Iterable

import asyncpg
import structlog

from stoker.core.commitment import Moved
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import S as J
from stoker.store.database import Database

CHANNEL = "stoker"
_OPENING = JOB_FINISHED | {J.SUBMITTED}
PLACEMENT, MANAGED, ERRANDS = "placement", "managed", "errands"

log = structlog.get_logger()


def hints(moved: Iterable[Moved]) -> frozenset[str]:
    """Placement cares for jobs that wait and room that opens; the scheduler of managed jobs for its slots."""
    names: set[str] = set()
    for one in moved:
        if one.kind == "instance" or (one.kind == "job" and one.after.state in _OPENING):
            names.add(PLACEMENT)
        elif one.kind == "managed_job":
            names.add(MANAGED)
    return frozenset(names)


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
            for name in (PLACEMENT, MANAGED, ERRANDS):
                self._wake(name)
            await ended.wait()
        finally:
            await connection.close()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        speaker, *names = str(payload).split()
        if speaker != str(self._owner()):
            for name in names:
                self._wake(name)
