"""What workers say of the attempts in their hands: begun, seen, ended, never begun; and what becomes of those of
workers that are lost. Each counts only while the task is in that worker's hands, in that attempt.

All of it runs inside the caller's transaction. Locks: tasks in the order of their ids, with all that news may reach.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from stoker.core.graph import Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import State
from stoker.store.continuation import REACH, Opened, cancel_continuations, lock, release_continuations
from stoker.store.database import Connection, Record

END: Final = """
WITH told AS (
    SELECT * FROM unnest($2::uuid[], $3::uuid[], $4::integer[], $5::integer[], $6::boolean[], $7::float8[],
                         $8::float8[], $9::float8[], $10::float8[], $11::text[], $12::text[])
        AS told (worker_id, task_id, attempt, exit_status, stopped, time_started, time_terminated, cpu_s, memory_bytes,
                 message, result)
), ended AS (
    UPDATE task t SET
        state = CASE
            WHEN told.stopped THEN 'cancelled'
            WHEN told.exit_status = 0 OR t.state = 'pending_cancellation' OR t.retry_count >= t.max_retry_count
                THEN 'terminated'
            ELSE 'available'
        END,
        entered_at = $1, worker_id = NULL, exit_status = told.exit_status
    FROM told
    WHERE t.id = told.task_id AND t.worker_id = told.worker_id AND t.attempt = told.attempt
      AND (t.state = 'pending_cancellation' OR NOT told.stopped)
    RETURNING t.id, t.state, t.kind_id, t.scopes, told.*, (
        SELECT total / n FROM task_series g WHERE g.task_id = t.id AND g.attempt = told.attempt AND g.series = 'gpu'
    ) AS gpu
), closed AS (
    UPDATE execution x SET
        time_started = coalesce(e.time_started, x.time_started), time_terminated = coalesce(e.time_terminated, $1),
        exit_status = e.exit_status, outcome = CASE WHEN e.stopped THEN 'cancelled' ELSE 'ended' END,
        cpu_s = e.cpu_s, memory_bytes = e.memory_bytes, gpu = e.gpu, message = e.message, result = e.result
    FROM ended e WHERE x.task_id = e.id AND x.attempt = e.attempt
), measured AS (
    INSERT INTO task_delta (scope, measure, bucket, n, total)
    SELECT scope, measure, bucket, count(*), sum(value)
    FROM ended CROSS JOIN LATERAL unnest(scopes) AS scope CROSS JOIN LATERAL (VALUES
        (3, task_bucket(time_terminated - time_started), time_terminated - time_started),
        (4, task_bucket(memory_bytes), memory_bytes),
        (5, task_bucket(cpu_s), cpu_s),
        (6, exit_status, 0),
        (9, task_bucket(gpu), gpu)
    ) AS figure (measure, bucket, value)
    WHERE bucket IS NOT NULL AND value IS NOT NULL GROUP BY 1, 2, 3
)
SELECT id, state, attempt, kind_id, worker_id, coalesce(exit_status = 0 AND NOT stopped, false) AS succeeded,
       false AS held
