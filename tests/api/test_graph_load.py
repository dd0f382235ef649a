"""Graphs of swarm tasks on their way in, when others are in the way."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from uuid import UUID

from tests.api.conftest import Api, Apis, Reply, eventually
from tests.api.swarming import TASKS, submit

NDJSON = {"Content-Type": "application/x-ndjson"}
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def in_a_deadlock(a: Api, send: Callable[[], Awaitable[Reply]], first: str, second: str) -> Reply:
    """Somebody holds the second task and wants the first, and the graph that is sent the other way round."""

    async def waits() -> bool:
        async with a.context.database.connection() as connection:
            return bool(await connection.fetchval(WAITING))

    async with a.context.database.transaction() as rival:
        # So that it is the graph which PostgreSQL ends.
        await rival.execute("SET LOCAL deadlock_timeout = '60s'")
        await rival.execute("SELECT FROM task WHERE id = $1 FOR UPDATE", UUID(second))
        answer = asyncio.ensure_future(send())
        await eventually(waits, "the graph waits for the second task")
        await rival.execute("SELECT FROM task WHERE id = $1 FOR UPDATE", UUID(first))
    return await answer


async def test_a_whole_graph_that_gave_way_is_stored_again(api: Apis) -> None:
    async with api() as a:
        first, second = await submit(a.admin, *({"command": "x", "state": "inactive"} for _ in range(2)))
        body = {"tasks": [{"ref": "a", "command": "y", "continuations": [first, second]}, {"depends_on": ["a"]}]}
        made = await in_a_deadlock(a, lambda: a.admin.post(TASKS, body), first, second)
        assert (made.status, made.body["count"], made.body["edges"]) == (201, 2, 3)
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 4
        assert (await a.admin.get(f"{TASKS}/{first}")).body["pending_dependency_count"] == 1


async def test_a_streamed_graph_that_gave_way_leaves_nothing_and_may_be_sent_again(api: Apis) -> None:
    """What came cannot be said again by the server: the client is told to, and its key makes that safe."""
    async with api() as a:
        first, second = await submit(a.admin, *({"command": "x", "state": "inactive"} for _ in range(2)))
        lines = json.dumps({"command": "y", "continuations": [first, second]}).encode()

        async def send() -> Reply:
            return await a.admin.ask("POST", TASKS, data=lines, headers=NDJSON, key="k")

        refused = await in_a_deadlock(a, send, first, second)
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "busy", "1")
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 2
        made = await send()
        assert (made.status, made.body["count"]) == (201, 1)
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 3
