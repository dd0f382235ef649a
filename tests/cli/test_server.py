"""`up` and `down`: one command starts everything, one stops it, and what is in the way is said in a sentence."""

import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from stoker.shim.start import listening
from tests.cli.conftest import ROOT, Real, bare_environ, call, command
from tests.cli.terminal import CTRL_C, terminal

pytestmark = pytest.mark.xdist_group("cli")


def test_up_and_down_and_up_again(own: Real) -> None:
    told = json.loads(own("up", "-d", "--port", "0", "--json").stdout)
    assert told["pid"] == own.pid
    assert stat.S_IMODE((own.home / "config.yml").stat().st_mode) == 0o600
    again = own("up", "-d")
    assert (again.returncode, b"already running" in again.stderr) == (0, True)
    assert told["url"].encode() in again.stdout
    assert own("up", "-d", "--port", "1").returncode == 1
    assert own("run", "--name", "first", "--", "echo", "hi").stdout == b"hi\n"
    assert own("down").stdout == b"Stopped.\n"
    assert own("ps").returncode == 1
    down = own("down")
    assert (down.returncode, b"No server" in down.stderr) == (0, True)
    own.up()
    assert "first" in [run["name"] for run in json.loads(own("ps", "-a", "--json").stdout)]
    assert own("logs", "first").stdout == b"hi\n"
    own("down")
    deadline = time.monotonic() + 10
    while left := still_there(own.home):
        assert time.monotonic() < deadline, left


def still_there(home: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{home}/" in line or f"{home} " in line:
            found.append(line)
    return found


def test_a_server_comes_back_on_the_port_it_had(own: Real) -> None:
    own.up()
    url = json.loads(own("config", "--json").stdout)["url"]
    own("down")
    assert own("up", "-d").returncode == 0
    assert json.loads(own("config", "--json").stdout)["url"] == url


def test_what_runs_goes_on_without_the_server(own: Real, shared_directory: Path) -> None:
    gate = shared_directory / "gate"
    own.up()
    own("run", "-d", "--name", "long", f"until [ -e {gate} ]; do sleep 0.05; done; echo late; exit 3")
    wait_until_running(own, "long")
    told = own("down")
    assert b"go on without it" in told.stderr
    gate.touch()
    time.sleep(0.5)
    own.up()
    assert own("wait", "long").returncode == 3
    assert own("logs", "-f", "long").stdout == b"late\n"


def wait_until_running(server: Real, name: str) -> None:
    deadline = time.monotonic() + 20
    while json.loads(server("get", name, "--json").stdout)["status"] != "RUNNING":
        assert time.monotonic() < deadline


def test_a_killed_server_is_noticed_and_started_again(own: Real) -> None:
    own.up()
    os.kill(own.pid, signal.SIGKILL)
    assert own("ps").returncode == 1
    own.up()
    assert own("ps").returncode == 0


def test_in_the_foreground_ctrl_c_stops_it(own: Real) -> None:
    with terminal(own.env, "up", "--port", "0") as person:
        person.wait_for(b"Stoker is up at http://127.0.0.1:", 60)
        assert own("ps").returncode == 0
        beside = own("up")
        assert beside.returncode == 1
        assert b"already running, process" in beside.stderr
        person.type(CTRL_C)
        assert person.ends(60) == 0
    assert b"Traceback" not in person.seen
    assert own("ps").returncode == 1


def test_server_without_a_local_fleet(shared_directory: Path) -> None:
    """What a service manager starts, and stops by SIGTERM."""
    new = Real(shared_directory / "service")
    serving = subprocess.Popen(command("server", "--port", "0"), env=new.env, stderr=subprocess.PIPE, cwd=ROOT)
    deadline = time.monotonic() + 60
    while new("ps").returncode:
        assert time.monotonic() < deadline
    assert json.loads(new("instances", "--json").stdout) == []
    serving.send_signal(signal.SIGTERM)
    serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_a_port_in_use_is_said_at_once(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = call(environ, "up", "-d", "--port", str(port))
    assert told.returncode == 1
    assert f"Port {port} is used by another program.".encode() in told.stderr
    assert b"--port" in told.stderr
    told = call(environ, "up", "--host", "203.0.113.7")
    assert b"does not have the address" in told.stderr
    assert call(environ, "up", "--port", "70000").returncode == 2


def test_a_home_that_cannot_be_used(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        told = call({**environ, "STOKER_HOME": str(home)}, "up", "-d")
        assert told.returncode == 1, home
        assert str(home).encode() in told.stderr
        assert b"STOKER_HOME" in told.stderr


def test_a_home_of_somebody_else(environ: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if os.geteuid() == 0:
        os.chown(other, 1, 1)
    else:
        other.chmod(0o500)
    told = call({**environ, "STOKER_HOME": str(other)}, "up", "-d")
    assert told.returncode == 1
    assert b"--home" in told.stderr


def test_a_foreign_process_with_our_pid_is_left_alone(environ: dict[str, str]) -> None:
    """After a reboot the number in the file may be anybody's."""
    home = Path(environ["STOKER_HOME"])
    home.mkdir()
    with subprocess.Popen(["sleep", "60"]) as other:
        (home / "server.pid").write_text(f"{other.pid} 12345 some-other-boot\n")
        told = call(environ, "down", "--force")
        assert (told.returncode, b"No server" in told.stderr) == (0, True)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("text", ["", "abc", "1", "4194305", "-5 x y", "99999999999 1 2"])
def test_a_damaged_pid_file_is_no_server(environ: dict[str, str], text: str) -> None:
    home = Path(environ["STOKER_HOME"])
    home.mkdir()
    (home / "server.pid").write_text(text)
    assert b"No server" in call(environ, "down").stderr


def test_a_start_that_fails_shows_the_end_of_its_log(environ: dict[str, str]) -> None:
    told = call({**environ, "STOKER_DATABASE_URL": "mysql://x"}, "up", "-d", "--port", "0")
    assert told.returncode == 1
    assert b"STOKER_DATABASE_URL is not a PostgreSQL URL" in told.stderr
    assert f"{environ['STOKER_HOME']}/server.log".encode() in told.stderr
    assert b"Traceback" not in told.stderr
    assert not listening(Path(environ["STOKER_HOME"]) / "shim"), "the agent that was started for it is gone again"


def test_two_at_once_are_one(own: Real) -> None:
    """Two terminals, the same moment: one starts it, the other finds it or says so."""
    both = [
        subprocess.Popen(
            command("up", "-d", "--port", "0"), env=own.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    told = [each.communicate(timeout=120) for each in both]
    assert 0 in [each.returncode for each in both], told
    assert b"Traceback" not in b"".join(err for _, err in told)
    assert own("ps").returncode == 0


def test_the_default_home(tmp_path: Path) -> None:
    env = {**bare_environ(), "HOME": str(tmp_path)}
    shown = json.loads(call(env, "config", "--json").stdout)["home"]["value"]
    assert shown == ("/var/lib/stoker" if os.geteuid() == 0 else f"{tmp_path}/.stoker")
