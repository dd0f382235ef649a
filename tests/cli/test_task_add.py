"""`stoker task add`, `map` and `load`: what is sent, what is printed, what is refused before anything is sent."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from stoker.cli import exits
from tests.cli.conftest import Stoker, call
from tests.client.fake import TOKEN, Swarm


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    with Swarm().serving() as serving:
        yield serving


@pytest.fixture
def connected(environ: dict[str, str], swarm: Swarm) -> dict[str, str]:
    return {**environ, "STOKER_URL": swarm.url, "STOKER_TOKEN": TOKEN}


def test_add_prints_the_id_and_sends_nothing_that_was_not_said(stoker: Stoker, swarm: Swarm) -> None:
    told = stoker("task", "add", "--", "python", "-c", "print(1)")
    (id,) = swarm.tasks
    assert (told.returncode, told.stdout.decode()) == (0, f"{id}\n")
    assert b"stoker task logs" in told.stderr
    assert swarm.asked[-1][2] == {"command": ["python", "-c", "print(1)"]}
    assert stoker("task", "add", "-q", "true").stderr == b""
    assert json.loads(stoker("task", "add", "--json", "true").stdout)["count"] == 1
    assert len(set(swarm.keys)) == 3


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["true"], ["true"]),
        (["sort a | uniq"], "sort a | uniq"),
        (["echo $HOME"], "echo $HOME"),
        (["--", "./x", "--name", "-q"], ["./x", "--name", "-q"]),
        (["./x", "--name", "-q"], ["./x", "--name", "-q"]),
    ],
)
def test_one_word_is_for_the_shell_where_it_needs_one(
    stoker: Stoker, swarm: Swarm, words: list[str], command: str | list[str]
) -> None:
    assert stoker("task", "add", *words).returncode == 0
    assert swarm.asked[-1][2]["command"] == command


def test_everything_that_can_be_said_of_a_task(stoker: Stoker, swarm: Swarm, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    (first,) = swarm.add({"command": "x", "name": "prepare"})
    said = ["-n", "train", "-e", "A=1", "-e", "MINE", "-C", str(tmp_path), "--stdin-file", str(tmp_path / "in")]
    said += ["--cpus", "0.5", "--memory", "4GB", "--gpus", "2", "--resource", "licence=1", "--or", "cpus=8,memory=1GB"]
    said += ["--retries", "2", "--crash-limit", "3", "--priority", "-5", "--after", "prepare", "--group", "g"]
    said += ["--label", "night=12", "--label", "k=a=b", "--key", "web", "--limit", "4", "--deadline", "2h"]
    said += ["--start-after", "2027-01-01T00:00:00Z", "--estimated-runtime", "90s", "--grace", "1m", "--exclusive"]
    told = stoker("task", "add", *said, "--output", "files", "--output-dir", "out", "--", "train", "--fast", MINE="x")
    assert told.returncode == 0, told.stderr
    sent = swarm.asked[-1][2]
    in_s = datetime.fromisoformat(sent.pop("deadline")).timestamp() - time.time()
    assert 7000 < in_s < 7201
    assert sent == {
        "name": "train",
        "command": ["train", "--fast"],
        "env": ["A=1", "MINE=x"],
        "working_dir": str(tmp_path),
        "stdin": "one\ntwo\n",
        "requested_resources": {"cpus": 0.5, "memory": "4GB", "gpus": 2.0, "licence": 1},
        "alternatives": [{"cpus": 8, "memory": "1GB"}],
        "max_retry_count": 3,
        "crash_limit": 3,
        "priority": -5,
        "depends_on": [first],
        "group": "g",
        "labels": {"night": "12", "k": "a=b"},
        "concurrency_key": "web",
        "concurrency_limit": 4,
        "start_after": "2027-01-01T00:00:00Z",
        "estimated_runtime": 90.0,
        "max_termination_time": 60.0,
        "exclusive": True,
        "output": "files",
        "output_dir": "out",
    }


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, b"--barrier"),
        (["--barrier", "true"], 2, b"--barrier"),
        (["--retries", "1", "--max-retry-count", "1", "true"], 2, b"--retries or"),
        (["--label", "x", "true"], 2, b"KEY=VALUE"),
        (["--resource", "x", "true"], 2, b"licence=1"),
        (["--limit", "2", "true"], 2, b"--key"),
        (["--stdin", "x", "--stdin-file", "y", "true"], 2, b"--stdin or"),
        (["--nmae", "x", "true"], 2, b"--name"),
        (["--stdin-file", "/nowhere", "true"], 1, b"cannot be read"),
        (["--deadline", "soon", "true"], 1, b"neither a length of time"),
        (["--grace", "soon", "true"], 1, b"no length of time"),
        (["-e", "NOT_SET_AT_ALL", "true"], 1, b"is not set"),
    ],
)
def test_mistakes_are_said_before_anything_is_sent(
    stoker: Stoker, swarm: Swarm, args: list[str], code: int, said: bytes
) -> None:
    told = stoker("task", "add", *args)
    assert (told.returncode, told.stdout, swarm.asked) == (code, b"", [])
    assert said in told.stderr


def test_what_the_server_refuses_is_said(stoker: Stoker, swarm: Swarm) -> None:
    told = stoker("task", "add", "--priority", "9999999", "true")
    assert (told.returncode, told.stdout) == (1, b"")
    assert b"priority" in told.stderr
    assert b"no task nothing" in stoker("task", "add", "--after", "nothing", "true").stderr


def test_a_barrier_has_no_command(stoker: Stoker, swarm: Swarm) -> None:
    ids = swarm.add({"command": "x"}, {"command": "y"})
    assert stoker("task", "add", "--barrier", "--after", ids[0], "--after", ids[1]).returncode == 0
    assert swarm.asked[-1][2] == {"depends_on": ids}


def test_add_waits_and_exits_as_wait_does(connected: dict[str, str], swarm: Swarm) -> None:
    def end() -> None:
        with swarm.changed:
            swarm.changed.wait_for(lambda: bool(swarm.tasks), 20)
            swarm.end(next(iter(swarm.tasks)), 3)

    threading.Thread(target=end).start()
    told = call(connected, "task", "add", "-w", "false")
    assert told.returncode == exits.RUN_FAILED
    assert "1 failed; failed attempts: 1× exit 3".encode() in told.stdout


def test_map_puts_each_line_of_a_file_where_the_braces_are(stoker: Stoker, swarm: Swarm, tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes("ann\r\n\nbob {n}\n  \nzoë".encode())
    told = stoker("task", "map", "-a", str(tmp_path / "names"), "-n", "{n}-{}", "--", "greet", "--to={}", "{n}", "x")
    assert told.returncode == 0, told.stderr
    sent = swarm.asked[-1][2]
    assert [one["id"] for one in sent] == sorted(one["id"] for one in sent)
    assert [one["command"] for one in sent] == [
        ["greet", "--to=ann", "1", "x"],
        ["greet", "--to=bob {n}", "3", "x"],
        ["greet", "--to=zoë", "5", "x"],
    ]
    assert [one["name"] for one in sent] == ["1-ann", "3-bob {n}", "5-zoë"]
    (group,) = {one["group"] for one in sent}
    assert told.stdout.decode() == f"{group}\n"
    assert f"3 tasks in {group}. `stoker task wait --group {group}`" in told.stderr.decode()


def test_map_without_braces_appends_and_quotes_for_the_shell(stoker: Stoker, swarm: Swarm) -> None:
    lines = b"a b\nit's; rm -rf /\n"
    stoker("task", "map", "--group", "g", "--", "ls", "-l", stdin=lines)
    assert [one["command"] for one in swarm.asked[-1][2]] == [["ls", "-l", "a b"], ["ls", "-l", "it's; rm -rf /"]]
    stoker("task", "map", "echo {} | rev", stdin=lines)
    assert [one["command"] for one in swarm.asked[-1][2]] == [
        "echo 'a b' | rev",
        "echo 'it'\"'\"'s; rm -rf /' | rev",
    ]
    stoker("task", "map", "cd x && ls", stdin=b"a b\n")
    assert swarm.asked[-1][2][0]["command"] == "cd x && ls 'a b'"
    assert swarm.types[-1] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("said", "numbers"),
    [("1..3", ["1", "2", "3"]), ("0..10..5", ["0", "5", "10"]), ("3..1", ["3", "2", "1"]), ("-1..0", ["-1", "0"])],
)
def test_map_over_a_range(stoker: Stoker, swarm: Swarm, said: str, numbers: list[str]) -> None:
    told = stoker("task", "map", "--json", "--range", said, "train", "{}")
    assert [one["command"] for one in swarm.asked[-1][2]] == [["train", number] for number in numbers]
    assert json.loads(told.stdout)["count"] == len(numbers)


@pytest.mark.parametrize(
    ("args", "stdin", "code", "said"),
    [
        (["--range", "1..x", "t"], b"", 2, b"1..1000"),
        (["--range", "1", "t"], b"", 2, b"1..1000"),
        (["--range", "1..2..0", "t"], b"", 2, b"1..1000"),
        (["--range", "1..9999999", "t"], b"", 1, b"at most 1,000,000"),
        (["--range", "1..2", "-a", "x", "t"], b"", 2, b"--range"),
        (["-a", "/nowhere", "t"], b"", 1, b"/nowhere cannot be read"),
        (["t"], b"", 1, b"the input is empty"),
        (["t"], b"a\n\xff\n", 1, b"stdin: line 2 is not UTF-8"),
        ([], b"a\n", 2, b"COMMAND"),
    ],
)
def test_what_cannot_be_mapped_is_said(
    stoker: Stoker, swarm: Swarm, args: list[str], stdin: bytes, code: int, said: bytes
) -> None:
    told = stoker("task", "map", *args, stdin=stdin)
    assert (told.returncode, told.stdout, swarm.asked) == (code, b"", [])
    assert said in told.stderr


GRAPH = """\
group: nightly
tasks:
  - name: prepare
    command: ./prepare.sh
    env: {VERSION: 1.10}
  - name: train
    command: [./train, --seed, 1]
    depends_on: [prepare]
    requested_resources: {cpus: 2, memory: 4GB}
  - depends_on: [train]
