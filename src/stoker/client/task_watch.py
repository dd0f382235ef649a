"""Waiting for tasks. Of a group, a label or the whole project the server keeps sums; single tasks are added up here."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stoker.client import task as tasks
from stoker.client.client import Client, Json
from stoker.client.task import ENDED, left
from stoker.core.errors import Unavailable

LONG_POLL_S: Final = 20.0
LONGEST_PAUSE_S: Final = 5.0
FIRST_LOOK_S: Final = 0.05
LOOK_S: Final = 1.0
MOST_OPEN: Final = 20
"""Single tasks that are looked at in one go once all have been seen: all have to end, so it may be the first ones."""

Away = Callable[[Unavailable], None]


@dataclass(frozen=True)
class Which:
    """The tasks that are meant: these, or those of a group, or those with a label (`key=value`); else all."""

    ids: tuple[str, ...] = ()
    group: str | None = None
    label: str | None = None


def statistics(client: Client, which: Which) -> Json:
    if len(which.ids) == 1:
        told: Json = client.get(client.at("tasks", which.ids[0], "statistics"))
        return told
    return _Single(client, which.ids).look(0.0) if which.ids else _Kept(client, which, "statistics").look(0.0)


def settled(told: Json) -> bool:
    """Whether nothing more will happen by itself: all have ended, or wait for held ones."""
    states, held = told["states"], told["held"]
    busy = states.get("running", 0) + states.get("pending_cancellation", 0)
    return left(told) == 0 or bool(held and not busy and states.get("available", 0) <= held)


def wait(
    client: Client,
    which: Which,
    *,
    timeout_s: float | None = None,
    look_s: float = LONG_POLL_S,
    seen: Callable[[Json], None] = lambda told: None,
    away: Away | None = None,
) -> Json:
    """Statistics of them when nothing is left that will end by itself, or as it is when the time is up.

    `seen` is told how it stands, at least every `look_s`. A server that goes away meanwhile is waited for, if somebody
    is told of it, but not one that never was there.
    """
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    source = _Single(client, which.ids) if which.ids else _Kept(client, which, "wait")
    told = source.look(0.0)
    seen(told)
    pause_s = 0.1
    while True:
        left_s = look_s if give_up_at is None else min(look_s, give_up_at - time.monotonic())
        if settled(told) or left_s <= 0:
            return told
        try:
            told = source.look(left_s)
        except Unavailable as error:
            if away is None:
                raise
            away(error)
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        else:
            seen(told)
            pause_s = 0.1


class _Kept:
    """Sums that the server keeps; it answers when all have ended, or after `patience_s`."""

    def __init__(self, client: Client, which: Which, route: str) -> None:
        self._client, self._path = client, client.at("tasks", route)
        self._query: dict[str, object] = {"group": which.group, "label": which.label}

    def look(self, patience_s: float) -> Json:
        query = self._query | {"timeout_s": round(patience_s, 3)}
        told: Json = self._client.get(self._path, query, answer_s=patience_s + 30.0)
        return told


class _Single:
    """Tasks that are asked for one by one, until each has ended."""

    def __init__(self, client: Client, ids: tuple[str, ...]) -> None:
        self._client = client
        self._seen: dict[str, Json] = {id: {} for id in ids}
        self._pause_s = FIRST_LOOK_S

    def look(self, patience_s: float) -> Json:
        """The pauses between looks grow: what takes long need not be known at once."""
        time.sleep(min(patience_s, self._pause_s))
        self._pause_s = min(LOOK_S, self._pause_s * 1.2) if patience_s else self._pause_s
        met = 0
        for id, task in list(self._seen.items()):
            if task.get("state") in ENDED or (task and met >= MOST_OPEN):
                continue
            self._seen[id] = tasks.get(self._client, id)
            met += self._seen[id]["state"] not in ENDED
        return _summed(list(self._seen.values()))


def _summed(seen: list[Json]) -> Json:
    ended = [task for task in seen if task["state"] == "terminated"]
    good = sum(task["exit_status"] == 0 or task["command"] is None for task in ended)
    codes = Counter(task["exit_status"] for task in ended if task["exit_status"] is not None)
    return {
        "total": len(seen),
        "states": dict(Counter(task["state"] for task in seen)),
        "succeeded": good,
        "failed": len(ended) - good,
        "held": sum(map(tasks.poisoned, seen)),
        "retries": sum(max(0, task["retry_count"] - 1) for task in seen),
        "lost": sum(task["crash_count"] for task in seen),
        "exit_codes": dict(codes),
        "throughput": 0.0,
        "seconds_left": None,
    }
