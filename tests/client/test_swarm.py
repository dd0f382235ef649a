"""`stoker.Client().tasks`: what a script sends, waits for and learns."""

import resource
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.client.client import Unreachable
from stoker.client.swarm import Client, Statistics
from stoker.core.errors import Conflict, NotFound, UserError
from tests.client.fake import Swarm


def test_one_task_is_sent_with_what_was_said_of_it_and_nothing_else(client: Client, swarm: Swarm) -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    sent = client.tasks.submit(
        ["train", "--lr", "0.1"], name="one", cpus=0.5, memory="4GB", resources={"licence": 1}, start_after=at
    )
    assert swarm.asked[-1][2] == {
        "name": "one",
        "command": ["train", "--lr", "0.1"],
        "requested_resources": {"cpus": 0.5, "memory": "4GB", "licence": 1},
        "start_after": "2027-01-01T00:00:00+00:00",
    }
    assert sent.ids == tuple(swarm.tasks)
    assert len(swarm.keys) == 1


def test_a_map_is_one_request_of_lines_in_one_group(client: Client, swarm: Swarm) -> None:
    sent = client.tasks.map(["train", "--seed", "{}"], range(3), name="seed-{n}", cpus=2)
    assert swarm.types == ["application/x-ndjson"]
    assert [one["command"][-1] for one in swarm.tasks.values()] == ["0", "1", "2"]
    assert [one["name"] for one in swarm.tasks.values()] == ["seed-1", "seed-2", "seed-3"]
    assert {one["group"] for one in swarm.tasks.values()} == {sent.group}
    assert sent.count == 3


def test_a_map_over_nothing_is_nothing_and_has_ended_well(client: Client, swarm: Swarm) -> None:
    sent = client.tasks.map("echo", [])
    assert (sent.count, sent.wait().ok, swarm.asked) == (0, True, [])


def test_a_graph_has_edges_and_ids_that_are_known_before_it_is_sent(client: Client, swarm: Swarm) -> None:
    (earlier,) = client.tasks.submit("prepare").ids
    graph = client.tasks.graph("nightly")
    parts = [graph.add(["count", name], after=earlier) for name in "ab"]
    barrier = graph.add(after=parts)
    last = graph.add("sum *.count", after=[barrier])
    assert not swarm.asked[1:]
    assert len(graph) == 4
    sent = graph.submit()
    assert swarm.tasks[parts[0].id]["depends_on"] == [earlier]
    assert swarm.tasks[barrier.id]["depends_on"] == [one.id for one in parts]
    assert swarm.tasks[barrier.id]["command"] is None
    assert swarm.tasks[last.id]["depends_on"] == [barrier.id]
    assert (sent.group, sent.count) == ("nightly", 4)


def test_mistakes_with_graphs_are_said_before_anything_is_sent(client: Client, swarm: Swarm) -> None:
    graph, other = client.tasks.graph(), client.tasks.graph()
    with pytest.raises(UserError, match="nothing in this graph"):
        graph.submit()
    foreign = other.add("x")
    with pytest.raises(UserError, match="another graph"):
        graph.add("y", after=[foreign])
    graph.add("y")
    graph.submit()
    with pytest.raises(UserError, match="sent already"):
        graph.submit()
    with pytest.raises(UserError, match="sent already"):
        graph.add("z")


def test_results_come_in_the_order_of_the_inputs_with_what_was_written(client: Client, swarm: Swarm) -> None:
    sent = client.tasks.map("work", "abc")
    first, second, third = swarm.tasks
    swarm.end(first, result='{"loss": 0.5}')
    swarm.write(first, b"\x00x" * 1500)
    swarm.end(second, -9)
    swarm.write(second, b"oh", stream="stderr")
    results = list(sent.results())
    assert [one.id for one in results] == [first, second, third]
    assert [(one.ok, one.ended, one.exit_status) for one in results] == [
        (True, True, 0),
        (False, True, -9),
        (False, False, None),
    ]
    assert (results[0].value, results[0].stdout) == ('{"loss": 0.5}', b"\x00x" * 1500)
    assert (results[1].stdout, results[1].stderr, results[2].stdout) == (b"", b"oh", b"")
    assert next(iter(client.tasks.results(second))).exit_status == -9


def test_wait_tells_how_it_stands_and_returns_at_the_end(client: Client, swarm: Swarm) -> None:
    sent = client.tasks.map("work", "ab")
    first, second = swarm.tasks
    seen: list[Statistics] = []
    assert sent.wait(0.01).left == 2
    threading.Timer(0.1, swarm.end, [first]).start()
    threading.Timer(0.2, swarm.end, [second, 3]).start()
    told = sent.wait(progress=seen.append)
    assert (told.succeeded, told.failed, told.left, told.ok) == (1, 1, 0, False)
    assert told.exit_codes == {0: 1, 3: 1}
    assert (seen[0].total, seen[0].left) == (2, 2)
    assert sent.statistics().total == 2


