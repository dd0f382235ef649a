"""Nodes on real machines of the dummy backend, as a person has them: they find each other, and they fall together."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client import log as client_log
from stoker.client.client import Json
from stoker.client.log import Which
from stoker.wire.frame import decode
from tests.process.crowd import Yard
from tests.process.stand import ROOT, Stand, until

pytestmark = pytest.mark.xdist_group("gang-dummy")

OFFERS = [
    {"name": "laptop", "cpu": 1, "memory": "1GB", "real": True, "capacity": 3},
    {"name": "early", "cpu": 2, "memory": "1GB", "real": True, "capacity": 1},
    {"name": "late", "cpu": 2, "memory": "1GB", "real": True, "price": 1, "launch_delay": "3s"},
]
FLEETS = {"lab": "nodes: 0..3\nresources: {cpu: ..1}", "uneven": "nodes: 0..2\nresources: {cpu: 2..}"}
STOPPED_S = 5.0


@pytest.fixture(scope="module")
def lab(shared_directory: Path) -> Iterator[Stand]:
    """A server on a laptop, and fleets that may launch machines of it."""
    stand = Stand(shared_directory / "lab")
    stand.home.mkdir(mode=0o711)
    (stand.home / "backends.yml").write_text(json.dumps({"dummy": {"offers": OFFERS}}))
    try:
        stand.start()
        for name, said in FLEETS.items():
            file = stand.home / f"{name}.yaml"
            file.write_text(f"type: fleet\nname: {name}\nbackends: [dummy]\nidle_duration: off\n{said}\n")
            applied(stand, file)
        yield stand
        for name in FLEETS:
            stand("fleet", "delete", "-y", "--force", name)
        until(lambda: not told(stand, "dummy", "machines"), "its machines are gone")
    finally:
        stand.clear()


def applied(stand: Stand, file: Path) -> None:
    done = stand("apply", "-y", "-d", "-f", str(file))
    assert done.returncode == 0, done.stderr


def told(stand: Stand, *words: str) -> Any:
    answer = stand(*words, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def log_of(stand: Stand, name: str, node: int) -> str:
    pieces = client_log.backlog(stand.client, name, Which(node=node))
    return b"".join(frame.data for piece in pieces for frame in decode(piece.frames)).decode()


def submissions(stand: Stand, name: str) -> list[Json]:
    jobs: list[Json] = stand.get(name)["jobs"]
    return sorted(jobs, key=lambda one: (one["submission"], one["node"]))


def processes(yard: Yard, name: str, submission: int) -> list[int]:
    """Of both nodes, by rank, once both have begun."""
    began = [yard.began(f"{name}-{submission}-{rank}") for rank in range(2)]
    return [pid for (pid,) in began] if all(began) else []


def starts(stand: Stand, yard: Yard, name: str, **retry: Any) -> list[Json]:
    """The first submission waits for ever, the second one is done at once. A file for each node: as root, every machine
    has a user of its own for the jobs of a project."""
    noted = yard.note(f"{name}-$STOKER_SUBMISSION-$STOKER_NODE_RANK")
    waits = "[ $STOKER_SUBMISSION = 2 ] || exec sleep 600"
    stand.submit(name, noted, waits, nodes=2, fleets=["lab"], retry={"max_attempts": 2, **retry})
    until(lambda: processes(yard, name, 1), "both nodes run")
    return submissions(stand, name)


def ends_again(stand: Stand, yard: Yard, name: str) -> None:
    """Both nodes were tried again, once each, together."""
    run = stand.finished(name)
    assert run["status"] == "DONE", run
    ended = [(one["submission"], one["node"], one["status"] == "DONE") for one in submissions(stand, name)]
    assert ended == [(1, 0, False), (1, 1, False), (2, 0, True), (2, 1, True)]
    assert len(processes(yard, name, 2)) == 2


def test_the_example_finds_its_peer_over_two_machines(lab: Stand) -> None:
    """It asks for no fleet: the server's own host is one machine, and two are needed."""
    applied(lab, ROOT / "examples" / "nodes.yaml")
    run = lab.finished("nodes")
    assert run["status"] == "DONE", run
    assert log_of(lab, "nodes", 0) == "rank 1 says hello\n"
    machines = {one["name"]: one["ip"] for one in told(lab, "dummy", "machines")}
    assert {one["instance_name"] for one in run["jobs"]} == set(machines)
    assert len(set(machines.values())) == 2


def test_a_killed_node_takes_the_other_with_it_and_both_are_tried_again(lab: Stand, yard: Yard) -> None:
    first = [one["id"] for one in starts(lab, yard, "killed", on_events=["error"])]
    began = time.monotonic()
    os.kill(processes(yard, "killed", 1)[1], signal.SIGKILL)
    until(lambda: lab.processes_of(first) == [], "the other one is stopped", STOPPED_S)
    assert time.monotonic() - began < STOPPED_S
    ends_again(lab, yard, "killed")
    (kept, fell) = submissions(lab, "killed")[:2]
    assert (fell["termination_reason"], fell["exit_signal"]) == ("CONTAINER_EXITED_WITH_ERROR", 9)
    assert kept["termination_reason"] == "TERMINATED_BY_SERVER"


def test_a_machine_that_vanishes_is_an_interruption_of_both(lab: Stand, yard: Yard) -> None:
    (kept, fell) = starts(lab, yard, "vanished", on_events=["interruption"])
    began = time.monotonic()
    assert lab("dummy", "vanish", fell["instance_name"]).returncode == 0
    until(lambda: lab.processes_of([kept["id"], fell["id"]]) == [], "nothing of it runs", STOPPED_S)
    assert time.monotonic() - began < STOPPED_S
    ends_again(lab, yard, "vanished")
    (kept, fell) = submissions(lab, "vanished")[:2]
    assert (fell["termination_reason"], fell["status"]) == ("INTERRUPTED_BY_NO_CAPACITY", "FAILED")
    again = submissions(lab, "vanished")[2:]
    assert fell["instance"] not in {one["instance"] for one in again}


def test_a_server_killed_while_one_node_waits_for_the_machine_of_the_other_starts_both(lab: Stand, yard: Yard) -> None:
    """One machine is up and its task accepted; that of the other is still on its way from the provider."""
    noted = yard.note("gathers-$STOKER_SUBMISSION-$STOKER_NODE_RANK")
    lab.submit("gathers", noted, nodes=2, fleets=["uneven"])

    def half() -> bool:
        return sorted(one["status"] for one in submissions(lab, "gathers")) == ["PROVISIONING", "PULLING"]

    until(half, "one of them waits for the other")
    launched = {one["instance"] for one in submissions(lab, "gathers")}
    lab.kill_server()
    lab.start()
    run = lab.finished("gathers")
    assert (run["status"], [one["submission"] for one in run["jobs"]]) == ("DONE", [1, 1]), run
    assert {one["instance"] for one in run["jobs"]} == launched, "no machine was launched twice"
    assert len(processes(yard, "gathers", 1)) == 2, "each node ran once"
