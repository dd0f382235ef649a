"""Plans made on the empty tables of a first start are still good when the tables have grown."""

import asyncio

from stoker.core.run_facts import S
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import ask
from tests.engine.desk import desk_on, state_of

READ_WHOLE = """
SELECT sum(seq_tup_read)::int FROM pg_stat_user_tables WHERE relname IN ('run', 'job', 'instance', 'outbox')
"""


async def test_commits_never_read_a_table_whole(database: Databases) -> None:
    async with database() as admin:
        async with await Database.connect(admin.url) as db:
            desk = await desk_on(db)
            births = await desk.births(40)
            await asyncio.gather(*map(desk.stop, births))
            assert await state_of(db, births[-1]) == S.TERMINATED
        # Sessions tell what they read when they end.
        assert await ask(admin, READ_WHOLE) == 0
