"""What workers do: they claim swarm tasks, report on them, give them back, and vanish.

All of it runs inside the caller's transaction. Locks: the worker's row first, then tasks in the order of
their ids; a claim never waits for a task. A worker lists in its heartbeats what it holds until the report of
its end was answered, and says the number of its last claim that was answered or given up: a claim it does
not know of yet is none of that heartbeat's business.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from stoker.core.errors import Conflict, NotFound
from stoker.core.graph import Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import State
from stoker.store.continuation import PLAN_AFRESH, REACH, cancel_continuations, lock, release_continuations
from stoker.store.database import Connection, Record

WORKERS_EXPIRED_AT_ONCE: Final = 100

REGISTER: Final = """
INSERT INTO worker (id, project_id, name, created_at, seen_at, lease_until) VALUES ($1, $2, $3, $4, $4, $5)
ON CONFLICT (id) DO UPDATE SET seen_at = $4, lease_until = $5, lost_at = NULL
WHERE worker.project_id = EXCLUDED.project_id
"""

RENEW: Final = """
UPDATE worker SET seen_at = $2, lease_until = $3, lost_at = NULL WHERE id = $1 RETURNING project_id
"""

CLAIM: Final = """
WITH picked AS (
    SELECT id FROM task WHERE state = 'available' AND project_id = $2
    ORDER BY priority DESC, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE task t SET state = 'running', entered_at = $4, worker_id = $1, claim = $5,
                      attempt = attempt + 1, retry_count = retry_count + 1
    FROM picked WHERE t.id = picked.id
    RETURNING t.id, t.attempt, t.priority
), recorded AS (
    INSERT INTO execution (task_id, attempt, worker_id, claimed_at) SELECT id, attempt, $1, $4 FROM claimed
)
SELECT c.id, c.attempt, s.name, s.command, s.requested_resources, s.estimated_runtime, s.max_termination_time, s.detail
FROM claimed c JOIN task_spec s ON s.task_id = c.id
ORDER BY c.priority DESC, c.id
"""

END: Final = """
WITH told AS (
    SELECT * FROM unnest($3::uuid[], $4::integer[], $5::integer[], $6::boolean[], $7::float8[], $8::float8[])
        AS told (task_id, attempt, exit_status, stopped, time_started, time_terminated)
), ended AS (
    UPDATE task t SET
        state = CASE
            WHEN told.stopped THEN 'cancelled'
            WHEN told.exit_status = 0 OR t.state = 'pending_cancellation' OR t.retry_count >= t.max_retry_count
                THEN 'terminated'
            ELSE 'available'
        END,
        entered_at = $1, worker_id = NULL
    FROM told
    WHERE t.id = told.task_id AND t.worker_id = $2 AND t.attempt = told.attempt
      AND (t.state = 'pending_cancellation' OR NOT told.stopped)
    RETURNING t.id, t.state, told.*
), closed AS (
    UPDATE execution x SET
        time_started = coalesce(e.time_started, x.time_started), time_terminated = coalesce(e.time_terminated, $1),
        exit_status = e.exit_status, outcome = CASE WHEN e.stopped THEN 'cancelled' ELSE 'ended' END
    FROM ended e WHERE x.task_id = e.id AND x.attempt = e.attempt
)
SELECT id, state, attempt, coalesce(exit_status = 0 AND NOT stopped, false) AS succeeded FROM ended
"""

GIVE_BACK: Final = """
WITH back AS (
    UPDATE task t SET
        state = CASE t.state WHEN 'running' THEN 'available' ELSE 'cancelled' END,
        entered_at = $1, worker_id = NULL, retry_count = retry_count - 1
    FROM unnest($3::uuid[], $4::integer[]) AS unstarted (task_id, attempt)
    WHERE t.id = unstarted.task_id AND t.worker_id = $2 AND t.attempt = unstarted.attempt
    RETURNING t.id, t.state, t.attempt
), dropped AS (
    DELETE FROM execution x USING back WHERE x.task_id = back.id AND x.attempt = back.attempt
)
SELECT id, state, attempt, false AS succeeded FROM back
"""

LOSE: Final = """
WITH lost AS (
    UPDATE task SET
        state = CASE
            WHEN state = 'pending_cancellation' THEN 'cancelled'
            WHEN retry_count < max_retry_count THEN 'available'
            ELSE 'terminated'
        END,
        entered_at = $1, worker_id = NULL, crash_count = crash_count + 1
    WHERE worker_id = ANY($2::uuid[])
    RETURNING id, state, attempt
), closed AS (
    UPDATE execution x SET time_terminated = $1, outcome = 'lost'
    FROM lost WHERE x.task_id = lost.id AND x.attempt = lost.attempt
)
SELECT id, state, attempt, false AS succeeded FROM lost
"""

HELD_BY: Final = "SELECT id, attempt, state, claim FROM task WHERE worker_id = ANY($1::uuid[])"

STATES_OF: Final = "SELECT id, state FROM task WHERE id = ANY($1::uuid[])"

NEXT_LEASE_END: Final = "SELECT min(lease_until) FROM worker WHERE lost_at IS NULL"

EXPIRE_WORKERS: Final = """
UPDATE worker SET lost_at = $1 WHERE id IN (
    SELECT id FROM worker WHERE lost_at IS NULL AND lease_until <= $1
    ORDER BY id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id
"""


class Work(NamedTuple):
    """One attempt, and all that its worker needs; `command`, `requested_resources` and `detail` are JSON text."""

    held: Held
    name: str
    command: str
    requested_resources: str
    estimated_runtime: float | None
    max_termination_time: float
    detail: str


class End(NamedTuple):
    """How an attempt ended. `stopped`: by its worker, because it was asked to; else the process ended by itself."""

    held: Held
    exit_status: int | None
    stopped: bool = False
    time_started: float | None = None
    time_terminated: float | None = None


class Answer(NamedTuple):
    available: int
    """How many tasks can be claimed because of this: the size of the hint for waiting claimers."""
    refused: list[tuple[Held, State | None]]
    """News of what is not the worker's any more, with the state the task is in now; None: there is no such task."""


class Expired(NamedTuple):
    workers: int
    available: int


class Beat(NamedTuple):
    available: int
    gone: list[Held]
    """Listed by the worker, but not its own any more: it stops them and says nothing."""
    unwanted: list[Held]
    """Cancelled while it runs them: it stops them and reports."""


async def register(
    conn: Connection, worker: WorkerId, project: ProjectId, name: str, lease_s: float, now: float
) -> None:
    """A worker that starts again takes a new id: what its predecessor held was started, and is lost, not given back.

    Said twice, because the answer was lost, it is one worker.
    """
    if await conn.execute(REGISTER, worker, project, name, now, now + lease_s) == "INSERT 0 0":
        raise Conflict(f"Worker {worker} belongs to another project.", hint="Take a new id.")


async def claim(conn: Connection, worker: WorkerId, n: int, lease_s: float, now: float, number: int = 0) -> list[Work]:
    """Up to `n` available tasks of the worker's project, highest priority first, then lowest id."""
    project = await _renew(conn, worker, lease_s, now)
    await conn.execute(PLAN_AFRESH)
    rows = await conn.fetch(CLAIM, worker, project, n, now, number)
    return [Work(Held(row[0], row[1]), *row[2:]) for row in rows]


async def report(conn: Connection, worker: WorkerId, ends: Iterable[End], now: float) -> Answer:
    """Many ends in one call. Each counts only while the task is in this worker's hands, in this attempt."""
    first: dict[Held, End] = {}
    for end in ends:
        first.setdefault(end.held, end)
    news = list(first.values())
    # Whether a failure is final is known under the lock only, so what it might reach is locked with it.
    deep = [end.stopped or end.exit_status != 0 for end in news]
    await lock(conn, (), REACH, [end.held.task for end in news], deep, until_closed=any(deep))
    ended = await conn.fetch(
        END,
        now,
        worker,
        [end.held.task for end in news],
        [end.held.attempt for end in news],
        [end.exit_status for end in news],
        [end.stopped for end in news],
        [end.time_started for end in news],
        [end.time_terminated for end in news],
    )
    return Answer(await _follow(conn, ended, now), await _refused(conn, [end.held for end in news], ended))


async def give_back(conn: Connection, worker: WorkerId, unstarted: Collection[Held], now: float) -> Answer:
    """The worker never started these: they leave no record and cost no attempt."""
    ids = [held.task for held in unstarted]
    # One whose cancellation is pending ends here, and takes its descendants with it.
    await lock(conn, (), REACH, ids, [True] * len(ids), until_closed=True)
    back = await conn.fetch(GIVE_BACK, now, worker, ids, [held.attempt for held in unstarted])
    return Answer(await _follow(conn, back, now), await _refused(conn, unstarted, back))


async def heartbeat(
    conn: Connection, worker: WorkerId, listed: Collection[Held], lease_s: float, now: float, number: int = 0
) -> Beat:
    """Renews the lease. What came with claims up to `number` and is not listed goes back: that answer was lost."""
    await _renew(conn, worker, lease_s, now)
    await conn.execute(PLAN_AFRESH)
    rows = await conn.fetch(HELD_BY, [worker])
    held = {Held(row["id"], row["attempt"]): row for row in rows}
    listed = set(listed)
    unstarted = [one for one, row in held.items() if one not in listed and row["claim"] <= number]
    answer = await give_back(conn, worker, unstarted, now) if unstarted else Answer(0, [])
    unwanted = [one for one, row in held.items() if one in listed and row["state"] == "pending_cancellation"]
    return Beat(answer.available, sorted(listed - held.keys()), unwanted)


async def next_lease_end(conn: Connection) -> float | None:
    """When the first of the leases that are not over yet ends; None: nobody has one."""
    moment: float | None = await conn.fetchval(NEXT_LEASE_END)
    return moment


async def expire(conn: Connection, now: float) -> Expired:
    """Workers whose lease is over lose what they hold. At most `WORKERS_EXPIRED_AT_ONCE` in one call."""
    await conn.execute(PLAN_AFRESH)
    workers = [row["id"] for row in await conn.fetch(EXPIRE_WORKERS, now, WORKERS_EXPIRED_AT_ONCE)]
    if not workers:
        return Expired(0, 0)
    ids = [row["id"] for row in await conn.fetch(HELD_BY, workers)]
    await lock(conn, (), REACH, ids, [True] * len(ids), until_closed=True)
    return Expired(len(workers), await _follow(conn, await conn.fetch(LOSE, now, workers), now))


async def _renew(conn: Connection, worker: WorkerId, lease_s: float, now: float) -> ProjectId:
    project: ProjectId | None = await conn.fetchval(RENEW, worker, now, now + lease_s)
    if project is None:
        raise NotFound(
            f"There is no worker {worker}.", hint="Register it first; a worker that starts again is a new one."
        )
    return project


async def _follow(conn: Connection, left: Sequence[Record], now: float) -> int:
    """What left a worker's hands releases its continuations, cancels them, or is available again."""
    succeeded: list[TaskId] = [row["id"] for row in left if row["succeeded"]]
    failed: list[TaskId] = [row["id"] for row in left if not row["succeeded"] and row["state"] != "available"]
    available = len(left) - len(succeeded) - len(failed)
    available += await release_continuations(conn, succeeded, now)
    await cancel_continuations(conn, failed, now)
    return available


async def _refused(
    conn: Connection, news: Collection[Held], accepted: Sequence[Record]
) -> list[tuple[Held, State | None]]:
    if len(accepted) == len(news):
        return []
    done = {Held(row["id"], row["attempt"]) for row in accepted}
    late = [held for held in news if held not in done]
    states = {row["id"]: State(row["state"]) for row in await conn.fetch(STATES_OF, [held.task for held in late])}
    return [(held, states.get(held.task)) for held in late]
