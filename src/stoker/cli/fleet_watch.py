"""What is done on the machines of a fleet, as it happens: a line for each step, until all of them are up."""

import time
from collections.abc import Iterator
from typing import Final

from stoker.cli import screen
from stoker.cli.command import Session
from stoker.client.client import Json

LOOK_S: Final = 0.5
UP: Final = ("IDLE", "BUSY")


def watch(session: Session, name: str) -> None:
    """Ctrl-C ends it; what is done goes on."""
    client, said = session.client, set[tuple[str, str]]()
    while True:
        instances = list(client.items(client.at("instances"), {"fleet": name}))
        for one in instances:
            for line in _lines(one):
                if (one["id"], line) not in said:
                    said.add((one["id"], line))
                    screen.note(f"{place_of(one)}: {line}")
        wanted = _wanted(client.get(client.at("fleets", name)))
        up = sum(one["status"] in UP for one in instances)
        if up == len(instances) and up >= wanted:
            return
        time.sleep(LOOK_S)


def place_of(one: Json) -> str:
    return str(one["location"] or one["name"])


def now_of(one: Json) -> str:
    """What is being done there, or what stands in the way."""
    if one.get("trouble"):
        return str(one["trouble"])
    step = next((step for step in one.get("steps", ()) if step["state"] == "doing"), None)
    return ": ".join(filter(None, (step["step"], step["message"]))) if step else ""


def _lines(one: Json) -> Iterator[str]:
    for step in one["steps"]:
        if step["state"] == "done":
            yield f"{step['step']}: {step['message'] or 'done'}"
    if one["trouble"]:
        yield one["trouble"]
    if one["status"] in UP:
        yield "up"


def _wanted(fleet: Json) -> int:
    """How many machines it has at any time; of one that only grows when it has to, that is none."""
    if hosts := fleet["spec"].get("ssh_config", {}).get("hosts"):
        return len(hosts)
    return int(str(fleet["spec"].get("nodes", 1)).partition("..")[0] or 0)
