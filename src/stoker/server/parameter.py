"""What many routes take: the context, the page of a list, and the run that a path names."""

from collections.abc import Sequence
from string import hexdigits
from typing import Annotated, Final, Never
from uuid import UUID

from fastapi import Depends, Path, Query, Request

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.limits import MOST_ITEMS
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.error import Forbidden
from stoker.store import run_list
from stoker.store.database import Connection
from stoker.store.run_list import Listed
from stoker.wire.name import is_name
from stoker.wire.user import Role

LEAST_ID_CHARS: Final = 4
"""Of the beginning of an id: what is shorter was meant otherwise."""
MOST_TOLD: Final = 5


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(_context)]

Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="How many at most.")]
Cursor = Annotated[
    str | None, Query(max_length=200, description="`next_cursor` of the page before; without it the list begins.")
]
RunRef = Annotated[
    str, Path(description="The name of a run (its latest one is meant), or an id or its beginning.", examples=["train"])
]
NameRef = Annotated[str, Path(description="A name.", examples=["ada"])]


def id_of(text: str) -> UUID | None:
    """Only as ids are written: a name that could be read as one otherwise stays a name."""
    try:
        id = UUID(text)
    except ValueError:
        return None
    return id if str(id) == text.lower() else None


def ids_of(text: str) -> tuple[UUID, UUID] | None:
    """The first and the last id that begin so; None when it is no beginning of an id, or too short for one."""
    digits = text.lower().replace("-", "")
    if len(text) < LEAST_ID_CHARS or len(digits) > 32 or not set(digits) <= set(hexdigits):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return (first, last) if str(first).startswith(text.lower()) or digits == text.lower() else None


def id_cursor(cursor: str | None) -> UUID | None:
    return None if cursor is None else id_of(cursor) or _bad_cursor()


def name_cursor(cursor: str | None) -> str:
    return "" if cursor is None else cursor if is_name(cursor) else _bad_cursor()


def number_cursor(cursor: str | None) -> int:
    return 0 if cursor is None else int(cursor) if cursor.isdecimal() and len(cursor) < 18 else _bad_cursor()


def _bad_cursor() -> Never:
    raise UserError("This is no cursor of this list.", hint="Send `next_cursor` of the page before, unchanged.")


async def find_run(tx: Connection, access: Access, ref: str) -> Listed:
    """By id, the latest of that name, or the one whose id begins so."""
    found = None
    if id := id_of(ref):
        found = await run_list.get(tx, access.project_id, id)
    elif is_name(ref):
        found = await run_list.latest(tx, access.project_id, ref)
    elif ids := ids_of(ref):
        found = _only(ref, await run_list.between(tx, access.project_id, *ids, MOST_TOLD + 1))
    if found is None:
        raise NotFound(
            f"There is no run {ref[:63]} in project {access.project}.", hint="`stoker ps -a` lists them all."
        )
    return found


def _only(ref: str, found: Sequence[Listed]) -> Listed | None:
    if len(found) > 1:
        told = ", ".join(f"{one.id} ({one.name})" for one in found[:MOST_TOLD])
        raise Conflict(
            f"Several runs have an id that begins with {ref}.",
            hint=f"Say more of it: {told}{' and others' if len(found) > MOST_TOLD else ''}.",
            code="ambiguous",
        )
    return found[0] if found else None


def may_change(access: Access, run: Listed, what: str) -> None:
    """Users their own runs, managers everybody's."""
    if run.user != access.user and not access.may(Role.MANAGER):
        raise Forbidden(
            f"{run.name} belongs to {run.user or 'nobody'}; {access.user} is {access.role} in project "
            f"{access.project} and may not {what} it.",
            hint=f"Ask {run.user or 'a manager'}, or a manager of the project.",
        )
