"""`stoker task` with a real server, a real worker and real commands."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli import exits
from tests.cli.conftest import ROOT, Real, command
from tests.cli.terminal import terminal

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def worker(real: Real, shared_directory: Path) -> Iterator[None]:
    place = ["--dir", str(shared_directory / "swarm-worker"), "--name", "hand"]
    started = subprocess.Popen(
        command("worker", "--cpus", "8", *place), env=real.env, cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield
    started.terminate()
    started.wait(timeout=30)


@pytest.mark.usefixtures("worker")
class TestWithAWorker:
    def test_what_a_task_writes_arrives_byte_for_byte(self, real: Real) -> None:
        script = r"printf '\000\377one'; printf 'oh\n' >&2; seq 200000; echo 42 > $STOKER_RESULT; exit 3"
        told = real("task", "add", "--name", "bytes", "-w", script)
        assert told.returncode == exits.RUN_FAILED
        expected = b"\x00\xffone" + b"".join(f"{number}\n".encode() for number in range(1, 200001))
        for args in ([], ["-f"], ["--attempt", "1"]):
            told = real("task", "logs", "bytes", *args)
            assert (told.stdout, told.stderr) == (expected, b"oh\n")
        task = json.loads(real("task", "get", "bytes", "--json").stdout)
        assert (task["exit_status"], task["execution_info"]["result"]) == (3, "42\n")
        assert real("task", "logs", "bytes", "--attempt", "2").returncode == 1

    def test_logs_are_followed_while_it_writes(self, real: Real) -> None:
        script = "echo one; sleep 0.7; echo two; test $STOKER_ATTEMPT = 2"
        (id,) = real("task", "add", "-q", "--retries", "1", script).stdout.decode().split()
        told = real("task", "logs", "-f", id)
        assert (told.returncode, told.stdout) == (0, b"one\ntwo\none\ntwo\n")
        assert b"this is attempt 2" in told.stderr

    def test_a_map_is_waited_for_and_what_failed_is_done_again(self, real: Real, tmp_path: Path) -> None:
        line = f"test {{}} != 7 || test -e {tmp_path / 'mended'}"
        told = real("task", "map", "-w", "--range", "1..50", "--group", "some", "-n", "n{}", "--cpus", "0.5", line)
        assert (told.returncode, told.stdout.decode().splitlines()) == (
            exits.RUN_FAILED,
            ["some", "some: 49/50 done, 1 failed; failed attempts: 1× exit 1"],
        )
        assert [
            one["name"] for one in json.loads(real("task", "list", "--failed", "--group", "some", "--json").stdout)
        ] == ["n7"]
        (tmp_path / "mended").touch()
        (new,) = json.loads(real("task", "retry", "--group", "some", "--json").stdout)["ids"].values()
        assert real("task", "wait", new).returncode == 0
        names = [one["name"] for one in json.loads(real("task", "list", "-a", "--group", "some", "--json").stdout)]
        assert names == ["n7", *(f"n{number}" for number in range(50, 0, -1))]

    def test_a_graph_runs_in_order_and_is_drawn(self, real: Real, tmp_path: Path) -> None:
        (tmp_path / "graph.yaml").write_text(
            f"group: drawn\ntasks:\n- name: first\n  command: echo > {tmp_path}/a\n"
            f"- name: second\n  command: test -e {tmp_path}/a\n  depends_on: [first]\n"
            "- name: all\n  depends_on: [second]\n- name: last\n  command: 'false'\n  depends_on: [all]\n"
        )
        told = real("task", "load", "-w", str(tmp_path / "graph.yaml"))
        assert told.returncode == exits.RUN_FAILED, told.stderr
        drawn = ["first  done", "  second  done", "    all  done", "      last  failed (1)"]
        assert real("task", "tree", "--group", "drawn").stdout.decode().splitlines() == drawn
        assert real("task", "tree", "first").stdout.decode().splitlines() == drawn

    def test_one_that_begins_later_is_waited_for(self, real: Real) -> None:
        told = real("task", "add", "-q", "--wait", "--start-after", "1s", "--", "true")
        assert (told.returncode, told.stderr.decode()) == (0, "")

    def test_what_runs_is_cancelled(self, real: Real) -> None:
        (id,) = (
            real("task", "add", "-q", "trap 'echo bye; exit 1' TERM; echo up; sleep 60 & wait").stdout.decode().split()
        )
        with terminal(real.env, "task", "logs", "-f", id) as person:
            person.wait_for(b"up")
            assert b"being told" in real("task", "cancel", id).stdout
            person.wait_for(b"bye")
            assert person.ends() == 0
        assert real("task", "wait", id, "--timeout", "20s").returncode == exits.RUN_STOPPED

    def test_a_script_needs_only_the_package(self, real: Real) -> None:
        script = (
            "import stoker\n"
            "graph = stoker.Client().tasks.graph()\n"
            "line = 'echo {n} > $STOKER_RESULT; echo out {n}'\n"
            "parts = [graph.add(line.format(n=n), name=str(n)) for n in range(9)]\n"
            "graph.add(after=parts)\n"
            "sent = graph.submit()\n"
            "told = sent.wait(30)\n"
            "print(told.ok, told.total, [(one.name, one.value, one.stdout, one.ok) for one in sent.results()][-2:])\n"
        )
        told = subprocess.run([sys.executable, "-c", script], env=real.env, capture_output=True, cwd=ROOT, timeout=60)
        assert told.stdout.decode() == "True 10 [('8', '8\\n', b'out 8\\n', True), ('', None, b'', True)]\n", (
            told.stderr
        )

    def test_the_worker_is_seen(self, real: Real) -> None:
        (one,) = json.loads(real("workers", "--json").stdout)
        assert (one["name"], one["state"], one["total"]["cpus"]) == ("hand", "active", 8)
        assert "hand" in real("workers", "hand").stdout.decode()
        assert "hand" in real("task", "top").stdout.decode()


def test_a_wait_outlives_a_killed_server(own: Real, shared_directory: Path) -> None:
    """Nobody runs them, and the server is killed and started again; then they are cancelled."""
    own.up()
    port = json.loads(own("config", "--json").stdout)["url"]["value"].rpartition(":")[2]
    assert own("task", "map", "--range", "1..3", "--group", "g", "true").returncode == 0
    waiting = subprocess.Popen(
        command("task", "wait", "--group", "g"), env=own.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    threading.Event().wait(0.7)
    os.kill(own.pid, 9)
    assert own("up", "-d", "--port", port).returncode == 0
    assert own("task", "cancel", "--group", "g").stdout == b"3 cancelled\n"
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (exits.RUN_STOPPED, b"g: 0/3 done, 3 cancelled\n")
    assert err.count(b"trying again") == err.count(b"The server is back.") == 1
