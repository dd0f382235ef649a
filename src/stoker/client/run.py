"""Runs, as a person's program asks for them."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from stoker.client.client import Client, Json
from stoker.core.errors import Unavailable

FINISHED: Final = frozenset({"DONE", "FAILED", "TERMINATED"})
LONG_POLL_S: Final = 20.0
LONGEST_PAUSE_S: Final = 5.0


def finished(run: Json) -> bool:
    return run["status"] in FINISHED


def plan(client: Client, configuration: Json) -> Json:
    """What would happen, and nothing does."""
    planned: Json = client.post(client.at("runs", "plan"), {"configuration": configuration})
    return planned


def submit(client: Client, configuration: Json, *, expected: Json | None, key: str) -> Json:
    """The same key twice is one run."""
    run: Json = client.post(client.at("runs"), {"configuration": configuration, "expected": expected}, key=key)
    return run


def listed(client: Client, *, most: int = 0, **filters: Any) -> Iterator[Json]:
    """Newest first."""
    return client.items(client.at("runs"), filters, most=most)


def get(client: Client, name: str) -> Json:
    run: Json = client.get(client.at("runs", name))
    return run


def jobs(client: Client, name: str, *, most: int = 0, **filters: Any) -> Iterator[Json]:
    """The latest submission of each, by replica and node."""
    return client.items(client.at("runs", name, "jobs"), {"latest": True, **filters}, most=most)


def retry(client: Client, name: str, *, key: str) -> Json:
    """The new run, which does again what did not get done."""
    run: Json = client.post(client.at("runs", name, "retry"), key=key)
    return run


def stop(client: Client, names: Iterable[str], *, abort: bool) -> list[Json]:
    stopped: list[Json] = client.post(client.at("runs", "stop"), {"runs": list(names), "abort": abort})["items"]
    return stopped


def stop_all(client: Client, *, abort: bool) -> list[Json]:
    stopped: list[Json] = client.post(client.at("runs", "stop"), {"all": True, "abort": abort})["items"]
    return stopped


def delete(client: Client, name: str) -> None:
    client.ask("DELETE", client.at("runs", name))


def why(client: Client, name: str) -> Json:
    told: Json = client.get(client.at("runs", name, "why"))
    return told


def trigger(client: Client, name: str) -> Json:
    told: Json = client.post(client.at("runs", name, "trigger"), {})
    return told


def steer(client: Client, name: str, act: str) -> Json:
    """`pause` or `resume` its schedule, `hold` or `release` it; the run as it is then."""
    run: Json = client.post(client.at("runs", name, act), {})
    return run


def wait(
    client: Client, name: str, *, timeout_s: float | None = None, away: Callable[[Unavailable], None] | None = None
) -> Json:
    """Returns the run when it has finished, or as it is when the time is up.

    A server that goes away meanwhile is waited for, if somebody is told of it.
    """
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = 0.1
    while True:
        left_s = LONG_POLL_S if give_up_at is None else max(0.0, min(LONG_POLL_S, give_up_at - time.monotonic()))
        try:
            path, query = client.at("runs", name, "wait"), {"timeout_s": round(left_s, 3)}
            run: Json = client.get(path, query, answer_s=left_s + 30.0)
        except Unavailable as error:
            if away is None or (give_up_at is not None and time.monotonic() >= give_up_at):
                raise
            away(error)
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            continue
        if finished(run) or (give_up_at is not None and time.monotonic() >= give_up_at):
            return run
