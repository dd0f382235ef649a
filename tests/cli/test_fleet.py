"""`stoker fleet`, `stoker instance` and `apply` of a fleet, with a real server, a real agent and real jobs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import moment
from stoker.cli.fleet import money
from stoker.cli.instance import show_table
from tests.cli.conftest import Real

pytestmark = pytest.mark.xdist_group("cli")

LOCAL = "type: fleet\nname: local\nbackends: [local]\n"
CLOUD = "type: fleet\nname: cloud\nbackends: [dummy]\nnodes: 0..2\ntags: {team: vision}\n"


def said(told: Any) -> str:
    return (told.stdout + told.stderr).decode()  # type: ignore[no-any-return]


def host(real: Real) -> Any:
    (one,) = json.loads(real("instance", "list", "--fleet", "local", "--json").stdout)
    return one


def until(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s:.0f} s in vain: {what}"
        time.sleep(0.05)


def apply(real: Real, text: str, *flags: str) -> Any:
    return real("apply", "-f", "-", *flags, stdin=text.encode())


def test_a_fleet_is_made_shown_changed_and_deleted(real: Real) -> None:
    """By people, step by step: a look, a question, and what was done."""
    dry = apply(real, CLOUD, "--dry-run")
    assert dry.returncode == 0 and "Fleet cloud would be made." in said(dry)
    assert json.loads(apply(real, CLOUD, "--dry-run", "--json").stdout)["action"] == "create"
    unasked = apply(real, CLOUD)
    assert unasked.returncode == 2 and "no terminal to ask on; add -y" in said(unasked)
    assert apply(real, CLOUD, "-y").stdout == b"cloud  made\n"
    assert real("fleet", "get", "-w", "cloud").returncode == 0, "where no machine has to come nobody waits for one"
    again = apply(real, CLOUD)
    assert (again.returncode, again.stdout) == (0, b"cloud  unchanged\n"), "where nothing changes nobody is asked"
    changed = apply(real, CLOUD.replace("0..2", "0..8"), "-y")
    assert "nodes: 0..2 → 0..8" in changed.stderr.decode()
    assert changed.stdout == b"cloud  changed\n"
    assert json.loads(apply(real, CLOUD, "-y", "--json").stdout)["version"] == 2
    listed = real("fleet", "list", "--tag", "team=vision").stdout.decode()
    assert "cloud" in listed and "local" not in listed
    shown = real("fleet", "get", "cloud").stdout.decode()
    assert "backends" in shown and "team: vision" in shown
    assert json.loads(real("fleet", "get", "cloud", "--json").stdout)["members"] == []
    assert "Did you mean cloud?" in said(real("fleet", "get", "clowd"))
    assert real("fleet", "delete", "cloud", "-y").stdout == b"cloud  deleted\n"
    until(lambda: real("fleet", "get", "cloud").returncode == 1, "it is gone")


def test_what_is_wrong_with_a_fleet_is_said_with_its_line(real: Real, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("type: fleet\nname: cloud\nbackends: [dumy]\nnods: 3\nnodes: 1\n")
    told = real("apply", "-y", "-f", str(file))
    assert told.returncode == 1
    assert f"{file}: line 3: backends.0: expected 'dummy' or 'local', got 'dumy'. Did you mean dummy?" in said(told)
    assert f"{file}: line 4: nods: there is no such key here. Did you mean nodes?" in said(told)
    late = apply(real, "type: fleet\nname: mine\nbackends: [local]\n", "-y")
    assert "line 2: name: the server's own host is fleet local" in said(late)


def test_the_own_host_is_divided_otherwise_when_its_last_job_has_ended(real: Real) -> None:
    before = host(real)
    assert real("run", "--name", "holds", "-d", "sleep 60").returncode == 0
    until(lambda: json.loads(real("get", "holds", "--json").stdout)["status"] == "RUNNING", "it runs")
    assert "local  changed" in said(apply(real, LOCAL + "blocks: 4\n", "-y"))
    try:
        shown = real("instance", "get", before["name"]).stdout.decode()
        assert "holds 0/0 RUNNING" in shown and f"of {before['blocks']} in use" in shown
        assert real("stop", "holds", "-y").returncode == 0
        until(lambda: host(real)["blocks"] == 4, "it is divided anew")
        assert real("run", "echo counted in fours").stdout == b"counted in fours\n"
    finally:
        assert apply(real, LOCAL, "-y").returncode == 0
    until(lambda: host(real)["blocks"] == before["blocks"], "at once, where no job is on it")
    refused = apply(real, LOCAL + "nodes: 3\n", "-y")
    assert "nodes: the server's own host is one machine. Leave it out." in said(refused)
    assert "Fleet local is the server's own host and stays." in said(real("fleet", "delete", "local", "-y"))


def test_a_cordoned_host_takes_no_jobs_until_it_is_open_again(real: Real) -> None:
    name = host(real)["name"]
    assert real("instance", "cordon", name).stdout.decode() == f"{name}  takes no new jobs\n"
    try:
        assert real("run", "--name", "patient", "-d", "true").returncode == 0
        assert f"{name} is cordoned" in said(real("why", "patient"))
        assert "takes no new jobs" in real("instance", "list").stdout.decode()
    finally:
        assert real("instance", "uncordon", name).stdout.decode() == f"{name}  takes jobs\n"
    assert json.loads(real("wait", "patient", "--json").stdout)["status"] == "DONE"
    refused = real("instance", "drain", name, "--deadline", "soon", "-y")
    assert refused.returncode == 1 and "expected a length of time" in said(refused)


def test_a_run_names_the_fleets_that_it_may_use(real: Real) -> None:
    task = "type: task\nname: choosy\ncommands: [echo here]\nfleets: [locl]\n"
    assert "there is no fleet locl" in said(apply(real, task, "-y"))
    told = apply(real, task.replace("locl", "local"), "-y")
    assert (told.returncode, told.stdout) == (0, b"here\n")


def test_a_division_outlives_the_server_and_a_drained_host_comes_back_with_it(own: Real) -> None:
    """A restart keeps what was applied; a host that was drained has ended, and joins again as another instance."""
    own.up()
    before = host(own)
    assert apply(own, LOCAL + "blocks: 3\n", "-y").returncode == 0
    until(lambda: host(own)["blocks"] == 3, "it is divided")
    assert own("run", "--name", "last", "-d", "sleep 2").returncode == 0
    until(lambda: json.loads(own("get", "last", "--json").stdout)["status"] == "RUNNING", "it runs")
    drained = json.loads(own("instance", "drain", before["name"], "--deadline", "10m", "-y", "--json").stdout)
    assert drained["status"] == "BUSY"
    assert own("down").returncode == 0
    own.up()
    assert (
        json.loads(own("instance", "get", before["name"], "--json").stdout)["draining_until"]
        == (drained["draining_until"])
    )
    until(
        lambda: json.loads(own("instance", "get", before["name"], "--json").stdout)["status"] == "TERMINATED",
        "it is empty and goes",
    )
    assert json.loads(own("wait", "last", "--json").stdout)["status"] == "DONE", "its last job ended by itself"
    assert own("down").returncode == 0
    own.up()
    after = host(own)
    assert after["id"] != before["id"] and after["blocks"] == 3
    assert own("run", "echo back").stdout == b"back\n"
    assert apply(own, LOCAL, "-y").returncode == 0


@pytest.mark.parametrize(
    ("amount", "told"),
    [(0.0, "0.00"), (0.00001, "< 0.0001"), (0.0001, "0.0001"), (0.03, "0.03"), (0.5, "0.5"), (12.25, "12.25")],
)
def test_money_is_told_as_precisely_as_it_is_little(amount: float, told: str) -> None:
    assert money(amount) == told


def test_a_machine_that_is_silent_says_for_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    has = {"cpu": 4, "memory_mb": 8192, "gpus": []}
    one = {
        "name": "dummy-1", "status": "BUSY", "fleet": "cloud", "jobs": 1, "resources": has, "free": has,
        "cordoned": True, "draining_until": None, "health": "", "message": "", "since": "2026-05-01T12:00:00Z",
        "unreachable_since": "2026-05-01T12:01:00Z", "backend": "dummy",
    }  # fmt: skip
    show_table([one], moment.parse("2026-05-01T12:04:20Z"))
    assert "unreachable for 3m 20s; takes no new jobs" in capsys.readouterr().out
