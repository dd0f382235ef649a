"""Asking twice makes it once: what was made under a key is found again, and answered like the first time."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import asyncpg
from fastapi import Header
from pydantic import BaseModel

from stoker.core.errors import Conflict
from stoker.server.auth import Caller
from stoker.server.context import Context
from stoker.store import idempotency
from stoker.store.database import Connection
from stoker.store.idempotency import Claim, key_of

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Chosen by the client, for instance a UUID. The same request under the same key makes one thing, "
        "and is answered alike for a day.",
    ),
]


def digest_of(body: BaseModel) -> bytes:
    return hashlib.sha256(body.model_dump_json().encode()).digest()


def claim_of(caller: Caller, place: str, key: str, body: BaseModel, answer: object = None) -> Claim:
    """A key belongs to its user and to where it was used."""
    return Claim(key_of(caller.user_id, place, key), digest_of(body), json.dumps(answer))


async def made_before(context: Context, claim: Claim) -> Any | None:
    """What was made under this key; refused when it was used for something else."""
    async with context.database.connection() as connection:
        found = await idempotency.find(connection, claim.key)
    return None if found is None else answer_of(found, claim)


def answer_of(found: Claim, claim: Claim) -> Any:
    if found.digest != claim.digest:
        raise Conflict(
            "This Idempotency-Key was used for another request.",
            hint="Choose a new key for each thing that is to be made.",
            code="key_reused",
        )
    return json.loads(found.answer)


Make = Callable[[Connection, float], Awaitable[str]]
"""Makes something in a transaction and returns the id by which it is found again."""


async def once(context: Context, caller: Caller, place: str, key: str | None, body: BaseModel, make: Make) -> str:
    """Makes it, unless it was made under this key before; returns its id."""
    claim = claim_of(caller, place, key, body) if key else None
    for _ in range(2):
        if claim is not None and (before := await made_before(context, claim)) is not None:
            return str(before)
        try:
            async with context.database.transaction() as tx:
                now = context.engine.clock.now()
                id = await make(tx, now)
                if claim is not None:
                    await idempotency.add(tx, claim._replace(answer=json.dumps(id)), now)
            return id
        except asyncpg.UniqueViolationError as error:
            if claim is None or error.constraint_name != "idempotency_pkey":
                raise
            # The same request was faster by a moment: now it is found.
    raise Conflict("The same request is being carried out at this moment.", code="key_busy")