FROM ended
"""

GIVE_BACK: Final = """
WITH back AS (
    UPDATE task t SET
        state = CASE t.state WHEN 'running' THEN 'available' ELSE 'cancelled' END,
        entered_at = $1, worker_id = NULL, retry_count = retry_count - 1
    FROM unnest($2::uuid[], $3::uuid[], $4::integer[]) AS unstarted (worker_id, task_id, attempt)
    WHERE t.id = unstarted.task_id AND t.worker_id = unstarted.worker_id AND t.attempt = unstarted.attempt
    RETURNING t.id, t.state, t.attempt, t.kind_id, t.scopes, t.retry_count, unstarted.worker_id
), dropped AS (
    DELETE FROM execution x USING back WHERE x.task_id = back.id AND x.attempt = back.attempt
), unmeasured AS (
    -- The claim has counted it as a further attempt.
    INSERT INTO task_delta (scope, measure, bucket, n)
    SELECT scope, 8, 0, -count(*) FROM back CROSS JOIN LATERAL unnest(scopes) AS scope WHERE retry_count > 0 GROUP BY 1
)
SELECT id, state, attempt, kind_id, worker_id, false AS succeeded, false AS held FROM back
"""

LOSE: Final = """
WITH lost AS (
    UPDATE task SET
        state = CASE
            WHEN state = 'pending_cancellation' THEN 'cancelled'
            WHEN retry_count < max_retry_count THEN 'available'
            ELSE 'terminated'
        END,
        hold = CASE WHEN state = 'running' AND retry_count < max_retry_count AND crash_count + 1 >= crash_limit
            THEN 'poison' ELSE hold END,
        entered_at = greatest(entered_at, $1), worker_id = NULL, crash_count = crash_count + 1, exit_status = NULL
    WHERE worker_id = ANY($2::uuid[])
    RETURNING id, state, attempt, entered_at, kind_id, hold, scopes
), closed AS (
    UPDATE execution x SET time_terminated = lost.entered_at, outcome = 'lost'
    FROM lost WHERE x.task_id = lost.id AND x.attempt = lost.attempt
), measured AS (
    INSERT INTO task_delta (scope, measure, bucket, n)
    SELECT scope, 7, 0, count(*) FROM lost CROSS JOIN LATERAL unnest(scopes) AS scope GROUP BY 1
)
SELECT id, state, attempt, kind_id, false AS succeeded, hold IS NOT NULL AS held FROM lost
"""

STARTED: Final = """
UPDATE execution x SET time_started = told.time_started
FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::float8[]) AS told (worker_id, task_id, attempt, time_started)
WHERE x.task_id = told.task_id AND x.attempt = told.attempt AND x.worker_id = told.worker_id AND x.outcome IS NULL
"""

KEEP_OUTPUT: Final = """
INSERT INTO task_output (task_id, attempt, stdout, stderr)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bytea[], $4::bytea[]) ON CONFLICT DO NOTHING
"""

HELD_BY: Final = "SELECT id, attempt, state, claim, worker_id FROM task WHERE worker_id = ANY($1::uuid[])"

STATES_OF: Final = "SELECT id, state FROM task WHERE id = ANY($1::uuid[])"


class End(NamedTuple):
    """How an attempt ended. `stopped`: by its worker, because it was asked to; else the process ended by itself."""

    held: Held
    exit_status: int | None
    stopped: bool = False
    time_started: float | None = None
    time_terminated: float | None = None
    cpu_s: float | None = None
    memory_bytes: float | None = None
    message: str = ""
    result: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""


class Answer(NamedTuple):
    opened: Opened
    """What can be claimed because of this."""
    refused: dict[tuple[WorkerId, Held], State | None]
    """News of what is not the worker's any more, with the state the task is in now; None: there is no such task."""

    @property
    def available(self) -> int:
        return self.opened.count


Said = Sequence[tuple[WorkerId, End]]


async def report(conn: Connection, said: Said, now: float) -> Answer:
    """Many ends in one call. Of an attempt that is told twice the first word counts."""
    first: dict[tuple[WorkerId, Held], End] = {}
    for worker, end in said:
        first.setdefault((worker, end.held), end)
    ends = list(first.values())
    if not ends:
        return Answer(Opened(), {})
    # Whether a failure is final is known under the lock only, so what it might reach is locked with it.
    deep = [end.stopped or end.exit_status != 0 for end in ends]
    await lock(conn, (), REACH, [end.held.task for end in ends], deep, until_closed=any(deep))
    ended = await conn.fetch(
        END,
        now,
        [worker for worker, _ in first],
        [end.held.task for end in ends],
        [end.held.attempt for end in ends],
        [end.exit_status for end in ends],
        [end.stopped for end in ends],
        [end.time_started for end in ends],
        [end.time_terminated for end in ends],
        [end.cpu_s for end in ends],
        [end.memory_bytes for end in ends],
        [end.message for end in ends],
        [end.result for end in ends],
    )
    await _keep_output(conn, ends, ended)
    return Answer(await follow(conn, ended, now), await _refused(conn, first, ended))


