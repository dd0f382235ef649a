"""Up to which number the journal is settled, while transactions overlap, fail and take their time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from stoker.store import journal
from stoker.store.bundle import Bundle
from stoker.store.database import Connection, Database
from stoker.store.journal import Entry
from stoker.store.tail import Tail
from tests.conftest import Databases

SEQS = "SELECT seq FROM journal WHERE seq > $1 AND seq <= $2 ORDER BY seq"


async def write(tx: Connection, entries: int = 1) -> None:
    """As a commit does it."""
    bundle = Bundle()
    id = uuid4()
    journal.append(bundle, [Entry("run", id, id, "Created", None, "SUBMITTED", "", "", id)] * entries, 1.0)
    await bundle.write(tx)


@asynccontextmanager
async def under_way(db: Database) -> AsyncIterator[Connection]:
    """Somebody who has written, and has not committed before the block ends."""
    async with db.transaction() as tx:
        await write(tx)
        yield tx


async def commit(db: Database, entries: int = 1) -> None:
    async with db.transaction() as tx:
        await write(tx, entries)


async def test_what_commits_late_with_a_lower_number_is_waited_for(database: Databases) -> None:
    async with database() as db:
        tail = Tail(db)
        await commit(db)
        async with under_way(db):
            await commit(db)
            assert await tail.look() == (1, False)
            assert await tail.look() == (1, False)
        assert await tail.look() == (3, True)


async def test_what_will_never_come_is_not_waited_for(database: Databases) -> None:
    """A transaction that failed leaves a gap behind."""
    async with database() as db:
        tail = Tail(db)
        await commit(db)
        try:
            async with under_way(db):
                raise KeyError
        except KeyError:
            pass
        await commit(db)
        assert await tail.look() == (3, True)


async def test_a_gap_is_waited_for_only_as_long_as_somebody_could_fill_it(database: Databases) -> None:
    """Who began to write after the gap was seen has higher numbers, and holds up nobody."""
    async with database() as db:
        tail = Tail(db)
        async with under_way(db):
            await commit(db)
            assert await tail.look() == (0, False)
            late = under_way(db)
            await late.__aenter__()
        await commit(db)
        assert await tail.look() == (2, False)
        await late.__aexit__(None, None, None)
        assert await tail.look() == (4, True)


async def test_who_holds_a_transaction_open_without_a_gap_holds_up_nobody(database: Databases) -> None:
    async with database() as db, db.transaction() as tx:
        await tx.execute("INSERT INTO setting VALUES ('somebody', 'writes')")
        tail = Tail(db)
        await commit(db, 3)
        assert await tail.look() == (3, True)


async def test_a_tail_that_begins_late_looks_at_no_old_numbers(database: Databases) -> None:
    """A server that starts beside a journal of a million entries."""
    async with database() as db:
        await commit(db, 6_000)
        assert await Tail(db).look() == (6_000, True)


async def test_who_goes_on_from_place_to_place_reads_everything_once(database: Databases) -> None:
    """Many writers, some of which fail, commit in any order; two readers with tails of their own follow."""
    async with database() as db:
        dice = random.Random(7)

        async def writer(number: int) -> None:
            for _ in range(25):
                try:
                    async with db.transaction() as tx:
                        await write(tx, dice.randint(1, 4))
                        await asyncio.sleep(dice.random() * 0.01)
                        if dice.random() < 0.2:
                            raise KeyError
                except KeyError:
                    pass

        writing = asyncio.gather(*map(writer, range(5)))
        told: list[list[int]] = [[], []]

        async def reader(tail: Tail, told: list[int]) -> None:
            place, over = 0, False
            while not over:
                over = writing.done()
                settled = await tail.look()
                async with db.connection() as connection:
                    told += [row["seq"] for row in await connection.fetch(SEQS, place, settled.end)]
                place = settled.end
                await asyncio.sleep(0.002)

        await asyncio.gather(writing, *(reader(Tail(db), one) for one in told))
        async with db.connection() as connection:
            there = [row["seq"] for row in await connection.fetch(SEQS, 0, 2**62)]
        assert told == [there, there]
        assert len(there) < there[-1], "somebody failed"
