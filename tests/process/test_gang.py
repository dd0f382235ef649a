"""Several nodes with real agents and real processes: they find each other, begin in order, and end together."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.client import log as client_log
from stoker.client.client import Json
from stoker.client.log import Which
from stoker.core.errors import UserError
from stoker.wire.frame import decode
from tests.process.crowd import Yard
from tests.process.several import Several
from tests.process.stand import ROOT, until

pytestmark = pytest.mark.xdist_group("gang")

TOLD = "echo $STOKER_NODE_RANK $STOKER_NODES_NUM $STOKER_NODES_IPS $STOKER_MASTER_NODE_IP $STOKER_NODE_GROUP"


@pytest.fixture(scope="module")
def several(shared_directory: Path) -> Iterator[Several]:
    """Three machines."""
    stand = Several(shared_directory / "several", machines=3)
    try:
        stand.start()
        yield stand
    finally:
        stand.clear()


def log_of(stand: Several, name: str, node: int, replica: int = 0) -> str:
    pieces = client_log.backlog(stand.client, name, Which(replica=replica, node=node))
    return b"".join(frame.data for piece in pieces for frame in decode(piece.frames)).decode()


def noted(yard: Yard, name: str) -> str:
    """Each node in a file of its own: as root every shim has its own user for the jobs of a project."""
    return yard.note(f"{name}-$STOKER_NODE_RANK")


def began_of(yard: Yard, name: str) -> list[int]:
    return [pid for node in range(3) for pid in yard.began(f"{name}-{node}")]


def jobs_of(stand: Several, name: str) -> list[Json]:
    jobs: list[Json] = stand.get(name)["jobs"]
    return jobs


def latest(stand: Several, name: str) -> list[Json]:
    found: list[Json] = stand.client.get(stand.client.at("runs", name, "jobs"), {"latest": True})["items"]
    return found


def statuses(stand: Several, name: str) -> set[str]:
    return {one["status"] for one in latest(stand, name)}


def began_by_node(stand: Several, name: str) -> dict[int, int]:
    """The number of the event by which each was known to run."""
    nodes = {one["id"]: one["node"] for one in jobs_of(stand, name)}
    events: list[Json] = stand.client.get(stand.client.at("runs", name, "events"))["items"]
    return {nodes[one["id"]]: one["seq"] for one in events if one["kind"] == "job" and one["target"] == "RUNNING"}


def test_each_node_knows_its_rank_and_where_the_others_are(several: Several) -> None:
    run = several.run("ranks", TOLD, nodes=2)
    assert (run["status"], run["counts"]["done"]) == ("DONE", 2)
    assert len({one["instance"] for one in run["jobs"]}) == 2, "each on a whole machine of its own"
    said = [log_of(several, "ranks", node).split() for node in range(2)]
    ips = said[0][2:4]
    assert len(set(ips)) == 2 and all(ip.startswith("127.0.0.") for ip in ips)
    assert said == [["0", "2", *ips, ips[0]], ["1", "2", *ips, ips[0]]]


def test_the_example_of_two_nodes_finds_its_peer(several: Several) -> None:
    told = several("apply", "-y", "-d", "-f", str(ROOT / "examples" / "nodes.yaml"))
    assert told.returncode == 0, told.stderr
    assert several.finished("nodes")["status"] == "DONE"
    assert "rank 1 says hello" in log_of(several, "nodes", 0)


def test_when_one_node_fails_the_others_are_stopped_within_five_seconds(several: Several, yard: Yard) -> None:
    several.submit(
        "doomed", noted(yard, "doomed"), f"[ $STOKER_NODE_RANK = 1 ] || exec sleep 600; {yard.gate('doomed')}; exit 7",
        nodes=3,
    )  # fmt: skip
    until(lambda: len(began_of(yard, "doomed")) == 3, "all three run")
    ids = [one["id"] for one in jobs_of(several, "doomed")]
    began = time.monotonic()
    yard.open("doomed")
    run = several.finished("doomed", 20)
    took_s = time.monotonic() - began
    assert (run["status"], run["termination_reason"], run["exit_code"]) == ("FAILED", "JOB_FAILED", 7)
    assert several.processes_of(ids) == []
    assert took_s < 5.0
    assert sorted(one["status"] for one in run["jobs"]) == ["FAILED", "TERMINATED", "TERMINATED"]


def test_a_node_that_is_killed_takes_the_replica_with_it_and_all_of_it_is_tried_again(
    several: Several, yard: Yard
) -> None:
    several.submit(
        "again", noted(yard, "again$STOKER_SUBMISSION"), "[ $STOKER_SUBMISSION = 2 ] || exec sleep 600",
        nodes=2, retry={"on_events": ["error"], "max_attempts": 2},
    )  # fmt: skip
    until(lambda: len(began_of(yard, "again1")) == 2, "both run")
    victims = began_of(yard, "again1")
    first = [one["id"] for one in jobs_of(several, "again")]
    began = time.monotonic()
    os.kill(victims[0], signal.SIGKILL)
    until(lambda: several.processes_of(first) == [], "the other one is stopped", 5.0)
    stopped_s = time.monotonic() - began
    assert several.reaches("again", "PENDING", "SUBMITTED", "PROVISIONING", "RUNNING", "DONE")
    run = several.finished("again", 60)
    assert (run["status"], stopped_s < 5.0) == ("DONE", True)
    assert sorted((one["node"], one["submission"], one["status"] == "DONE") for one in run["jobs"]) == [
        (0, 1, False), (0, 2, True), (1, 1, False), (1, 2, True),
    ]  # fmt: skip
    assert len(began_of(yard, "again2")) == 2


@pytest.mark.parametrize(("order", "first"), [("master-first", {0}), ("workers-first", {1, 2})])
def test_nodes_begin_in_the_order_that_was_asked_for(several: Several, order: str, first: set[int]) -> None:
    """The others wait until those run, and not much longer. A shell that has begun may be slow to its first line, so it
    is asked when the kernel started it."""
    name = f"order-{order}"
    run = several.run(name, "cut -d' ' -f22 /proc/$$/stat", nodes=3, startup_order=order)
    assert run["status"] == "DONE"
    ticks = {node: int(log_of(several, name, node)) for node in range(3)}
    others = set(ticks) - first
    assert max(ticks[node] for node in first) <= min(ticks[node] for node in others)
    assert max(ticks.values()) - min(ticks.values()) < 5.0 * os.sysconf("SC_CLK_TCK")
    ran = began_by_node(several, name)
    assert max(ran[node] for node in first) < min(ran[node] for node in others)


def test_the_run_is_done_when_its_master_is(several: Several) -> None:
    run = several.run(
        "master", "[ $STOKER_NODE_RANK = 0 ] || exec sleep 600", nodes=2, stop_criteria="master-done"
    )  # fmt: skip
    assert (run["status"], run["counts"]["done"]) == ("DONE", 1)
    assert {one["status"] for one in run["jobs"]} == {"DONE"}


def test_groups_do_different_things_together(several: Several) -> None:
    configuration: Json = {
        "type": "task", "name": "groups", "env": {"WHO": "all"},
        "groups": [
            {"name": "head", "commands": ["echo head of $STOKER_NODES_NUM", TOLD], "env": {"WHO": "head"}},
            {"name": "hand", "nodes": 2, "commands": ["echo hand of $WHO", TOLD], "resources": {"cpu": 1}},
        ],
    }  # fmt: skip
    several.client.post(several.client.at("runs"), {"configuration": configuration})
    assert several.finished("groups")["status"] == "DONE"
    said = [log_of(several, "groups", node).split() for node in range(3)]
    assert [one[:3] for one in said] == [["head", "of", "3"], ["hand", "of", "all"], ["hand", "of", "all"]]
    assert [(one[3], one[-1]) for one in said] == [("0", "head"), ("1", "hand"), ("2", "hand")]


def test_two_gangs_that_do_not_fit_together_run_one_after_the_other(several: Several, yard: Yard) -> None:
    """Neither takes a half that the other needs."""
    for name in ("left", "right"):
        # A gate for each node: one that is opened lets everybody pass who waits there.
        gates = [yard.gate(f"{name}-{rank}") for rank in range(2)]
        several.submit(
            name, noted(yard, name), f"[ $STOKER_NODE_RANK = 1 ] || {{ {gates[0]}; exit; }}; {gates[1]}", nodes=2
        )
    first, second = sorted(("left", "right"), key=lambda name: several.get(name)["submitted_at"])
    until(lambda: len(began_of(yard, first)) == 2, "the first one runs")
    assert began_of(yard, second) == []
    assert statuses(several, second) == {"SUBMITTED"}
    assert "2 jobs need room at once" in several.client.get(several.client.at("runs", second, "why"))["sentence"]
    for name in (first, second):
        until(lambda name=name: len(began_of(yard, name)) == 2, f"{name} runs")  # type: ignore[misc]
        for rank in range(2):
            yard.open(f"{name}-{rank}")
        assert several.finished(name)["status"] == "DONE"


def test_more_nodes_than_there_are_machines_are_refused(several: Several) -> None:
    told = several("run", "-n", "huge", "--", "true")
    assert told.returncode == 0
    with pytest.raises(UserError, match="the largest, several, has at most 3"):
        several.submit("too-large", "true", nodes=4)


def test_a_server_that_dies_while_a_gang_gathers_does_not_start_half_of_it(
    new_home: Callable[[], Path], yard: Yard
) -> None:
    stand = Several(new_home(), machines=2)
    try:
        stand.start()
        stand.submit("gang", noted(yard, "gang"), "sleep 1", nodes=2)
        stand.kill_server()
        assert len(began_of(yard, "gang")) <= 2
        stand.start()
        run = stand.finished("gang")
        assert run["status"] == "DONE"
        assert len(began_of(yard, "gang")) == 2, "each node ran once"
    finally:
        stand.clear()
