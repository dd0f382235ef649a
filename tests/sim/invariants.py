"""The invariants of lifecycles §8, looked at after every commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

import asyncpg

from stoker.core.instance import INSTANCE
from stoker.core.job import JOB
from stoker.core.managed_job import MANAGED_JOB
from stoker.core.managed_task import ENDED
from stoker.core.run import RUN
from stoker.core.volume import VOLUME
from stoker.store import journal
from tests.sim.provider import MAX_NODES

if TYPE_CHECKING:
    from tests.sim.world import World

NEWS = "SELECT seq, kind, id, family, source, target, event FROM journal WHERE seq > $1 AND kind <> 'task' ORDER BY seq"
"""Of the swarm the journal tells bulk acts only; `mirror.py` looks after its tasks."""

TABLES = """
SELECT 'run', id, state FROM run
UNION ALL SELECT 'job', id, state FROM job
UNION ALL SELECT 'instance', id, state FROM instance
UNION ALL SELECT 'volume', id, state FROM volume
UNION ALL SELECT 'managed_job', id, state FROM managed_job
UNION ALL SELECT 'managed_task', id, state FROM managed_task
"""

BROKEN = """
SELECT 'the tally of run ' || run.id || ' is ' || run.tally::text || ', counted ' || counted.tally::text
FROM run JOIN LATERAL (
    SELECT ARRAY[
        count(*) FILTER (WHERE latest AND job.state = 'SUBMITTED'),
        count(*) FILTER (WHERE latest AND job.state IN ('PROVISIONING', 'PULLING')),
        count(*) FILTER (WHERE latest AND job.state = 'RUNNING'),
        count(*) FILTER (WHERE latest AND fate = 'done'),
        count(*) FILTER (WHERE latest AND fate = 'retry'),
        count(*) FILTER (WHERE latest AND fate = 'failed'),
        count(*) FILTER (WHERE latest AND fate = 'exhausted'),
        count(*) FILTER (WHERE latest AND fate = 'limit'),
        count(*) FILTER (WHERE latest AND fate = 'gone'),
        count(*) FILTER (WHERE latest AND fate = 'stopped'),
        count(*) FILTER (WHERE job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED'))
    ]::int[] AS tally FROM job WHERE run_id = run.id
) AS counted ON true
WHERE run.id = ANY($1::uuid[])
  AND (run.tally[1:11] <> counted.tally OR run.state IN ('TERMINATED', 'FAILED', 'DONE') AND counted.tally[11] > 0)
UNION ALL
SELECT 'job ' || id || ' ended before its cleanup: ' || cleanup FROM job
WHERE run_id = ANY($1::uuid[]) AND state IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED') AND cleanup <> 'release'
UNION ALL
SELECT 'job ' || id || ' ran from ' || running_at || ' to ' || exited_at || ', of which was heard at ' || entered_at
FROM job
WHERE run_id = ANY($1::uuid[]) AND state IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
  AND (exited_at < running_at OR exited_at > entered_at)
UNION ALL
SELECT 'run ' || run.id || ' has ' || count(DISTINCT replica) || ' replicas on machines, more than its max_parallel'
FROM run JOIN job ON job.run_id = run.id
WHERE run.id = ANY($1::uuid[]) AND policy ? 'max_parallel' AND job.instance_id IS NOT NULL
  AND job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
GROUP BY run.id HAVING count(DISTINCT replica) > (policy ->> 'max_parallel')::int
UNION ALL
SELECT 'job ' || one.id || ' began before all nodes of its replica were there'
FROM job AS one JOIN job AS other USING (run_id, replica, attempt)
WHERE one.run_id = ANY($1::uuid[]) AND one.running_at IS NOT NULL
  AND (other.state = 'SUBMITTED' OR other.state = 'PROVISIONING' AND other.shim)
UNION ALL
SELECT 'replica ' || replica || ' of run ' || run_id || ' is placed in part: ' || string_agg(state, ', ' ORDER BY node)
FROM job
WHERE run_id = ANY($1::uuid[]) AND latest AND state IN ('SUBMITTED', 'PROVISIONING', 'PULLING', 'RUNNING')
GROUP BY run_id, replica
HAVING bool_or(instance_id IS NULL) AND bool_or(instance_id IS NOT NULL)
    OR bool_or(state = 'SUBMITTED') AND bool_or(state <> 'SUBMITTED')
UNION ALL
SELECT 'replica ' || replica || ' of run ' || run_id || ' is spread over several fleets'
FROM job JOIN instance ON instance.id = job.instance_id
WHERE run_id = ANY($1::uuid[]) AND latest AND job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
GROUP BY run_id, replica HAVING count(DISTINCT coalesce(fleet_id, run_id)) > 1
UNION ALL
SELECT 'run ' || run.id || ' was tried ' || count(*) || ' times, more than its max_attempts'
FROM run JOIN job ON job.run_id = run.id AND job.fate = 'retry'
    AND NOT COALESCE(policy -> 'retry' -> 'on_exit_codes' @> to_jsonb(job.exit_code), false)
WHERE run.id = ANY($1::uuid[]) AND policy -> 'retry' ->> 'max_attempts' IS NOT NULL
  AND NOT policy ? 'schedule' AND NOT policy ? 'nodes' AND NOT policy ? 'service'
GROUP BY run.id, job.replica HAVING count(*) >= (policy -> 'retry' ->> 'max_attempts')::int
UNION ALL
SELECT 'two live submissions of ' || run_id || ' replica ' || replica || ' node ' || node
FROM job WHERE instance_id IS NOT NULL AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
GROUP BY run_id, replica, node HAVING count(*) > 1
UNION ALL
SELECT 'instance ' || instance.id || ' is held by ' || held.key || ', which does not live there'
FROM instance CROSS JOIN LATERAL jsonb_each(held) AS held
LEFT JOIN job ON job.id = held.key::uuid AND job.instance_id = instance.id
WHERE job.id IS NULL OR job.state IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
   OR job.blocks <> ARRAY(SELECT jsonb_array_elements_text(held.value)::int)
UNION ALL
SELECT 'job ' || job.id || ' holds nothing of its instance'
FROM job JOIN instance ON instance.id = job.instance_id
WHERE job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED') AND instance.state <> 'TERMINATED'
  AND NOT instance.held ? job.id::text
UNION ALL
SELECT 'instance ' || id || ' is ' || state || ' and holds ' || held::text
FROM instance WHERE state IN ('IDLE', 'TERMINATED') AND held <> '{}' OR state = 'BUSY' AND held = '{}'
UNION ALL
SELECT 'volume ' || volume.id || ' is held by ' || holder || ', which does not live'
FROM volume CROSS JOIN LATERAL unnest(volume.held) AS holder LEFT JOIN job ON job.id = holder
WHERE job.instance_id IS NULL OR job.state IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
   OR volume.instance_id <> job.instance_id
UNION ALL
SELECT 'job ' || job.id || ' has its machine and not its volume ' || volume.id
FROM job JOIN run ON run.id = job.run_id JOIN volume ON run.policy -> 'volumes' ? volume.id::text
WHERE job.run_id = ANY($1::uuid[]) AND job.instance_id IS NOT NULL
  AND job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED') AND NOT job.id = ANY(volume.held)
UNION ALL
SELECT 'fleet ' || fleet_id || ' has ' || count(*) || ' instances, more than it ever may'
FROM instance WHERE fleet_id IS NOT NULL AND state <> 'TERMINATED' GROUP BY fleet_id HAVING count(*) > $4
UNION ALL
SELECT 'slots: ' || launching || ' launching, ' || alive || ' alive'
FROM (
    SELECT count(*) FILTER (WHERE state = 'LAUNCHING') AS launching, count(*) FILTER (WHERE live_runs > 0) AS alive
    FROM managed_job
) AS counts
WHERE launching > $2 OR alive > $3
UNION ALL
SELECT 'two runs are out for managed task ' || owner_id FROM run
WHERE owner_id IS NOT NULL AND state NOT IN ('TERMINATED', 'FAILED', 'DONE') GROUP BY owner_id HAVING count(*) > 1
UNION ALL
SELECT 'managed job ' || managed_job.id || ' counts ' || live_runs || ' runs, ' || count(*) || ' are out'
FROM run JOIN managed_task ON managed_task.id = run.owner_id
JOIN managed_job ON managed_job.id = managed_task.managed_job_id
WHERE run.state NOT IN ('TERMINATED', 'FAILED', 'DONE')
GROUP BY managed_job.id, live_runs HAVING count(*) > live_runs
"""

FINISHED = {
    "run": {state.value for state in RUN.finished},
    "job": {state.value for state in JOB.finished},
    "instance": {state.value for state in INSTANCE.finished},
    "volume": {state.value for state in VOLUME.finished},
    "managed_job": {state.value for state in MANAGED_JOB.finished},
    "managed_task": {state.value for state in ENDED},
}
ASSIGNED_FROM = {"run": {"TERMINATING"}, "job": {"TERMINATING"}, "instance": {"TERMINATING"}, "volume": {"DELETING"}}


class Violation(AssertionError):
    pass


class Inspector:
    """Replays the journal beside the tables: they must tell the same story."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.seq = 0
        self.mirror: dict[Any, str] = {}
        self.exits: dict[UUID, int] = {}
        """How commands ended whose hosts were told to forget them."""
        self.written = False
        """Somebody appended to the journal: there may be something to look at."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        append = journal.append

        def heard(*entries: Any) -> None:
            self.written = True
            append(*entries)

        with patch.object(journal, "append", heard):
            yield

    async def after_commit(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        if not self.written:
            return
        self.written = False
        news = await connection.fetch(NEWS, self.seq)
        for row in news:
            self.seq = row["seq"]
            self._replay(row)
        if news:
            touched = {row["family"] for row in news}
            broken = await connection.fetchval(BROKEN, list(touched), *self.world.theme.slots, MAX_NODES)
            if broken is not None:
                raise Violation(broken)

    def _replay(self, row: asyncpg.Record) -> None:
        kind, id, source, target = row["kind"], row["id"], row["source"], row["target"]
        if self.mirror.get(id) != source:
            raise Violation(f"{kind} {id}: the journal goes from {source}, it was {self.mirror.get(id)}")
        if source != target:
            if source in FINISHED[kind]:
                raise Violation(f"{kind} {id} had finished as {source} and became {target} by {row['event']}")
            if target in FINISHED[kind] and kind in ASSIGNED_FROM and source not in ASSIGNED_FROM[kind]:
                raise Violation(f"{kind} {id} became {target} from {source}, not from the terminating phase")
        self.mirror[id] = target

    async def at_the_end(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """The whole journal, replayed, is the tables, and how commands ended is known."""
        for kind, id, state in await connection.fetch(TABLES):
            if self.mirror.get(id) != state:
                raise Violation(f"{kind} {id} is {state}, its journal says {self.mirror.get(id)}")
        for id, kept in await connection.fetch("SELECT id, exit_code FROM job WHERE id = ANY($1)", list(self.exits)):
            if kept != self.exits[id]:
                raise Violation(f"job {id} exited with {self.exits[id]}, and {kept} was kept")
