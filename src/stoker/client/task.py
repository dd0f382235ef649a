"""Swarm tasks and their workers, as a person's program asks for them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from stoker.client.client import Client, Json
from stoker.client.upload import line, post_lines
from stoker.core.errors import Broken, NotFound, UserError
from stoker.core.limits import MOST_ITEMS

ENDED: Final = frozenset({"terminated", "cancelled"})
SHORT_IDS: Final = MOST_ITEMS
"""A beginning of an id is looked for among so many of the latest tasks: one page."""
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_BEGINNING: Final = re.compile(r"[0-9a-f][0-9a-f-]{3,35}", re.IGNORECASE)


def poisoned(task: Json) -> bool:
    """It waits for somebody to let it go. One that is held by the clock goes on by itself."""
    return bool(task.get("held") == "poison")


def add(client: Client, task: Json, *, key: str) -> Json:
    """The same key twice is one task."""
    created: Json = client.post(client.at("tasks"), task, key=key)
    return created


def add_lines(client: Client, lines: Iterable[bytes], *, key: str) -> Json | None:
    """All of them or none; None when there are none."""
    return post_lines(client, client.at("tasks"), lines, key=key)


def add_many(client: Client, tasks: Iterable[Json], *, key: str) -> Json | None:
    return add_lines(client, map(line, tasks), key=key)


def listed(
    client: Client,
    *,
    fields: Sequence[str] = (),
    most: int = 0,
    states: Iterable[str] = (),
    labels: Iterable[str] = (),
    **filters: Any,
) -> Iterator[Json]:
    """One after the other, the newest first unless `oldest`; of each the fields that are named."""
    asked = [(name, str(value).lower() if value is True else value) for name, value in filters.items() if value]
    asked += [("state", state) for state in states] + [("label", label) for label in labels]
    asked += [("fields", ",".join(fields))] if fields else []
    cursor, had = None, 0
    while True:
        limit = min(most - had, MOST_ITEMS) if most else MOST_ITEMS
        here = [*asked, ("limit", limit), *([("cursor", cursor)] if cursor else [])]
        page = client.get(f"{client.at('tasks')}?{urlencode(here)}")
        yield from page["items"]
        had += len(page["items"])
        cursor = page.get("next_cursor")
        if not cursor or not page["items"] or had == most:
            return


def get(client: Client, id: str) -> Json:
    task: Json = client.get(client.at("tasks", id))
    return task


def history(client: Client, id: str) -> list[Json]:
    """Every attempt, the first one first."""
    attempts: list[Json] = client.get(client.at("tasks", id, "history"))["items"]
    return attempts


def tree(client: Client, id: str) -> Json:
    """It and what continues it: `items`, and whether that is `complete`."""
    found: Json = client.get(client.at("tasks", id, "tree"))
    return found


def found(client: Client, ref: str) -> str:
    """The id of the task that is meant: by its id, by its name (the latest one), or by how its id begins."""
    if _ID.fullmatch(ref):
        return ref.lower()
    for task in listed(client, fields=("id", "name"), most=1, name=ref):
        if task["name"] == ref:
            return str(task["id"])
    if _BEGINNING.fullmatch(ref):
        latest = listed(client, fields=("id",), most=SHORT_IDS)
        near = [task["id"] for task in latest if task["id"].startswith(ref.lower())]
        if len(near) == 1:
            return str(near[0])
        if near:
            raise UserError(f"The ids of {len(near)} tasks begin with {ref}.", hint=f"Say more of it: {near[0]}")
        hint = f"Whole ids are always found, beginnings among the latest {SHORT_IDS} tasks."
        raise NotFound(f"There is no task {ref}.", hint=hint)
    raise NotFound(f"There is no task {ref}.", hint="`stoker task list` shows what there is.")


def cancel(client: Client, selection: Mapping[str, object]) -> Json:
    told: Json = client.post(client.at("tasks", "cancel"), dict(selection))
    return told


def retry(client: Client, selection: Mapping[str, object], *, key: str) -> Json:
    told: Json = client.post(client.at("tasks", "retry"), dict(selection), key=key)
    return told


def left(told: Json) -> int:
    """How many have not ended."""
    ended = sum(int(told["states"].get(state, 0)) for state in ENDED)
    return max(0, int(told["total"]) - ended)


@dataclass(frozen=True)
class Piece:
    """Part of what an attempt wrote; `complete`: it has ended, and this was the last of it."""

    data: bytes
    next_offset: int
    complete: bool


def output(client: Client, id: str, *, stream: str, attempt: int | None = None, offset: int = 0) -> Piece:
    """What was written to `stdout` or `stderr` from there on, as much as one answer holds."""
    query = {"attempt": attempt, "stream": stream, "offset": offset}
    reply = client.ask("GET", client.at("tasks", id, "logs"), query=query)
    try:
        after = int(reply.headers["stoker-next-offset"])
    except (KeyError, ValueError):
        hint = "Is it as new as this client?"
        raise Broken("The server's answer does not say Stoker-Next-Offset.", hint=hint) from None
    return Piece(reply.body, after, reply.headers.get("stoker-log-complete") == "true")


def outputs(client: Client, id: str, *, stream: str, attempt: int | None = None) -> Iterator[bytes]:
    """All that it has written until now."""
    offset = 0
    while True:
        piece = output(client, id, stream=stream, attempt=attempt, offset=offset)
        if piece.data:
            yield piece.data
        if piece.complete or not piece.data:
            return
        offset = piece.next_offset


def workers(client: Client, *, everything: bool = False) -> Iterator[Json]:
    """Those that are there; `everything`: also those that have left or are lost."""
    return client.items(client.at("workers"), {"all": everything or None})


def worker(client: Client, ref: str) -> Json:
    """By its id, by its name (one that is active first), or by how its id begins."""
    if _ID.fullmatch(ref):
        one: Json = client.get(client.at("workers", ref))
        return one
    known = list(workers(client, everything=True))
    near = [each for each in known if each["name"] == ref] or [each for each in known if each["id"].startswith(ref)]
    active = [each for each in near if each["state"] == "active"] or near
    if not active:
        raise NotFound(f"There is no worker {ref}.", hint="`stoker workers -a` lists all.")
    if len(active) > 1:
        raise UserError(f"{len(active)} workers are called {ref}.", hint=f"Say the id: {active[0]['id']}")
    return active[0]
