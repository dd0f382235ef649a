"""The journal: what happened, oldest first, and what happens now."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Final

from stoker.client.client import PAGE, Client, Json, Unreachable
from stoker.client.stream import SILENCE_S, events
from stoker.core.errors import Unavailable

PAUSE_S: Final = 1.0


def story(client: Client, run: str) -> Iterator[Json]:
    return (one for page in pages(client, run) for one in page["items"])


def pages(client: Client, run: str) -> Iterator[Json]:
    """The last one also has `troubles`: what is being tried for the run now and fails."""
    asked: dict[str, object] = {"limit": PAGE}
    while True:
        page: Json = client.get(client.at("runs", run, "events"), asked)
        yield page
        if not page.get("next_cursor") or not page["items"]:
            return
        asked["cursor"] = page["next_cursor"]


def follow(client: Client, run: str, away: Callable[[Unavailable], None]) -> Iterator[Json]:
    """The whole story and then what happens, until the server says that it is over; each event once."""
    last = "0"
    while True:
        query = {"after": last}
        try:
            for said in events(client.stream(client.at("runs", run, "events", "follow"), query, silence_s=SILENCE_S)):
                if said.event == "end":
                    return
                last = said.id or last
                yield json.loads(said.data)
            raise Unreachable("The server closed the stream of events.")
        except Unavailable as error:
            away(error)
            time.sleep(PAUSE_S)