def test_wait_ends_when_only_held_ones_are_left(client: Client, swarm: Swarm) -> None:
    (held,) = swarm.add({"command": "x"}, held="poison")
    swarm.add({"command": "y", "depends_on": [held]})
    told = client.tasks.wait()
    assert (told.left, told.held) == (2, 1)


def test_wait_waits_for_one_whose_time_has_not_come(client: Client, swarm: Swarm) -> None:
    """Nobody may claim it either, but it goes on by itself."""
    (later,) = swarm.add({"command": "x"}, held="clock")
    threading.Timer(0.3, swarm.end, [later]).start()
    told = client.tasks.wait(later)
    assert (told.succeeded, told.held, told.ok) == (1, 0, True)


def test_single_tasks_are_added_up_and_asked_for_until_each_has_ended(client: Client, swarm: Swarm) -> None:
    ids = swarm.add(*({"command": "x"} for _ in range(60)), {"name": "barrier"})
    swarm.tasks[ids[-1]]["state"] = "terminated"
    for id in ids[:30]:
        swarm.end(id)
    assert client.tasks.wait(*ids, timeout_s=0.1).left == 30
    for id in ids[30:60]:
        threading.Timer(0.1, swarm.end, [id, 3]).start()
    told = client.tasks.wait(*ids)
    assert (told.total, told.succeeded, told.failed, told.exit_codes) == (61, 31, 30, {0: 30, 3: 30})
    with pytest.raises(NotFound):
        client.tasks.wait(ids[0], "0199d4c2-0000-7000-8000-000000000000")


def test_cancel_and_retry_say_how_many_they_reached(client: Client, swarm: Swarm) -> None:
    ids = swarm.add(*({"command": "x", "labels": {"night": "1"}} for _ in range(3)), {"command": "y"})
    swarm.start(ids[0])
    assert client.tasks.cancel(label="night=1") == 3
    assert swarm.tasks[ids[3]]["state"] == "available"
    swarm.end(ids[3], 1)
    assert client.tasks.retry(ids[3]) == 1
    with pytest.raises(UserError, match="ids, or a group"):
        client.tasks.of(ids[0], group="x")


def test_a_server_that_is_starting_gets_the_same_request_again(client: Client, swarm: Swarm) -> None:
    swarm.answers = [(503, {"Retry-After": "0.1"}, {})]
    assert client.tasks.map("work", range(5)).count == 5
    assert len(swarm.keys) == 2
    assert len(set(swarm.keys)) == 1
    assert len(swarm.tasks) == 5


def test_what_the_server_refuses_is_an_error_of_its_kind(client: Client, swarm: Swarm) -> None:
    refusal = {"error": {"code": "conflict", "message": "a waits for itself.", "hint": ""}}
    swarm.answers = [(409, {}, refusal)]
    with pytest.raises(Conflict, match="waits for itself"):
        client.tasks.map("work", "a")
    with pytest.raises(NotFound):
        client.tasks.submit("x", after="0199d4c2-0000-7000-8000-000000000000")
    with pytest.raises(UserError):
        client.tasks.map("work", "a", priority=10**9)


def test_a_server_that_never_was_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        Client("http://127.0.0.1:9", token="t", home=tmp_path).tasks.wait(group="x")


def test_the_package_loads_it_only_when_it_is_asked_for() -> None:
    script = "import sys, stoker; print('stoker.client' in sys.modules, stoker.Client.__name__, hasattr(stoker, 'x'))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert told.stdout == b"False Client False\n"
    heavy = "import sys, stoker; stoker.Client; print({'pydantic', 'yaml', 'asyncio'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, check=True).stdout == b"set()\n"


def test_a_hundred_thousand_tasks_need_no_more_memory_than_a_few(swarm: Swarm) -> None:
    """Written to a file as they are made, and sent from there."""
    from stoker.client.upload import line, post_lines

    class Nobody:
        """Where the request would go: what is measured is the way there."""

        url, token, project = "http://127.0.0.1:9", "t", "main"

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    task = {"command": ["python", "train.py", "--a-long-option", "x" * 200], "group": "sweep"}
    lines = (line(task | {"name": f"task-{number}"}) for number in range(100_000))
    with pytest.raises(Unreachable):
        post_lines(Nobody(), "/x", lines, key="k")  # type: ignore[arg-type]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
