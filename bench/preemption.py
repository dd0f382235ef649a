"""A machine that its provider takes back: how soon after the notice its run runs on another one that was free.

The server is a real process. Machines of the dummy backend are simulated, which leaves what Stoker itself takes, or
real: an agent each, and a program that has to be stopped here and started there. The peer is the first start of the
same run, which has nothing to stop.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from bench.home import temporary_home
from bench.result import Result
from bench.stand import Stand, down, up
from stoker.client import run as runs

SIMULATED, REAL = 24, 6
"""Machines of each kind. An offer that preempts rests for longer and longer, so nothing counts on machines that come
after them: one is left free whenever one is taken."""
LIMIT_MS = 500.0
PATIENCE_S = 60.0
LOOK_S = 0.002
OFFERS = [
    {"name": "simulated", "cpu": 2, "memory": "4GB", "capacity": SIMULATED},
    {"name": "real", "cpu": 1, "memory": "1GB", "capacity": REAL, "real": True},
]
FLEETS = {"simulated": (SIMULATED, "2.."), "real": (REAL, "..1")}


def preemption() -> list[Result]:
    with temporary_home() as home:
        (home / "backends.yml").write_text(json.dumps({"dummy": {"offers": OFFERS}}))
        stand = up(home)
        try:
            for name, (nodes, cpu) in FLEETS.items():
                _fleet(stand, name, nodes, cpu)
            return [one for name, (nodes, _) in FLEETS.items() for one in _measured(stand, name, nodes - 1)]
        finally:
            for name in FLEETS:
                stand.client.ask("DELETE", stand.client.at("fleets", name), query={"force": True})
            _until(lambda: not stand.client.get("/api/dummy/machines")["items"], "its machines are gone")
            down(stand)


def _measured(stand: Stand, fleet: str, tries: int) -> list[Result]:
    started, moved = zip(*(_preempted_ms(stand, fleet) for _ in range(tries)), strict=True)
    peer, worst = statistics.median(started), max(moved)
    return [
        Result(
            f"preempted, running again on a free {fleet} machine, p50", statistics.median(moved), "ms",
            peer="its first start", ratio=statistics.median(moved) / peer,
        ),
        Result(f"  the same, worst of {tries}", worst, "ms", f"<= {LIMIT_MS:g} ms", ok=worst <= LIMIT_MS),
    ]  # fmt: skip


def _preempted_ms(stand: Stand, fleet: str) -> tuple[float, float]:
    """How long its first start took, and how long it took from the notice until it ran elsewhere."""
    configuration = {
        "type": "task", "commands": ["sleep 1000"], "fleets": [fleet], "retry": {"on_events": ["interruption"]},
    }  # fmt: skip
    begun = time.perf_counter()
    name = runs.submit(stand.client, configuration, expected=None, key=str(uuid4()))["name"]
    first = _until(lambda: _running(stand, name, ""), "it runs")
    started_ms = (time.perf_counter() - begun) * 1000
    begun = time.perf_counter()
    stand.client.post(f"/api/dummy/machines/{first}/preempt", {"notice": "30s"})
    _until(lambda: _running(stand, name, first), "it runs elsewhere")
    moved_ms = (time.perf_counter() - begun) * 1000
    runs.stop(stand.client, [name], abort=True)
    runs.wait(stand.client, name, timeout_s=PATIENCE_S)
    return started_ms, moved_ms


def _running(stand: Stand, name: str, besides: str) -> str:
    """On which machine, once it is another one than that."""
    job = max(runs.get(stand.client, name)["jobs"], key=lambda one: int(one["submission"]))
    machine: str = job["instance_name"] or ""
    return machine if job["status"] == "RUNNING" and machine != besides else ""


def _fleet(stand: Stand, name: str, nodes: int, cpu: str) -> None:
    fleet: dict[str, Any] = {
        "type": "fleet", "name": name, "backends": ["dummy"], "nodes": nodes, "resources": {"cpu": cpu},
        "idle_duration": "off",
    }  # fmt: skip
    stand.client.post(stand.client.at("fleets"), {"configuration": fleet})
    path = stand.client.at("fleets", name)
    _until(lambda: stand.client.get(path)["idle"] == nodes, "its machines are up")


def _until(ask: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := ask()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s in vain: {what}"
        time.sleep(LOOK_S)
    return found
