"""The commands with a real server, a real agent and real jobs."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from stoker.cli import exits
from tests.cli.conftest import ROOT, Real, command
from tests.cli.terminal import CTRL_C, terminal

pytestmark = pytest.mark.xdist_group("cli")


def test_every_example_runs(real: Real) -> None:
    # Two nodes want two machines: tests/process/test_gang.py has them.
    files = sorted(file for file in (ROOT / "examples").glob("*.yaml") if file.stem != "nodes")
    files = [file for file in files if "\nschedule:" not in file.read_text() and file.stem != "volume"]
    assert real("apply", "-y", "-f", "examples/volume.yaml").returncode == 0
    names = [real("apply", "-y", "-d", "-f", str(file)).stdout.decode().strip() for file in files]
    assert names == [file.stem for file in files]
    ended = json.loads(real("wait", "--json", *names).stdout)
    # One saves its work when it is warned, and says by its exit code that it is not done.
    assert {run["name"]: run["status"] for run in ended} == dict.fromkeys(names, "DONE") | {"checkpoint": "FAILED"}
    assert b"saved step" in real("logs", "checkpoint").stdout
    assert real("logs", "keep").stdout == b"This ran 1 times.\n"


def test_the_example_with_a_schedule_runs_by_hand(real: Real) -> None:
    assert real("apply", "-y", "-f", "examples/schedule.yaml").stdout == b"schedule\n"
    assert real("trigger", "schedule").returncode == 0
    deadline = time.monotonic() + 30
    while (json.loads(real("get", "schedule", "--json").stdout)["schedule"]["last"] or {}).get("status") != "DONE":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert b"round of schedule" in real("logs", "schedule").stdout
    assert real("stop", "schedule").returncode == 0


def test_a_log_arrives_byte_for_byte(real: Real) -> None:
    script = r"printf '\000\377one'; printf 'oh\n' >&2; sleep 0.2; seq 20000; printf 'no end'"
    told = real("run", "--name", "bytes", script)
    expected = b"\x00\xffone" + b"".join(f"{number}\n".encode() for number in range(1, 20001)) + b"no end"
    assert told.returncode == 0
    assert told.stdout == expected
    assert b"oh\n" in told.stderr
    for args in (["logs", "bytes"], ["logs", "-f", "bytes"]):
        again = real(*args)
        assert (again.stdout, again.stderr) == (expected, b"oh\n")
    assert real("logs", "bytes", "--tail", "2").stdout == b"20000\nno end"
    assert real("logs", "bytes", "--since", "1h", "-t", env={"TZ": "UTC"}).stdout.endswith(b"+00:00 no end")
    last = [json.loads(line) for line in real("logs", "bytes", "--tail", "2", "--json").stdout.splitlines()]
    assert [(one["stream"], one["text"]) for one in last] == [("stdout", "20000"), ("stdout", "no end")]
    too_many = real("logs", "bytes", "--tail", "100001")
    assert too_many.returncode == 1 and b"tail" in too_many.stderr and b"100000" in too_many.stderr
    assert real("logs", "bytes", "--since", "2100-01-01T00:00:00Z").stdout == b""
    job = json.loads(real("get", "bytes", "--json").stdout)["jobs"][0]["id"]
    assert real("logs", "bytes", "--job", job).stdout == expected
    assert real("logs", "bytes", "--replica", "7").returncode == 1


def test_what_the_agent_did_for_a_job_that_failed_can_be_read(real: Real) -> None:
    assert real("run", "--name", "fails", "exit 7").returncode == 7
    assert b"exit code 7" in real("logs", "fails", "--runner").stdout


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_the_exit_code_is_the_jobs_own(real: Real, script: str, code: int) -> None:
    assert real("run", script).returncode == code


def test_a_setup_that_fails(real: Real) -> None:
    task = json.dumps({"type": "task", "setup": ["exit 4"], "commands": ["echo never"]}).encode()
    told = real("apply", "-y", "--json", "-f", "-", stdin=task)
    assert told.returncode == 4
    assert json.loads(told.stdout)["jobs"][0]["termination_reason"] == "SETUP_FAILED"


def test_what_is_wrong_with_a_file_is_said_with_its_line(real: Real, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("type: task\ncommands: [echo]\nresources:\n  memry: 8GB\npriority: high\n")
    told = real("apply", "-y", "-f", str(file))
    assert told.returncode == 1
    assert f"{file}: line 4: resources.memry: there is no such key here. Did you mean memory?" in told.stderr.decode()
    assert f"{file}: line 5: priority: " in told.stderr.decode()


def test_wrong_flags_of_run_are_said_by_the_server(real: Real) -> None:
    told = real("run", "--memory", "lots", "--", "true")
    assert told.returncode == 1
    assert b"memory" in told.stderr
    assert b"Traceback" not in told.stderr


def test_the_callers_environment(real: Real) -> None:
    assert real("run", "-e", "MINE", "-e", "B=2", "echo $MINE $B", env={"MINE": "s3cret"}).stdout == b"s3cret 2\n"
    assert real("run", "-C", "examples", "pwd").stdout.decode().strip() == str(ROOT / "examples")


def test_the_same_name_while_it_runs(real: Real) -> None:
    task = b"type: task\nname: twice\ncommands: [sleep 60]\n"
    assert real("apply", "-y", "-d", "-f", "-", stdin=task).returncode == 0
    assert b"is this already" in real("apply", "-y", "-d", "-f", "-", stdin=task).stderr
    other = task.replace(b"60", b"61")
    for told in (real("apply", "-y", "-d", "-f", "-", stdin=other), real("run", "-d", "-n", "twice", "--", "true")):
        assert told.returncode == 1
        assert b"twice" in told.stderr
    assert real("wait", "twice", "--timeout", "0.1s").returncode == exits.RUN_UNFINISHED
    assert real("delete", "twice", "-y").returncode == 1
    assert real("stop", "twice").stdout.startswith(b"twice  TERM")
    assert real("wait", "twice").returncode == exits.RUN_STOPPED
    assert real("delete", "twice", "-y").stdout == b"twice  deleted\n"
    assert real("wait", "twice").returncode == exits.RUN_NOT_FOUND


def test_ctrl_c_and_stop_lets_it_end_in_good_order(real: Real) -> None:
    with terminal(
        real.env, "run", "--name", "polite", "trap 'echo cleaning; exit 0' TERM; echo up; sleep 60 & wait"
    ) as person:
        person.wait_for(b"up\r\n")
        person.type(CTRL_C)
        person.wait_for(b"[s]top")
        person.type(b"s\n")
        person.wait_for(b"cleaning")
        assert person.ends() == exits.RUN_STOPPED
    run = json.loads(real("get", "polite", "--json").stdout)
    assert (run["status"], run["termination_reason"]) == ("TERMINATED", "STOPPED_BY_USER")


def test_ctrl_c_and_detach_leaves_it_running(real: Real) -> None:
    with terminal(real.env, "run", "--name", "left", "echo up; sleep 1; echo still here") as person:
        person.wait_for(b"up\r\n")
        person.type(CTRL_C)
        person.wait_for(b"[d]etach")
        person.type(b"d\n")
        assert person.ends() == exits.RUN_UNFINISHED
    assert real("wait", "left").returncode == 0
    assert real("logs", "left").stdout == b"up\nstill here\n"


def test_a_run_that_no_machine_can_take(real: Real) -> None:
    assert real("run", "-d", "--name", "huge", "--cpu", "100000", "--", "true").returncode == 0
    assert b"cpu" in real("why", "huge").stdout.lower()
    assert json.loads(real("why", "huge", "--json").stdout)["sentence"]
    plan = real(
        "apply",
        "--dry-run",
        "--json",
        "-f",
        "-",
        stdin=b'{"type":"task","commands":["true"],"resources":{"cpu":99999}}',
    )
    assert json.loads(plan.stdout)["action"] in ("queue", "fail")
    assert real("stop", "huge").returncode == 0
    assert real("wait", "huge").returncode == exits.RUN_STOPPED
    told = real("run", "--fail-fast", "--cpu", "100000", "--", "true")
    assert told.returncode == exits.RUN_FAILED


def test_events_tell_the_story(real: Real) -> None:
    real("run", "--name", "story", "--", "true")
    told = [json.loads(line) for line in real("events", "story", "--json").stdout.splitlines()]
    assert [one["target"] for one in told if one["kind"] == "run"][-1] == "DONE"
    (instance,) = json.loads(real("instances", "--json").stdout)
    assert [one["message"] for one in told if one["event"] == "Placed"] == [f"on {instance['name']}"]
    assert all(one["at"].endswith("Z") for one in told)
    followed = [json.loads(line) for line in real("events", "-f", "story", "--json").stdout.splitlines()]
    assert followed == told
    assert b"DONE" in real("events", "story").stdout
    assert b"DONE" in real("events", "-f", "story").stdout
    of_all = [json.loads(line) for line in real("events", "--since", "1h", "--json").stdout.splitlines()]
    assert [one for one in of_all if one["run"] == "story"] == told
    of_instance = real("events", "--instance", instance["name"], "--by", "server", "--json").stdout.splitlines()
    assert {json.loads(line)["name"] for line in of_instance} == {instance["name"]}
    # Other tests may have cordoned it, which is an admin's doing.
    assert len(of_instance) == sum(one["kind"] == "instance" and one["by"] != "admin" for one in of_all)
    assert {json.loads(line)["event"] for line in real("events", "--by", "admin", "--json").stdout.splitlines()}
    assert real("events", "--fleet", "nowhere").returncode == 1


def test_machines_and_fleets(real: Real) -> None:
    (instance,) = json.loads(real("instances", "--json").stdout)
    assert real("instances").stdout.decode().splitlines()[1].split()[0] == instance["name"]
    for ref in (instance["id"], instance["name"]):
        assert json.loads(real("instances", ref, "--json").stdout)["id"] == instance["id"]
    assert f"free cpu     {instance['free']['cpu']:g} of" in real("instances", instance["name"]).stdout.decode()
    assert real("instances", "local-0").returncode == 1
    assert b"local" in real("fleets").stdout
    assert json.loads(real("fleets", "local", "--json").stdout)["name"] == "local"


def test_people_projects_and_tokens(real: Real) -> None:
    assert b"admin" in real("user", "me").stdout
    assert real("user", "create", "ada").returncode == 0
    assert real("project", "create", "vision").returncode == 0
    assert real("project", "add", "ada", "--role", "manager", "--project", "vision").returncode == 0
    assert b"manager" in real("project", "members", "--project", "vision").stdout
    secret = (
        real("token", "create", "laptop", "--user", "ada", "--only", "vision", "--expires", "1h")
        .stdout.decode()
        .strip()
    )
    ada = {"STOKER_TOKEN": secret, "STOKER_PROJECT": "vision"}
    assert json.loads(real("user", "me", "--json", env=ada).stdout)["name"] == "ada"
    assert real("ps", env=ada).returncode == 0
    assert real("ps", "--project", "main", env=ada).returncode == 1
    assert secret.encode() not in real("token", "list").stdout
    (token,) = [one for one in json.loads(real("token", "list", "--json").stdout) if one["name"] == "laptop"]
    assert real("token", "revoke", token["id"]).returncode == 0
    refused = real("ps", env=ada)
    assert refused.returncode == 1
    assert b"STOKER_TOKEN" in refused.stderr or b"token" in refused.stderr
    assert real("project", "remove", "ada", "--project", "vision").returncode == 0
    assert real("user", "set", "ada", "--admin").returncode == 0
    assert real("user", "delete", "ada", "-y").returncode == 0
    assert real("project", "delete", "vision", "-y").returncode == 0
    assert [one["name"] for one in json.loads(real("project", "list", "--json").stdout)] == ["main"]


def test_an_attached_run_outlives_a_killed_server(own: Real) -> None:
    """The server is killed while somebody watches; a new one comes, and the log goes on as if nothing had been."""
    own.up()
    port = json.loads(own("config", "--json").stdout)["url"]["value"].rpartition(":")[2]
    attached = subprocess.Popen(
        command("run", "--name", "watched", "for i in $(seq 40); do echo $i; sleep 0.1; done; exit 9"),
        env=own.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    lines: list[bytes] = []
    assert attached.stdout is not None
    reading = threading.Thread(target=lambda: lines.extend(attached.stdout or ()))
    reading.start()
    deadline = time.monotonic() + 30
    while len(lines) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(own.pid, signal.SIGKILL)
    time.sleep(1.0)
    assert own("up", "-d", "--port", port).returncode == 0
    assert attached.wait(timeout=60) == 9
    reading.join()
    assert lines == [f"{number}\n".encode() for number in range(1, 41)]
    assert attached.stderr is not None
    said = attached.stderr.read()
    assert said.count(b"trying again") == said.count(b"The server is back.") == 1


def test_wait_outlives_a_killed_server(own: Real) -> None:
    own.up()
    port = json.loads(own("config", "--json").stdout)["url"]["value"].rpartition(":")[2]
    own("run", "-d", "--name", "slow", "sleep 3; exit 5")
    waiting = subprocess.Popen(
        command("wait", "slow"), env=own.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    time.sleep(0.7)
    os.kill(own.pid, signal.SIGKILL)
    assert own("up", "-d", "--port", port).returncode == 0
    waiting.communicate(timeout=60)
    assert waiting.returncode == 5