async def _keep_output(conn: Connection, ends: Iterable[End], ended: Sequence[Record]) -> None:
    spoke = [end for end in ends if end.stdout or end.stderr]
    if not spoke:
        return
    accepted = {Held(row["id"], row["attempt"]) for row in ended}
    kept = [end for end in spoke if end.held in accepted]
    await conn.execute(
        KEEP_OUTPUT,
        [end.held.task for end in kept],
        [end.held.attempt for end in kept],
        [end.stdout for end in kept],
        [end.stderr for end in kept],
    )


async def give_back(conn: Connection, unstarted: Collection[tuple[WorkerId, Held]], now: float) -> Answer:
    """Their workers never started these: they leave no record and cost no attempt."""
    if not unstarted:
        return Answer(Opened(), {})
    helds = [held for _, held in unstarted]
    ids = [held.task for held in helds]
    # One whose cancellation is pending ends here, and takes its descendants with it.
    await lock(conn, (), REACH, ids, [True] * len(ids), until_closed=True)
    workers = [worker for worker, _ in unstarted]
    back = await conn.fetch(GIVE_BACK, now, workers, ids, [held.attempt for held in helds])
    return Answer(await follow(conn, back, now), await _refused(conn, unstarted, back))


async def lose(conn: Connection, workers: Sequence[WorkerId], now: float) -> Opened:
    """What these workers hold moves on."""
    ids = [row["id"] for row in await conn.fetch(HELD_BY, workers)]
    if not ids:
        return Opened()
    await lock(conn, (), REACH, ids, [True] * len(ids), until_closed=True)
    return await follow(conn, await conn.fetch(LOSE, now, workers), now)


async def started(conn: Connection, news: Collection[tuple[WorkerId, Held, float]]) -> None:
    if news:
        workers, helds, times = zip(*news, strict=True)
        await conn.execute(STARTED, workers, [held.task for held in helds], [held.attempt for held in helds], times)


async def follow(conn: Connection, left: Sequence[Record], now: float) -> Opened:
    """What left a worker's hands releases its continuations, cancels them, or is available again."""
    succeeded: list[TaskId] = [row["id"] for row in left if row["succeeded"]]
    failed: list[TaskId] = [row["id"] for row in left if not row["succeeded"] and row["state"] != "available"]
    again = [row["kind_id"] for row in left if row["state"] == "available" and not row["held"]]
    await cancel_continuations(conn, failed, now)
    return Opened(len(again), frozenset(again)) | await release_continuations(conn, succeeded, now)


async def _refused(
    conn: Connection, news: Collection[tuple[WorkerId, Held]], accepted: Sequence[Record]
) -> dict[tuple[WorkerId, Held], State | None]:
    if len(accepted) == len(news):
        return {}
    done = {(row["worker_id"], Held(row["id"], row["attempt"])) for row in accepted}
    late = [one for one in news if one not in done]
    states = {row["id"]: State(row["state"]) for row in await conn.fetch(STATES_OF, [held.task for _, held in late])}
    return {(worker, held): states.get(held.task) for worker, held in late}


FIELDS: Final = {
    "time_started": "UPDATE execution SET time_started = $4",
    "time_terminated": "UPDATE execution SET time_terminated = $4",
    "exit_status": "UPDATE execution SET exit_status = $4",
}
_OF_ATTEMPT: Final = """
FROM task t WHERE t.id = $1 AND t.worker_id = $2 AND t.attempt = $3
  AND execution.task_id = t.id AND execution.attempt = t.attempt RETURNING execution.attempt
"""
HOLDER: Final = "SELECT state, attempt, worker_id FROM task WHERE id = $1 AND project_id = $2"


async def set_field(conn: Connection, worker: WorkerId, held: Held, field: str, value: float | int) -> bool:
    """One thing that a worker says of the attempt in its hands; False: it is not in its hands."""
    return bool(await conn.fetch(f"{FIELDS[field]} {_OF_ATTEMPT}", held.task, worker, held.attempt, value))


async def holder(conn: Connection, project: ProjectId, id: TaskId) -> Record | None:
    """Its state, its attempt, and who has it."""
    return await conn.fetchrow(HOLDER, id, project)
