"""The journal as people read it: what a project may see, all of it or by run, instance, fleet, person and time.

In the order of its numbers. Each kind of question has an index that begins where the page does: an entry is found by
its family (the run or the instance), or by its scope and, for what people did, their names.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import FleetId, ProjectId, RunId, instance_name
from stoker.store import setting
from stoker.store.database import Connection, Record
from stoker.store.journal import EVERYBODY

CLOCK_SLACK_S = 3_700.0
"""By how much the time may go back from one entry to a later one: a clock that was set back by an hour, and a while."""

_COLUMNS = """
journal.seq, journal.at, journal.kind, journal.id, journal.family, journal.event, journal.source, journal.target,
journal.note, journal.by, spec.name AS run, job.replica, job.node, instance.backend, fleet.name AS fleet,
volume.name AS volume
"""

_NAMES = """
LEFT JOIN run_spec AS spec ON journal.kind IN ('run', 'job') AND spec.run_id = journal.family
LEFT JOIN job ON journal.kind = 'job' AND job.id = journal.id
LEFT JOIN instance ON journal.kind = 'instance' AND instance.id = journal.id
LEFT JOIN volume ON journal.kind = 'volume' AND volume.id = journal.id
LEFT JOIN fleet ON journal.kind IN ('instance', 'fleet') AND fleet.id = journal.scope
"""

OF_FAMILY = f"""
SELECT {_COLUMNS} FROM journal {_NAMES}
WHERE (journal.family, journal.seq) > ($1, $2) AND (journal.family, journal.seq) <= ($1, $3)
  AND ($4::text IS NULL OR journal.by = $4) AND journal.at + 0 >= $5 AND journal.at + 0 < $6
ORDER BY journal.family, journal.seq LIMIT $7
"""

_OF_SCOPES = f"""
WITH scopes AS (
    SELECT $1::uuid AS scope WHERE $2::uuid IS NULL
    UNION ALL SELECT '{EVERYBODY}'::uuid WHERE $2::uuid IS NULL
    UNION ALL SELECT id FROM fleet WHERE (project_id IS NULL OR project_id = $1) AND ($2::uuid IS NULL OR id = $2)
), wanted AS MATERIALIZED (
    SELECT scope,
           greatest($3::bigint, CASE WHEN $6::double precision > '-infinity'
                                     THEN journal_place(scope, $6 - {CLOCK_SLACK_S}) - 1 END) AS low,
           least($4::bigint, CASE WHEN $7::double precision < 'infinity'
                                  THEN journal_place(scope, $7 + {CLOCK_SLACK_S}) END) AS high
    FROM scopes
)
SELECT {_COLUMNS} FROM wanted CROSS JOIN LATERAL (
    SELECT * FROM journal
    WHERE {{found}} AND journal.at + 0 >= $6 AND journal.at + 0 < $7
      AND NOT (journal.kind = 'instance'
               AND EXISTS (SELECT FROM host WHERE host.instance_id = journal.id AND host.project_id <> $1))
    ORDER BY {{order}} LIMIT $8
) AS journal {_NAMES}
ORDER BY journal.seq LIMIT $8
"""
"""Where the time begins and ends is looked up once a scope, and not for each entry; the index of times, which is for
retention and knows of no order, is kept out of it by `+ 0`."""

OF_SCOPES = _OF_SCOPES.format(
    found="""
    (journal.scope, journal.seq) > (wanted.scope, wanted.low)
    AND (journal.scope, journal.seq) <= (wanted.scope, wanted.high) AND ($5::text IS NULL OR journal.by = $5)
    """,
    order="journal.scope, journal.seq",
)

OF_PERSON = _OF_SCOPES.format(
    found="""
    journal.by <> '' AND (journal.scope, journal.by, journal.seq) > (wanted.scope, $5::text, wanted.low)
    AND (journal.scope, journal.by, journal.seq) <= (wanted.scope, $5, wanted.high)
    """,
    order="journal.scope, journal.by, journal.seq",
)
"""All is compared as one row: that leaves no other index to choose, whatever is believed to be rare."""

TROUBLES = """
SELECT made_at, effect, error, tries, due_at FROM outbox WHERE family = $1 AND error <> '' ORDER BY made_at, id LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries; `family` is a run or an instance that the project may see. `by` '': the server itself."""

    project_id: ProjectId
    family: UUID | None = None
    fleet_id: FleetId | None = None
    by: str | None = None
    since: float = -math.inf
    until: float = math.inf

    @property
    def in_order(self) -> bool:
        """One thing's entries become visible in the order of their numbers: they are written under its lock."""
        return self.family is not None


class Told(NamedTuple):
    seq: int
    at: float
    kind: str
    id: UUID
    family: UUID
    event: str
    source: str | None
    target: str
    note: str
    by: str
    run: str | None
    replica: int | None
    node: int | None
    backend: str | None
    fleet: str | None
    volume: str | None

    @property
    def name(self) -> str:
        """What changed, as people call it; nothing where it is not there any more."""
        match self.kind:
            case "job" if self.run is not None and self.replica is not None:
                return f"{self.run}/{self.replica}-{self.node}"
            case "instance" if self.backend is not None:
                return instance_name(self.backend, self.id)
            case "fleet":
                return self.fleet or ""
            case "volume":
                return self.volume or ""
        return self.run or ""


class Trouble(NamedTuple):
    since: float
    effect: str
    error: str
    tries: int
    next_at: float


async def read(tx: Connection, wanted: Wanted, after: int, limit: int, upto: int = 2**62) -> list[Told]:
    """Oldest first, behind the number `after`."""
    since, until = wanted.since, wanted.until
    if wanted.family is not None:
        rows = await tx.fetch(OF_FAMILY, wanted.family, after, upto, wanted.by, since, until, limit)
    else:
        statement = OF_PERSON if wanted.by else OF_SCOPES
        places = (wanted.project_id, wanted.fleet_id, after, upto)
        rows = await tx.fetch(statement, *places, wanted.by, since, until, limit)
    return list(map(_told, rows))


def _told(row: Record) -> Told:
    return Told(*row.values())


async def forgotten(tx: Connection) -> int:
    """Entries up to this number may be gone: they were too old."""
    return int(await setting.get(tx, setting.FORGOTTEN) or 0)


async def troubles(tx: Connection, run_id: RunId) -> list[Trouble]:
    """What is being tried for this run and fails."""
    return [Trouble(*row.values()) for row in await tx.fetch(TROUBLES, run_id)]
