"""Doing again what did not succeed: ended tasks stay what they are, new ones take their places in the graph.

The new tasks have the edges that the old ones had among each other. What an old one waited for and what succeeded need
not be waited for; what has not ended yet, is.
"""

import json
from typing import Any
from uuid import UUID

from stoker.core.graph import Edge
from stoker.core.ids import TaskId
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.store import idempotency, task_copy
from stoker.store.continuation import Opened
from stoker.store.database import Connection
from stoker.store.idempotency import Claim, key_of
from stoker.store.task import Draft, Load
from stoker.wire.task import Retried

MOST_IDS_TOLD = 1_000
AT_ONCE = 500


async def again(context: Context, access: Access, ids: list[TaskId], key: str | None) -> Retried:
    found_key = None if key is None else key_of(access.caller.user_id, f"retries of {access.project_id}", key)
    if found_key is not None:
        async with context.database.connection() as connection:
            if (before := await idempotency.find(connection, found_key)) is not None:
                return Retried.model_validate(json.loads(before.answer))
    made: dict[UUID, UUID] = {}
    released: list[TaskId] = []

    async def act(tx: Connection, now: float) -> Opened:
        made.clear()
        released[:] = await task_copy.held(tx, ids)
        rows = await task_copy.unsuccessful(tx, ids)
        made.update((row["id"], context.engine.new_id()) for row in rows)
        opened = await _copied(tx, access, rows, made, now) if rows else Opened()
        if touched := [*made.values(), *released]:
            first, by = TaskId(touched[0]), access.user
            await context.engine.swarm.note_retried(tx, first, access.project_id, len(made), len(released), by, now)
        if found_key is not None:
            answer = _answer(made, released).model_dump_json()
            await idempotency.add(tx, Claim(found_key, b"", answer), now)
        return opened

    await context.engine.swarm.load(act, again=True)
    if released:
        await context.engine.swarm.let_go(released)
    return _answer(made, released)


def _answer(made: dict[UUID, UUID], released: list[TaskId]) -> Retried:
    told = made if len(made) <= MOST_IDS_TOLD else {}
    return Retried(ids=told, count=len(made), released=len(released))


async def _copied(tx: Connection, access: Access, rows: list[Any], made: dict[UUID, UUID], now: float) -> Opened:
    load = Load(tx, access.project_id, now)
    for first in range(0, len(rows), AT_ONCE):
        await load.add([_draft(row, access, TaskId(made[row["id"]])) for row in rows[first : first + AT_ONCE]])
    edges = await task_copy.edges_to(tx, list(made))
    renamed = (Edge(TaskId(made.get(source, source)), TaskId(made[target])) for source, target in edges)
    return await load.finish(renamed, forgiving=True)


def _draft(row: Any, access: Access, id: TaskId) -> Draft:
    options = json.loads(row["options"])
    labels = json.loads(row["labels"])
    return Draft(
        id,
        access.project_id,
        None,
        row["name"],
        row["command"],
        row["requested_resources"],
        tuple(json.dumps(option) for option in options[1:]),
        row["estimated_runtime"],
        row["max_termination_time"],
        row["max_retry_count"],
        row["crash_limit"],
        row["priority"],
        row["group_name"],
        row["labels"],
        tuple(f"{name}={value}" for name, value in labels.items()),
        row["key_name"] or None,
        None,
        None,
        row["id"],
        access.user,
        row["detail"],
    )
