"""The journal: what happened, oldest first, and what happens now."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from stoker.client.client import PAGE, Client, Json, Unreachable
from stoker.client.stream import SILENCE_S, events
from stoker.core.errors import Gone, Unavailable
from stoker.wire.event import GONE

PAUSE_S: Final = 1.0
Filters = Mapping[str, object]
"""As the server takes them: run, instance, fleet, by, since, until."""


def pages(client: Client, run: str | None, filters: Filters) -> Iterator[Json]:
    """Of a run the last one also has `troubles`: what is being tried for it now and fails."""
    asked: dict[str, object] = {**filters, "limit": PAGE}
    while True:
        page: Json = client.get(_path(client, run), asked)
        yield page
        if not page.get("next_cursor") or not page["items"]:
            return
        asked["cursor"] = page["next_cursor"]


def follow(client: Client, run: str | None, filters: Filters, away: Callable[[Unavailable], None]) -> Iterator[Json]:
    """The whole story of a run and then what happens, until it is over; of a project what happens, without end.

    Each event once, also when the server was away meanwhile; `Gone` when it was away for longer than it keeps them.
    """
    last = "0" if run is not None else ""
    while True:
        query = {**filters, **({"after": last} if last else {})}
        try:
            for said in events(client.stream(_path(client, run, "follow"), query, silence_s=SILENCE_S)):
                last = said.id or last
                if said.event == "end":
                    return
                if said.event == GONE:
                    error = json.loads(said.data)["error"]
                    raise Gone(error["message"], hint=error["hint"])
                if said.data:
                    yield json.loads(said.data)
            raise Unreachable("The server closed the stream of events.")
        except Unavailable as error:
            away(error)
            time.sleep(PAUSE_S)


def _path(client: Client, run: str | None, *rest: str) -> str:
    return client.at(*(("runs", run) if run is not None else ()), "events", *rest)
