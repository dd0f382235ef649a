"""`stoker task` and `stoker workers`: what they print, what programs read, what the shell is told."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.cli import exits
from tests.cli.conftest import ROOT, Stoker, call
from tests.cli.terminal import terminal
from tests.cli.test_main import HEAVY
from tests.client.fake import TOKEN, Swarm, worker


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    with Swarm().serving() as serving:
        yield serving


@pytest.fixture
def connected(environ: dict[str, str], swarm: Swarm) -> dict[str, str]:
    return {**environ, "STOKER_URL": swarm.url, "STOKER_TOKEN": TOKEN}


def queries(swarm: Swarm) -> list[dict[str, list[str]]]:
    return [parse_qs(urlsplit(path).query) for _, path, _ in swarm.asked]


def test_list_shows_what_has_not_ended_newest_first(stoker: Stoker, swarm: Swarm) -> None:
    ids = swarm.add({"command": ["a", "b c"]}, {"command": "x | y", "name": "piped", "group": "g"}, {"command": "z"})
    swarm.end(ids[2])
    lines = stoker("task", "list").stdout.decode().splitlines()
    assert lines[0].split() == ["ID", "NAME", "STATE", "EXIT", "TRIES", "GROUP", "SINCE", "COMMAND"]
    assert [line.split()[0] for line in lines[1:]] == [ids[1], ids[0]]
    assert lines[1].endswith("x | y")
    assert lines[2].endswith("a 'b c'")
    assert len(json.loads(stoker("task", "list", "-a", "--json").stdout)) == 3
    assert json.loads(stoker("task", "list", "--fields", "id,group", "--json").stdout)[0] == {
        "id": ids[1],
        "group": "g",
    }
    assert stoker("task", "list", "-a", "--fields", "name,state").stdout.decode().splitlines()[2].split() == [
        "piped",
        "available",
    ]


def test_list_is_narrowed_as_people_say_it(stoker: Stoker, swarm: Swarm) -> None:
    good, bad, held = swarm.add(*({"command": "x", "labels": {"a": "1", "b": "2"}} for _ in range(3)))
    swarm.end(good)
    swarm.end(bad, -11)
    swarm.tasks[held]["held"] = "poison"
    assert bad in stoker("task", "list", "--failed").stdout.decode()
    assert good not in stoker("task", "list", "--failed").stdout.decode()
    assert "signal 11" in stoker("task", "list", "--failed", "--label", "a=1", "--label", "b=2").stdout.decode()
    assert queries(swarm)[-1]["label"] == ["a=1", "b=2"]
    assert "available (held)" in stoker("task", "list", "--held").stdout.decode()
    swarm.tasks[held]["held"] = "clock"
    assert "available (later)" in stoker("task", "list").stdout.decode()
    assert "available" in stoker("task", "tree", held).stdout.decode()
    stoker("task", "list", "--state", "running", "--state", "available", "-n", "7", "--name", "n", "--group", "g")
    asked = queries(swarm)[-1]
    assert (asked["state"], asked["limit"], asked["name"], asked["group"]) == (
        ["running", "available"],
        ["7"],
        ["n"],
        ["g"],
    )
    none = stoker("task", "list", "--group", "nothing")
    assert (none.returncode, none.stdout) == (0, b"")
    assert b"No task is left" in none.stderr
    assert stoker("task", "list", "--state", "odd").returncode == 2


def test_programs_get_all_pages_and_people_the_last_ones(stoker: Stoker, swarm: Swarm) -> None:
    swarm.add(*({"command": "x"} for _ in range(1200)))
    assert len(json.loads(stoker("task", "list", "--json").stdout)) == 1200
    told = stoker("task", "list")
    assert len(told.stdout.splitlines()) == 51
    assert b"-n" in told.stderr
    assert len(stoker("task", "list", "-n", "700").stdout.splitlines()) == 701


def test_a_task_is_found_by_its_id_its_beginning_and_its_name(stoker: Stoker, swarm: Swarm) -> None:
    first, second, third = swarm.add(*({"command": str(number), "name": "train"} for number in range(3)))
    other = "ffffffff-0000-7000-8000-000000000000"
    swarm.add({"command": "other", "id": other})

    def got(ref: str) -> str:
        return str(json.loads(stoker("task", "get", ref, "--json").stdout)["id"])

    assert [got(first), got(second.upper()), got("train"), got("ffff")] == [first, second, third, other]
    several = stoker("task", "get", first[:8])
    assert several.returncode == 1
    assert b"ids of 3 tasks begin" in several.stderr
    for ref in ("abcdef", "nobody"):
        none = stoker("task", "get", ref)
        assert (none.returncode, none.stdout) == (1, b"")
        assert f"There is no task {ref}".encode() in none.stderr


def test_get_shows_a_task_and_its_attempts(stoker: Stoker, swarm: Swarm) -> None:
    wanted = {"cpus": 0.5, "memory": 2048}
    train = {"command": ["train", "1"], "name": "t", "depends_on": ["a"], "requested_resources": wanted}
    first, id = swarm.add({"command": "x", "ref": "a"}, train)
    swarm.start(id)
    swarm.end(id, 3)
    swarm.start(id, 2)
    swarm.end(id, 0, result="0.93")
    told = stoker("task", "get", "t").stdout.decode()
    assert "result     0.93" in told
    assert "command    train 1" in told
    assert f"after      {first}" in told
    assert "needs      cpus=0.5, memory=2 GB" in told
    attempts = told.splitlines()[-3:]
    assert attempts[0].split()[:3] == ["ATTEMPT", "OUTCOME", "EXIT"]
    assert [line.split()[:4] for line in attempts[1:]] == [["1", "ended", "3", "3s"], ["2", "ended", "0", "3s"]]
    assert len(json.loads(stoker("task", "get", "t", "--json").stdout)["history"]) == 2


def test_tree_draws_what_waits_for_what(stoker: Stoker, swarm: Swarm) -> None:
    ids = swarm.add(
        {"command": "x", "ref": "p", "name": "prepare", "group": "g"},
        {"command": "x", "ref": "a", "name": "left", "depends_on": ["p"], "group": "g"},
        {"command": "x", "ref": "b", "name": "right", "depends_on": ["p"], "group": "g"},
        {"name": "both", "ref": "c", "depends_on": ["a", "b"], "group": "g"},
        {"command": "x", "name": "last", "depends_on": ["c"], "group": "g"},
    )
    swarm.end(ids[0])
    swarm.end(ids[1], 2)
    drawn = [
        "prepare  done",
        "  left  failed (2)",
        "    both  inactive",
        "      last  inactive",
        "  right  inactive",
        "    both  inactive (above)",
    ]
    assert stoker("task", "tree", "prepare").stdout.decode().splitlines() == drawn
    assert stoker("task", "tree", "--group", "g").stdout.decode().splitlines() == drawn
    assert len(json.loads(stoker("task", "tree", "prepare", "--json").stdout)) == 5
    assert stoker("task", "tree").returncode == 2
    assert stoker("task", "tree", "--group", "none").returncode == 1


def test_a_tree_that_is_wide_is_folded(stoker: Stoker, swarm: Swarm) -> None:
    swarm.add({"command": "x", "ref": "p"}, *({"command": "x", "depends_on": ["p"]} for _ in range(100)))
    (first, *others) = swarm.tasks
    swarm.end(others[50])
    lines = stoker("task", "tree", first).stdout.decode().splitlines()
    assert len(lines) == 14
    assert lines[-1] == "  … and 88 more: 87 inactive, 1 done"
    assert len(stoker("task", "tree", first, "--all").stdout.splitlines()) == 101


def test_a_tree_has_lines_and_glyphs_on_a_terminal(connected: dict[str, str], swarm: Swarm) -> None:
    ids = swarm.add(
        {"command": "x", "ref": "p", "name": "prepare"},
        {"command": "x", "name": "left", "depends_on": ["p"]},
        {"command": "x", "name": "right", "depends_on": ["p"]},
    )
    swarm.end(ids[0])
    with terminal({**connected, "NO_COLOR": "1", "PYTHONUTF8": "1"}, "task", "tree", "prepare") as person:
        assert person.ends() == 0
    assert person.seen.decode().splitlines() == ["✓ prepare  done", "├─ · left  inactive", "└─ · right  inactive"]


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ([0, 0], exits.OK, "all 2/2 done"),
        ([0, 7], exits.RUN_FAILED, "1/2 done, 1 failed; failed attempts: 1× exit 7"),
        ([0, "cancelled"], exits.RUN_STOPPED, "1/2 done, 1 cancelled"),
        ([1, "cancelled"], exits.RUN_FAILED, "0/2 done, 1 failed, 1 cancelled"),
        ([0, "held"], exits.RUN_FAILED, "1/2 done, 1 available, 1 held\n1 held: they took too many workers"),
        ([0, None], exits.RUN_UNFINISHED, "1/2 done, 1 available"),
        ([], exits.RUN_NOT_FOUND, ""),
    ],
)
def test_wait_tells_the_shell_how_they_ended(
    stoker: Stoker, swarm: Swarm, ends: list[Any], code: int, said: str
) -> None:
    ids = swarm.add(*({"command": "x", "group": "g", "labels": {"a": "b"}} for _ in ends))
    for id, end in zip(ids, ends, strict=True):
        match end:
            case int():
                swarm.end(id, end)
            case "cancelled":
                swarm.tasks[id]["state"] = "cancelled"
            case "held":
                swarm.tasks[id]["held"] = "poison"
    for which, name in (["--group", "g"], "g"), (["--label", "a=b"], "a=b"), (ids, "2 tasks"):
        if not which:
            continue
        told = stoker("task", "wait", *which, "--timeout", "0.1s")
        assert told.returncode == code, told.stderr
        if said:
            assert told.stdout.decode().startswith(f"{name}: {said}")
        else:
            assert b"There are no tasks in" in told.stderr


def test_wait_names_what_it_waits_for(stoker: Stoker, swarm: Swarm) -> None:
    for args in ([], ["x", "--group", "g"], ["--group", "g", "--label", "a=b"], ["--label", "a"]):
        assert stoker("task", "wait", *args).returncode == 2, args
    told = stoker("task", "wait", "0199d4c2-0000-7000-8000-000000000000")
    assert (told.returncode, told.stdout) == (exits.RUN_NOT_FOUND, b"")
    (id,) = swarm.add({"command": "x"})
    swarm.end(id)
    assert json.loads(stoker("task", "wait", id, "--json").stdout)["succeeded"] == 1


def test_wait_shows_how_far_it_is_on_a_terminal(connected: dict[str, str], swarm: Swarm) -> None:
    ids = swarm.add(*({"command": "x", "group": "g"} for _ in range(4)))
    swarm.end(ids[0])
    with terminal({**connected, "PYTHONUTF8": "1"}, "task", "wait", "--group", "g", size=(120, 24)) as person:
        person.wait_for("██████░░░░░░░░░░░░░░░░░░ 25% 1/4 done, 3 available 2.5/s about 1.2s left".encode())
        for id in ids[1:]:
            swarm.end(id)
        assert person.ends() == 0
    assert "g: all 4/4 \x1b[32mdone" in person.seen.decode()


def test_wait_outlives_a_server_that_goes_away(stoker: Stoker, swarm: Swarm) -> None:
    """It is there, then a proxy says for longer than a request is patient that it is not, then it is back."""
    (id,) = swarm.add({"command": "x", "group": "g"})
    swarm.answers = [(200, {}, swarm.statistics([swarm.tasks[id]])), *[(502, {"Retry-After": "30"}, {})] * 2]
    threading.Timer(0.5, swarm.end, [id]).start()
    told = stoker("task", "wait", "--group", "g")
    assert (told.returncode, told.stdout) == (0, b"g: 1/1 done\n")
    assert told.stderr.count(b"trying again") == told.stderr.count(b"The server is back.") == 1


def test_cancel_and_retry(stoker: Stoker, swarm: Swarm) -> None:
    ids = swarm.add(*({"command": "x", "group": "g", "labels": {"a": "b"}} for _ in range(4)))
    swarm.start(ids[0])
    told = stoker("task", "cancel", ids[0], ids[1])
    assert told.stdout == b"1 cancelled, 1 running: their workers are being told\n"
    assert swarm.asked[-1][2] == {"ids": [ids[0], ids[1]]}
    told = stoker("task", "cancel", "--group", "g", "--label", "a=b", "--state", "available", "--json")
    assert json.loads(told.stdout) == {"cancelled": 2, "pending": 0}
    assert swarm.asked[-1][2] == {"group": "g", "labels": {"a": "b"}, "state": ["available"]}
    assert stoker("task", "cancel", ids[1]).stdout == b"0 cancelled\n"
    swarm.end(ids[0], 9)
    told = stoker("task", "retry", ids[0])
    assert told.stdout.decode().startswith(f"1 done again\n{ids[0]}  again as ")
    assert stoker("task", "retry", "--group", "g").stdout == b"1 done again\n"
    for act in ("cancel", "retry"):
        assert stoker("task", act).returncode == 2
        assert stoker("task", act, "--all").returncode == 2
        assert stoker("task", act, "--all", "--group", "g", "-y").returncode == 2
        assert stoker("task", act, "--all", "-y").returncode == 0
        assert swarm.asked[-1][2] == {"all": True}


def test_logs_are_exact_and_of_one_attempt(stoker: Stoker, swarm: Swarm) -> None:
    (id,) = swarm.add({"command": "x", "name": "t"})
    told = stoker("task", "logs", "t")
    assert (told.returncode, told.stdout) == (0, b"")
    assert b"No worker has begun it: it is available." in told.stderr
    data = bytes(range(256)) * 20
    swarm.start(id)
    swarm.write(id, b"first")
    swarm.end(id, 1)
    swarm.start(id, 2)
    swarm.write(id, data, attempt=2)
    swarm.write(id, b"oh\n", attempt=2, stream="stderr")
    for args in ([], ["--attempt", "2"]):
        told = stoker("task", "logs", "t", *args)
        assert (told.stdout, told.stderr) == (data, b"oh\n")
    assert stoker("task", "logs", "t", "--attempt", "1").stdout == b"first"
    told = stoker("task", "logs", "t", "--stderr")
    assert (told.stdout, told.stderr) == (b"oh\n", b"")
    told = stoker("task", "logs", "t", "--stdout")
    assert (told.stdout, told.stderr) == (data, b"")
    assert stoker("task", "logs", "t", "--stdout", "--stderr").returncode == 2


def test_logs_are_followed_from_before_the_start_through_every_attempt(connected: dict[str, str], swarm: Swarm) -> None:
    (id,) = swarm.add({"command": "x"})

    def happen() -> None:
        time.sleep(0.5)
        swarm.start(id)
        swarm.write(id, b"one\n")
        time.sleep(0.5)
        swarm.write(id, b"two\n")
        swarm.history[id][0]["outcome"] = "ended"
        swarm.tasks[id]["state"] = "available"
        time.sleep(0.5)
        swarm.start(id, 2)
        swarm.write(id, b"three\n", attempt=2)
        swarm.end(id)

    threading.Thread(target=happen).start()
    told = call(connected, "task", "logs", "-f", id)
    assert (told.returncode, told.stdout) == (0, b"one\ntwo\nthree\n")
    assert b"tried again; this is attempt 2" in told.stderr


def test_stats_tell_counts_and_measures(stoker: Stoker, swarm: Swarm) -> None:
    ids = swarm.add(*({"command": "x", "group": "g"} for _ in range(3)))
    swarm.end(ids[0])
    swarm.end(ids[1], -9)
    told = stoker("task", "stats", "--group", "g").stdout.decode()
    assert told.startswith("g: 1/3 done, 1 available, 1 failed\n")
    assert "exit codes  0: 1, signal 9: 1" in told
    assert "rate        2.5 a second" in told
    assert json.loads(stoker("task", "stats", "--json").stdout)["total"] == 3
    assert stoker("task", "stats", ids[0]).stdout.decode().startswith(f"{ids[0]}: 1/1 done")
    measure = {"count": 3, "mean": 1.5, "p50": 1, "p90": 2, "p99": 70, "least": 0.01, "most": 71}
    one = swarm.statistics([]) | {"run_time": measure, "memory": measure | {"mean": 3 * 2**30}}
    swarm.answers = [(200, {}, one)]
    lines = stoker("task", "stats").stdout.decode().splitlines()
    assert lines[-2].split() == ["ran", "3", "10ms", "1.5s", "1s", "2s", "1m", "10s", "1m", "11s"]
    assert "3 GB" in lines[-1]


def test_top_is_drawn_anew_on_a_terminal_and_once_elsewhere(
    stoker: Stoker, connected: dict[str, str], swarm: Swarm
) -> None:
    (id,) = swarm.add({"command": ["train", "1"], "name": "t"})
    told = stoker("task", "top").stdout.decode()
    assert "There are no workers" in told
    swarm.workers = [worker("node-1"), worker("node-2", state="lost")]
    swarm.start(id)
    told = stoker("task", "top").stdout.decode()
    assert "0/1 done, 1 running" in told
    assert "node-1" in told and "node-2" not in told
    assert told.splitlines()[-1].split()[0] == "t"
    assert json.loads(stoker("task", "top", "--json").stdout)["statistics"]["total"] == 1
    with terminal(connected, "task", "top", size=(100, 30)) as person:
        person.wait_for(b"node-1")
        swarm.workers.append(worker("node-3"))
        person.wait_for(b"node-3")
        person.type(b"\x03")
        assert person.ends() in (exits.INTERRUPTED, -2)


def test_workers_are_listed_and_shown(stoker: Stoker, swarm: Swarm) -> None:
    told = stoker("workers")
    assert (told.returncode, told.stdout) == (0, b"")
    assert b"`stoker worker`" in told.stderr
    swarm.workers = [worker("node-1", gpus=2, labels={"zone": "a"}), worker("node-2", state="left")]
    lines = stoker("workers").stdout.decode().splitlines()
    assert lines[0].split()[:4] == ["NAME", "ID", "STATE", "TASKS"]
    assert [line.split()[0] for line in lines[1:]] == ["node-1"]
    assert "8 GB" in lines[1]
    assert len(json.loads(stoker("workers", "-a", "--json").stdout)) == 2
    one = swarm.workers[0]
    for ref in (one["id"], "node-1"):
        assert json.loads(stoker("workers", ref, "--json").stdout) == one
    assert "zone=a" in stoker("workers", "node-1").stdout.decode()
    assert stoker("workers", "node-9").returncode == 1


@pytest.mark.parametrize(
    "args",
    [
        ("task", "add", "-q", "true"),
        ("task", "map", "--range", "1..3", "x"),
        ("task", "list"),
        ("task", "get", "t"),
        ("task", "wait", "--group", "g"),
        ("task", "logs", "t"),
        ("task", "stats"),
        ("workers",),
    ],
)
def test_quick_commands_import_nothing_heavy(connected: dict[str, str], swarm: Swarm, args: tuple[str, ...]) -> None:
    (id,) = swarm.add({"command": "x", "group": "g", "name": "t"})
    swarm.end(id)
    script = "import sys; from stoker.cli.main import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    told = subprocess.run([sys.executable, "-c", script, *args], env=connected, capture_output=True, cwd=ROOT)
    found = {module.partition(".")[0] for module in told.stderr.decode().splitlines()[-1].split()}
    assert found & {*HEAVY} == set()
