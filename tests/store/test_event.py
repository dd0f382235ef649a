"""A journal of many entries is read by its indexes, whatever is asked, also where its clock went back."""

import json
import math
import random
from uuid import UUID, uuid4

from stoker.core.ids import ProjectId
from stoker.store import event as store
from stoker.store.database import Connection
from stoker.store.event import OF_FAMILY, OF_PERSON, OF_SCOPES, Wanted
from tests.conftest import Databases

ROWS = 100_000
LOUD, QUIET = ProjectId(uuid4()), ProjectId(uuid4())

FILL = """
INSERT INTO journal (at, kind, id, family, event, target, note, by, scope)
SELECT n, 'run', gen_random_uuid(), gen_random_uuid(), 'Created', 'SUBMITTED', '',
       CASE WHEN n % 10007 = 0 THEN 'ada' ELSE '' END,
       CASE WHEN n % 9973 = 0 THEN $2::uuid ELSE $1::uuid END
FROM generate_series(1, $3::int) AS n
"""


async def filled(tx: Connection, rows: int = ROWS) -> None:
    await tx.execute(FILL, LOUD, QUIET, rows)
    await tx.execute("ANALYZE journal")


async def touched(tx: Connection, statement: str, *arguments: object) -> int:
    """How many pages a question reads."""
    plan = json.loads(await tx.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *arguments))
    node = plan[0]["Plan"]
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


async def test_no_question_reads_more_than_its_page(database: Databases) -> None:
    """The beginning, the middle and the end; of a quiet project, of what one person did, of an hour long ago."""
    async with database() as db, db.transaction() as tx:
        await filled(tx)
        family = await tx.fetchval("SELECT family FROM journal WHERE seq = $1", ROWS // 2)
        every = (-math.inf, math.inf)
        hour = (ROWS / 2, ROWS / 2 + 10)
        asked: list[tuple[str, *tuple[object, ...]]] = [
            (OF_FAMILY, family, 0, 2**62, None, *every, 50),
            *((OF_SCOPES, LOUD, None, after, 2**62, None, *every, 50) for after in (0, ROWS // 2, ROWS - 1)),
            (OF_SCOPES, LOUD, None, 0, 2**62, "", *every, 50),
            (OF_SCOPES, QUIET, None, 0, 2**62, None, *every, 50),
            (OF_PERSON, LOUD, None, 0, 2**62, "ada", *every, 50),
            (OF_PERSON, LOUD, None, 0, 2**62, "ann", *every, 50),
            (OF_SCOPES, LOUD, None, 0, 2**62, None, *hour, 50),
        ]
        for statement, *arguments in asked:
            found = await touched(tx, statement, *arguments)
            assert found < 1_000, f"{found} pages for {arguments}"
        # As many as a server with many followers asks for at once: a plan for any value is as good as one for this.
        await tx.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        for statement, *arguments in asked:
            assert await touched(tx, statement, *arguments) < 1_000, arguments


async def test_a_clock_that_goes_back_hides_nothing(database: Databases) -> None:
    """Somebody sets the clock of the database back by an hour; whoever asks for the time since then gets all of it."""
    async with database() as db, db.transaction() as tx:
        dice, now = random.Random(3), 100_000.0
        for _ in range(300):
            now += dice.choice((1.0, 60.0, 600.0, -3_600.0))
            await tx.execute(
                "INSERT INTO journal (at, kind, id, family, event, target, note, by, scope)"
                " VALUES ($1, 'run', $2, $2, 'Created', 'SUBMITTED', '', '', $3)",
                now, uuid4(), LOUD,
            )  # fmt: skip
        rows = [(row["seq"], row["at"]) for row in await tx.fetch("SELECT seq, at FROM journal ORDER BY seq")]
        worst = max(max(at for _, at in rows[: n + 1]) - rows[n][1] for n in range(len(rows)))
        assert worst > 3_000.0
        times = [at for _, at in rows]
        for since in (min(times), 101_000.0, max(times) - 3_700.0, max(times)):
            for until in (since + 1.0, since + 4_000.0, math.inf):
                told = await store.read(tx, Wanted(LOUD, since=since, until=until), 0, 1_000)
                slack = worst <= store.CLOCK_SLACK_S
                expected = [seq for seq, at in rows if since <= at < until]
                assert not slack or [one.seq for one in told] == expected, (since, until)
                assert {one.seq for one in told} <= set(expected)


async def test_what_has_no_scope_is_shown_to_nobody(database: Databases) -> None:
    async with database() as db, db.transaction() as tx:
        await tx.execute(
            "INSERT INTO journal (at, kind, id, family, event, target, note, by)"
            " VALUES (1, 'task', $1, $1, 'CancelAsked', 'cancelled', '', '')",
            UUID(int=7),
        )
        assert await store.read(tx, Wanted(LOUD), 0, 10) == []