"""


def test_load_reads_a_graph_of_yaml(stoker: Stoker, swarm: Swarm, tmp_path: Path) -> None:
    """Names serve as refs, and what looks like a number stays as it was written."""
    (tmp_path / "graph.yaml").write_text(GRAPH)
    told = stoker("task", "load", str(tmp_path / "graph.yaml"))
    assert (told.returncode, told.stdout) == (0, b"nightly\n"), told.stderr
    prepare, train, last = swarm.tasks.values()
    assert prepare["env"] == {"VERSION": "1.10"}
    assert train["command"] == ["./train", "--seed", "1"]
    assert (train["depends_on"], last["depends_on"]) == ([prepare["id"]], [train["id"]])
    assert {one["group"] for one in swarm.tasks.values()} == {"nightly"}
    assert stoker("task", "load", "--dry-run", "-", stdin=GRAPH.encode()).stdout == b"3 tasks would be added.\n"


def test_what_is_wrong_with_a_graph_is_said_with_its_line(stoker: Stoker, swarm: Swarm, tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(GRAPH.replace("depends_on: [prepare]", "depend_on: [prepare]").replace("4GB", "lots"))
    for args in ([], ["--dry-run"]):
        told = stoker("task", "load", *args, str(file))
        assert told.returncode == 1
        assert f"{file}: line 8: depend_on: there is no such key here. Did you mean depends_on?" in told.stderr.decode()
        assert f"{file}: line 9: requested_resources: memory: 'lots' is no amount" in told.stderr.decode()
    for text, said in [
        ("tasks: []", "line 1: expected a map with a list of `tasks`"),
        ("- a", "line 1: expected a map"),
        ("tasks:\n  - echo", "line 2: expected a map that describes a task"),
        ("tasks: [{command: x}]\nname: y", "line 2: name: there is no such key"),
        ("tasks: ]", "line 1: this is not YAML"),
    ]:
        file.write_text(text)
        told = stoker("task", "load", str(file))
        assert (told.returncode, told.stdout) == (1, b"")
        assert f"{file}: {said}" in told.stderr.decode()


def test_load_streams_json_lines(stoker: Stoker, swarm: Swarm, tmp_path: Path) -> None:
    file = tmp_path / "graph.jsonl"
    file.write_text('{"ref":"a","command":"x"}\n\n{"command":["y"],"depends_on":["a"],"group":"own"}\n')
    told = stoker("task", "load", "--group", "g", str(file), "--json")
    assert json.loads(told.stdout)["groups"] == ["g", "own"]
    first, second = swarm.tasks.values()
    assert (first["group"], second["group"], second["depends_on"]) == ("g", "own", [first["id"]])
    assert stoker("task", "load", "-q", "-", stdin=b'{"command":"x"}\n').stdout.startswith(b"load-")
    refusal = {"error": {"code": "invalid", "message": "line 2: priority: expected less.", "hint": ""}}
    swarm.answers = [(422, {}, refusal)]
    assert b"Error: stdin: line 2: priority: expected less." in stoker("task", "load", "-", stdin=b"{}").stderr
    for line, said in [
        (b"{nothing", b"stdin: line 1: this is not JSON"),
        (b'{"a":1}\n[1]', b"line 2: expected an obj"),
    ]:
        told = stoker("task", "load", "-", stdin=line)
        assert (told.returncode, told.stdout) == (1, b"")
        assert said in told.stderr


def test_no_server_is_no_excuse_for_a_wrong_file(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text("tasks: [{comand: x}]")
    told = call({**environ, "STOKER_URL": "http://127.0.0.1:9"}, "task", "load", str(tmp_path / "graph.yaml"))
    assert b"Did you mean command?" in told.stderr
