"""Workers of the swarm: who they are, how long they may be silent, what they hold."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stoker.core.errors import Conflict, NotFound
from stoker.core.graph import Held
from stoker.core.ids import ProjectId, WorkerId
from stoker.store.continuation import PLAN_AFRESH, Opened
from stoker.store.database import Connection, Record
from stoker.store.report import HELD_BY, give_back, lose

EXPIRED_AT_ONCE: Final = 100

REGISTER: Final = """
INSERT INTO worker (id, project_id, name, total, gpus, group_name, labels, version, ends_at,
                    created_at, seen_at, lease_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $11)
ON CONFLICT (id) DO UPDATE SET seen_at = $10, lease_until = $11, lost_at = NULL
WHERE worker.project_id = EXCLUDED.project_id AND worker.left_at IS NULL
"""

# A claim that stands was sent long ago, maybe by a machine that has lost its power: it renews nothing, and is served
# as long as the lease holds. All are locked in the order of their ids.
RENEW: Final = """
WITH known AS MATERIALIZED (
    SELECT id, project_id, id = ANY($1::uuid[]) AS speaks FROM worker
    WHERE left_at IS NULL
      AND (id = ANY($1::uuid[]) OR (id = ANY($4::uuid[]) AND lost_at IS NULL AND lease_until > $2))
    ORDER BY id FOR NO KEY UPDATE
), renewed AS (
    UPDATE worker SET seen_at = $2, lease_until = $3, lost_at = NULL FROM known WHERE worker.id = known.id AND speaks
)
SELECT id, project_id FROM known
"""

NEXT_LEASE_END: Final = "SELECT min(lease_until) FROM worker WHERE lost_at IS NULL"

EXPIRE: Final = """
UPDATE worker SET lost_at = $1 WHERE id IN (
    SELECT id FROM worker WHERE lost_at IS NULL AND lease_until <= $1
    ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id
"""

LEAVE: Final = """
UPDATE worker SET left_at = $2, lost_at = $2 WHERE id = $1 AND left_at IS NULL RETURNING id
"""

_SHOWN: Final = """
SELECT w.*, (SELECT count(*) FROM task t WHERE t.worker_id = w.id) AS running FROM worker w
"""
PAGE: Final = f"""{_SHOWN}
WHERE w.project_id = $1 AND ($2::uuid IS NULL OR w.id < $2) AND ($3 OR (w.left_at IS NULL AND w.lost_at IS NULL))
ORDER BY w.id DESC LIMIT $4
"""
HOLDS: Final = "SELECT EXISTS (SELECT FROM task WHERE id = $1 AND attempt = $2 AND worker_id = $3)"
GET: Final = f"{_SHOWN} WHERE w.id = $1"


class Profile(NamedTuple):
    """What a worker says of itself; `total` and `labels` are JSON text."""

    name: str
    total: str = "{}"
    gpus: Sequence[float] = ()
    group: str | None = None
    labels: str = "{}"
    version: str = ""
    ends_at: float | None = None


class Expired(NamedTuple):
    workers: int
    opened: Opened

    @property
    def available(self) -> int:
        return self.opened.count


class Beat(NamedTuple):
    opened: Opened
    gone: list[Held]
    """Listed by the worker, but not its own any more: it stops them and says nothing."""
    unwanted: list[Held]
    """Cancelled while it runs them: it stops them and reports."""

    @property
    def available(self) -> int:
        return self.opened.count


def unknown(worker: WorkerId) -> NotFound:
    return NotFound(f"There is no worker {worker}.", hint="Register it first; a worker that starts again is a new one.")


async def register(
    conn: Connection, worker: WorkerId, project: ProjectId, profile: Profile, lease_s: float, now: float
) -> None:
    """A worker that starts again takes a new id: what its predecessor held was started, and is lost, not given back.

    Said twice, because the answer was lost, it is one worker.
    """
    done = await conn.execute(REGISTER, worker, project, *profile, now, now + lease_s)
    if done == "INSERT 0 0":
        raise Conflict(f"Worker {worker} has left, or belongs to another project.", hint="Take a new id.")


async def renew(
    conn: Connection, speakers: Collection[WorkerId], lease_s: float, now: float, standing: Collection[WorkerId] = ()
) -> dict[WorkerId, ProjectId]:
    """The project of each that is known; the others have to register. Those who only stand are there while their
    lease holds, and it goes on running out."""
    rows = await conn.fetch(RENEW, list(speakers), now, now + lease_s, list(standing))
    return {WorkerId(row["id"]): ProjectId(row["project_id"]) for row in rows}


async def heartbeat(
    conn: Connection, worker: WorkerId, listed: Collection[Held], lease_s: float, now: float, number: int = 0
) -> Beat:
    """Renews the lease. What came with claims up to `number` and is not listed goes back: that answer was lost."""
    if not await renew(conn, [worker], lease_s, now):
        raise unknown(worker)
    await conn.execute(PLAN_AFRESH)
    rows = await conn.fetch(HELD_BY, [worker])
    held = {Held(row["id"], row["attempt"]): row for row in rows}
    listed = set(listed)
    unstarted = [(worker, one) for one, row in held.items() if one not in listed and row["claim"] <= number]
    answer = await give_back(conn, unstarted, now)
    unwanted = [one for one, row in held.items() if one in listed and row["state"] == "pending_cancellation"]
    return Beat(answer.opened, sorted(listed - held.keys()), unwanted)


async def next_lease_end(conn: Connection) -> float | None:
    """When the first of the leases that are not over yet ends; None: nobody has one."""
    moment: float | None = await conn.fetchval(NEXT_LEASE_END)
    return moment


async def expire(conn: Connection, now: float) -> Expired:
    """Workers whose lease is over lose what they hold. At most `EXPIRED_AT_ONCE` in one call."""
    await conn.execute(PLAN_AFRESH)
    workers = [row["id"] for row in await conn.fetch(EXPIRE, now, EXPIRED_AT_ONCE)]
    return Expired(len(workers), await lose(conn, workers, now) if workers else Opened())


async def leave(conn: Connection, worker: WorkerId, now: float, *, lost: bool) -> Opened:
    """In good order: what it still holds was never started. Or somebody knows that it is gone, and that is lost."""
    if not await conn.fetch(LEAVE, worker, now):
        return Opened()
    await conn.execute(PLAN_AFRESH)
    if lost:
        return await lose(conn, [worker], now)
    rows = await conn.fetch(HELD_BY, [worker])
    return (await give_back(conn, [(worker, Held(row["id"], row["attempt"])) for row in rows], now)).opened


async def page(conn: Connection, project: ProjectId, before: UUID | None, most: int, *, all: bool) -> list[Record]:
    return await conn.fetch(PAGE, project, before, all, most)


async def holds(conn: Connection, worker: WorkerId, held: Held) -> bool:
    found: bool = await conn.fetchval(HOLDS, held.task, held.attempt, worker)
    return found


async def get(conn: Connection, worker: WorkerId) -> Record | None:
    return await conn.fetchrow(GET, worker)
