"""What each line is measured on: a server in a temporary home, workers as people start them, and graphs of tasks."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import psutil

from bench.stand import Stand, standing
from bench.swarm.process import started, until

SLOTS = 2
START_S = 60.0
PATIENCE_S = 600.0
PIECE_BYTES = 64 * 1024

Json = dict[str, Any]


@dataclass(frozen=True)
class Swarm:
    stand: Stand

    def accept(self, lines: bytes) -> Json:
        """One graph, streamed: the server hears its end only when it comes."""
        client, parts = self.stand.client, urlsplit(self.stand.client.url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {client.token}", "Content-Type": "application/x-ndjson"}
        pieces = (lines[at : at + PIECE_BYTES] for at in range(0, len(lines), PIECE_BYTES))
        connection.request("POST", client.at("tasks"), pieces, headers, encode_chunked=True)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 201:
            raise ValueError(f"the server said {answer.status}: {text[:300].decode(errors='replace')}")
        created: Json = json.loads(text)
        return created

    def all_ended(self, group: str, number: int) -> Json:
        """Waits for them, and is content only if each succeeded."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            query = urlencode({"group": group, "timeout_s": 60})
            told: Json = self.stand.client.get(f"{self.stand.client.at('tasks', 'wait')}?{query}", answer_s=90.0)
            if sum(told["states"].get(state, 0) for state in ("terminated", "cancelled")) >= number:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"of {number} tasks in {PATIENCE_S:.0f} s: {told['states']}")
        if told["succeeded"] != number:
            raise ValueError(f"{told['succeeded']} of {number} tasks succeeded")
        return told

    def post(self, body: Json) -> Json:
        created: Json = self.stand.client.post(self.stand.client.at("tasks"), body, key=str(uuid4()))
        return created

    def syncs(self) -> bool:
        """Whether its PostgreSQL syncs each commit: it is told so when it is started."""
        words = [" ".join(one.cmdline()) for one in self.stand.postgres()]
        return any("-c fsync=on -c synchronous_commit=on" in line for line in words)


@contextmanager
def swarm() -> Iterator[Swarm]:
    with standing() as stand:
        yield Swarm(stand)


@contextmanager
def worker(swarm: Swarm, slots: int = SLOTS) -> Iterator[psutil.Process]:
    """As a person starts one; it is there when the server lists it."""
    home = swarm.stand.home
    program = str(Path(sys.executable).with_name("stoker"))
    log = home / f"bench-worker-{uuid4().hex[:8]}.log"
    with started([program, "--home", str(home), "worker", "--cpus", str(slots)], log) as process:
        path = swarm.stand.client.at("workers")

        def listed() -> bool:
            if process.poll() is not None:
                raise subprocess.SubprocessError(f"the worker ended: {log.read_text()[-500:]}")
            return bool(swarm.stand.client.get(path)["items"])

        until(listed, START_S, "a worker", 0.05)
        yield psutil.Process(process.pid)


def lines(tasks: Iterable[Json]) -> bytes:
    return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in tasks)


def plain(number: int, group: str, **more: Any) -> bytes:
    """So many `/bin/true` that need nothing of each other."""
    one = lines([{"command": ["/bin/true"], "group": group, **more}])
    return one * number


def chain(number: int, group: str) -> bytes:
    def each() -> Iterator[Json]:
        for at in range(number):
            link: Json = {"ref": f"t{at}", "command": ["/bin/true"], "group": group}
            yield link | ({"depends_on": [f"t{at - 1}"]} if at else {})

    return lines(each())


def tree(number: int, group: str) -> tuple[bytes, int]:
    """Each waits for one or two that came before it; with the number of edges."""
    dice, edges = random.Random(7), 0

    def each() -> Iterator[Json]:
        nonlocal edges
        for at in range(number):
            one: Json = {"ref": f"t{at}", "name": f"step {at}", "command": ["sleep", "1000"], "group": group}
            if at >= 100:
                one["depends_on"] = [f"t{other}" for other in sorted({at // 2, dice.randrange(at)})]
                edges += len(one["depends_on"])
            yield one

    return lines(each()), edges


def diamonds(number: int, group: str) -> bytes:
    """Fours, one before two before one, in four priorities and two classes of resources."""
    dice = random.Random(number)

    def each() -> Iterator[Json]:
        for at in range(number // 4):
            edges = {"a": (f"b{at}", f"c{at}"), "b": (f"d{at}",), "c": (f"d{at}",), "d": ()}
            for name, continuations in edges.items():
                yield {
                    "ref": f"{name}{at}",
                    "command": ["/bin/true"],
                    "group": group,
                    "priority": dice.randrange(4),
                    "requested_resources": {"cpus": 1, "scratch": 1} if dice.random() < 0.5 else {"cpus": 1},
                    "continuations": continuations,
                }

    return lines(each())
