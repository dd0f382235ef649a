"""A graph of swarm tasks on its way in: stored while it comes, in one transaction, once however often it is sent."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import asyncpg

from stoker.core.errors import Conflict, Unavailable, UserError
from stoker.core.limits import MOST_BODY_BYTES
from stoker.engine import hint
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.graph import Graph
from stoker.server.idempotency import answer_of
from stoker.server.raw_body import parsed
from stoker.store import idempotency, task_kind
from stoker.store.continuation import Opened
from stoker.store.database import Connection
from stoker.store.idempotency import Claim, key_of
from stoker.store.task import Draft, Load
from stoker.store.turn import pieces
from stoker.wire.task import Created, NewTask

AT_ONCE: Final = 100
"""Tasks that are stored with one statement."""
READ_AT_ONCE: Final = 25
"""Before others have their turn: less than a millisecond."""
MOST_IDS_TOLD: Final = 1_000
PATIENCE_S: Final = 30.0
"""How long a client may be silent in the middle of its graph: it keeps a connection of the database."""

Lines = Sequence[bytes]
Act = Callable[[Connection, float], Awaitable[Opened]]


class Made(NamedTuple):
    created: Created
    before: bool = False


async def lines_of(stream: AsyncIterator[bytes]) -> AsyncIterator[Lines]:
    """Whole lines, some at a time."""
    rest = b""
    while True:
        try:
            async with asyncio.timeout(PATIENCE_S):
                piece = await anext(stream, None)
        except TimeoutError:
            raise UserError(
                f"Nothing came for {PATIENCE_S:.0f} s in the middle of the body.", code="too_slow"
            ) from None
        if piece is None:
            break
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MOST_BODY_BYTES:
            raise UserError(f"A line has more than {MOST_BODY_BYTES} bytes.", code="too_large")
        for first in range(0, len(lines), AT_ONCE):
            yield lines[first : first + AT_ONCE]
    if rest:
        yield [rest]


async def _add_all(load: Load, coming: AsyncIterator[list[Draft]]) -> None:
    """The next ones are read while PostgreSQL stores those before."""
    storing: asyncio.Task[None] | None = None
    try:
        async for drafts in coming:
            if storing is not None:
                await storing
            storing = asyncio.create_task(load.add(drafts))
        if storing is not None:
            await storing
    finally:
        if storing is not None:
            # Whatever stopped us: the connection is in use until then, and what it says now is nobody's business.
            await asyncio.gather(storing, return_exceptions=True)


class GraphLoad:
    def __init__(self, context: Context, access: Access, graph: Graph, key: str | None) -> None:
        self._context, self._access, self._graph = context, access, graph
        self._key = None if key is None else key_of(access.caller.user_id, f"tasks of {access.project_id}", key)

    async def whole(self, tasks: Sequence[NewTask], digest: bytes) -> Made:
        drafts: list[Draft] = []
        async for some in pieces(tasks, READ_AT_ONCE):
            drafts += map(self._graph.take, some)

        async def act(tx: Connection, now: float) -> Opened:
            load = Load(tx, self._access.project_id, now)
            for first in range(0, len(drafts), AT_ONCE):
                await load.add(drafts[first : first + AT_ONCE])
            return await self._finish(tx, load, digest, now)

        before = await self._before(digest)
        return before or await self._stored(act, digest, again=True)

    async def streamed(self, lines: AsyncIterator[Lines]) -> Made:
        if self._key is not None and await self._found() is not None:
            hash = hashlib.sha256()
            async for some in lines:
                for line in some:
                    hash.update(line.strip())
            before = await self._before(hash.digest())
            assert before is not None
            return before
        hash = hashlib.sha256()

        async def act(tx: Connection, now: float) -> Opened:
            load = Load(tx, self._access.project_id, now)
            async with aclosing(lines) as coming, aclosing(self._taken(coming, hash)) as taken:  # type: ignore[type-var]
                await _add_all(load, taken)
            if not len(load):
                raise UserError("There is no task in the body.", hint="Send one as JSON on each line.")
            return await self._finish(tx, load, hash.digest(), now)

        if self._context.graphs.locked():
            raise Unavailable("Other graphs are being stored.", code="overloaded", retry_after_s=2.0)
        async with self._context.graphs:
            return await self._stored(act, b"", again=False)

    async def _taken(self, coming: AsyncIterator[Lines], hash: "hashlib._Hash") -> AsyncGenerator[list[Draft], None]:
        number = 0
        async for some in coming:
            drafts = []
            async for few in pieces(some, READ_AT_ONCE):
                for line in few:
                    number += 1
                    if text := line.strip():
                        hash.update(text)
                        drafts.append(self._graph.take(parsed(NewTask, text, line=number)))
            if drafts:
                yield drafts

    async def _finish(self, tx: Connection, load: Load, digest: bytes, now: float) -> Opened:
        try:
            opened = await load.finish(self._graph.edges(), forgiving=True)
        except UserError as error:
            raise self._graph.in_their_words(error) if error.code == "cycle" else error from None
        await task_kind.set_keys(tx, self._access.project_id, self._graph.keys)
        ids, swarm = self._graph.ids, self._context.engine.swarm
        user, project = self._access.user, self._access.project_id
        await swarm.note_created(tx, ids[0], project, len(ids), self._graph.edge_count, user, now)
        self._created = Created(
            ids=tuple(ids) if len(ids) <= MOST_IDS_TOLD else (),
            count=len(ids),
            edges=self._graph.edge_count,
            available=opened.count,
        )
        if self._key is not None:
            answer = json.dumps(self._created.model_dump(mode="json"))
            await idempotency.add(tx, Claim(self._key, digest, answer), now)
        return opened

    async def _stored(self, act: Act, digest: bytes, *, again: bool) -> Made:
        try:
            await self._context.engine.swarm.load(act, again=again)
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name == "idempotency_pkey" and (before := await self._before(digest)) is not None:
                return before
            raise Conflict("One of these tasks exists already.", hint="Nothing was stored; use fresh ids.") from error
        if self._graph.has_moments:
            self._context.engine.tell(hint.MOMENTS)
        return Made(self._created)

    async def _found(self) -> Claim | None:
        assert self._key is not None
        async with self._context.database.connection() as connection:
            return await idempotency.find(connection, self._key)

    async def _before(self, digest: bytes) -> Made | None:
        if self._key is None or (found := await self._found()) is None:
            return None
        answer = answer_of(found, Claim(self._key, digest, ""))
        return Made(Created.model_validate(answer), before=True)
