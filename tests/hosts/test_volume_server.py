"""Volumes from a file that a person applies to what a kernel mounts: a real server, its own host, real file systems."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from stoker.runner.view import mounted_below
from stoker.shim.mount import command
from tests.cli.conftest import Real
from tests.machine import as_root

pytestmark = [as_root, pytest.mark.xdist_group("volumes")]

PATIENCE_S: Final = 30.0
BACKENDS: Final = "dummy: {offers: [{name: laptop, cpu: 1, memory: 1GB, real: true, capacity: 2}]}\n"
Json = Any


@pytest.fixture(scope="module")
def server(shared_directory: Path) -> Iterator[Real]:
    made = Real(shared_directory / "volumes")
    made.home.mkdir(mode=0o711)
    (made.home / "backends.yml").write_text(BACKENDS)
    made.up()
    yield made
    made.clear()


def volumes_of(server: Real) -> Path:
    return server.home / "shim" / "volumes"


def apply(server: Real, configuration: Json) -> "subprocess.CompletedProcess[bytes]":
    """`stoker apply -f -`, as a program calls it."""
    return server("apply", "-y", "-d", "-f", "-", stdin=json.dumps(configuration).encode())


def volume(at: Real, **fields: Any) -> str:
    name = f"v-{uuid4().hex[:8]}"
    told = apply(at, {"type": "volume", "name": name, **fields})
    assert told.returncode == 0, told.stderr
    until(lambda: seen(at, name)["status"] == "ACTIVE")
    return name


def seen(server: Real, name: str) -> Json:
    return json.loads(server("volume", "get", name, "--json").stdout)


def run(server: Real, volumes: list[str], *commands: str, **fields: Any) -> str:
    name = f"r-{uuid4().hex[:8]}"
    configuration = {"type": "task", "name": name, "fleets": ["local"], "commands": commands, "volumes": volumes}
    told = apply(server, configuration | fields)
    assert told.returncode == 0, told.stderr
    return name


def wait(server: Real, name: str) -> tuple[int, str]:
    """Its exit code, and what is said of it."""
    done = server("wait", name)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def status(server: Real, name: str) -> str:
    found: str = json.loads(server("get", name, "--json").stdout)["status"]
    return found


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("size", [{}, {"size": "16MB"}], ids=["directory", "loop"])
def test_what_one_run_wrote_the_next_one_finds(server: Real, size: Json) -> None:
    name, inside = volume(server, **size), f"/stoker-{uuid4().hex}"
    written = wait(server, run(server, [f"{name}:{inside}"], f"echo kept > {inside}/x"))
    assert written[0] == 0, written
    assert (mounted_below(str(volumes_of(server))), os.path.exists(inside)) == ([], False)
    only_read = [f"{name}:{inside}:ro"]
    look = run(server, only_read, f'test "$(cat {inside}/x)" = kept', f"! echo no > {inside}/x")
    assert wait(server, look)[0] == 0
    deleted = server("volume", "delete", name, "-y")
    assert deleted.returncode == 0, deleted.stderr
    until(lambda: seen(server, name)["status"] == "DELETED")
    assert [one.name for one in volumes_of(server).iterdir()] == ["points"]


def test_one_on_a_named_instance_is_made_before_any_job_wants_it_or_says_why_not(server: Real) -> None:
    (host,) = json.loads(server("instance", "list", "--fleet", "local", "--json").stdout)
    name = volume(server, instance=host["name"], size="16MB")
    (image,) = volumes_of(server).glob("*/image")
    assert image.stat().st_size == 16 * 1024 * 1024
    large = f"v-{uuid4().hex[:8]}"
    apply(server, {"type": "volume", "name": large, "instance": host["name"], "size": "900TB"})
    failed = until(lambda: (found := seen(server, large))["status"] == "FAILED" and found)
    assert "this host's disk has" in failed["message"]
    refused = apply(server, {"type": "task", "commands": ["true"], "volumes": [f"{large}:x"]})
    assert f"volume {large} has failed" in refused.stderr.decode()
    for one in (name, large):
        assert server("volume", "delete", one, "-y").returncode == 0
        until(lambda one=one: seen(server, one)["status"] == "DELETED")  # type: ignore[misc]
    assert list(volumes_of(server).glob("*/image")) == []


def test_a_full_volume_fails_its_job_and_nothing_else(server: Real) -> None:
    name = volume(server, size="16MB")
    code, _ = wait(server, run(server, [f"{name}:data"], "head -c 99000000 /dev/zero > data/x"))
    assert code == 1
    assert wait(server, run(server, [f"{name}:data"], "rm data/x", "head -c 4000000 /dev/zero > data/x"))[0] == 0


def test_server_and_agent_are_killed_while_a_job_has_it(server: Real) -> None:
    """What is mounted is found again by whoever comes after them, and undone once, when the job has ended."""
    name = volume(server, size="16MB")
    slow = run(server, [f"{name}:data"], "echo 1 > data/x", "until [ -e data/go ]; do sleep 0.05; done", "cat data/x")
    place = until(lambda: next(volumes_of(server).glob("*/x"), None)).parent
    os.kill(server.pid, signal.SIGKILL)
    shim = int(subprocess.check_output(["fuser", str(server.home / "shim" / "lock")], stderr=subprocess.DEVNULL))
    os.kill(shim, signal.SIGKILL)
    server.up()
    assert seen(server, name)["attached"] == [f"{slow}/0-0"]
    (place / "go").touch()
    code, said = wait(server, slow)
    assert code == 0, said
    assert (mounted_below(str(volumes_of(server))), seen(server, name)["attached"]) == ([], [])


def test_a_volume_that_is_busy_keeps_its_job_terminating_and_says_who_holds_it(server: Real) -> None:
    """Somebody looks around on the host. The next job, which may not have it at the same time, waits for him too."""
    name = volume(server, size="16MB", exclusive=True)
    first = run(server, [f"{name}:data"], "echo 1 > data/x", "until [ -e data/go ]; do sleep 0.05; done")
    place = until(lambda: next(volumes_of(server).glob("*/x"), None)).parent
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=place) as holder:
        (place / "go").touch()
        said = until(lambda: "cannot be unmounted" in (told := server("events", first).stdout.decode()) and told)
        assert f"process {holder.pid} (python" in said
        assert status(server, first) == "TERMINATING"
        second = run(server, [f"{name}:data"], "cat data/x")
        why = server("why", second).stdout.decode()
        assert f"volume {name} is attached to {first}/0-0, and only one job may have it at a time" in why
        holder.communicate(b"\n")
    assert wait(server, first)[0] == 0
    assert wait(server, second)[0] == 0


def test_what_no_host_can_mount_is_a_volume_error_in_the_hosts_words(server: Real) -> None:
    """No server there, or a kernel without nfs: the job says which, and nothing stays behind."""
    name = volume(server, kind="nfs", server="127.0.0.1", path="/nowhere")
    code, said = wait(server, run(server, [f"{name}:/stoker-nfs"], "true"))
    assert (code, f"Volume {name} cannot be mounted: " in said) == (100, True), said
    assert mounted_below(str(volumes_of(server))) == []


def test_how_a_host_is_asked_to_mount() -> None:
    """Nothing that a person writes becomes an option, and nobody becomes another user by what lies in a volume."""
    assert command("nas:/srv/data", Path("/v"), "nfs") == [
        "mount", "-t", "nfs", "-o", "nosuid,nodev,retry=0", "--", "nas:/srv/data", "/v",
    ]  # fmt: skip
    assert command("/v.kept/image", Path("/v"), "ext4")[4] == "nosuid,nodev,loop"
    assert command("/v.kept/image", Path("/v"), "ext4", "/dev/loop3")[4:] == ["nosuid,nodev", "--", "/dev/loop3", "/v"]


def test_a_disk_of_a_provider_goes_with_its_jobs_from_machine_to_machine(server: Real) -> None:
    """The machine on which it was written is gone when the next job reads it."""
    name = volume(server, kind="dummy")
    apply(server, {"type": "fleet", "name": "cloud", "backends": ["dummy"], "nodes": "0..2", "idle_duration": "off"})
    disk = [f"{name}:/stoker-disk"]
    assert wait(server, run(server, disk, "echo kept > /stoker-disk/x", fleets=["cloud"]))[0] == 0
    (machine,) = json.loads(server("instance", "list", "--fleet", "cloud", "--json").stdout)
    assert server("instance", "delete", machine["name"], "-y").returncode == 0
    read = run(server, disk, 'test "$(cat /stoker-disk/x)" = kept', fleets=["cloud"])
    code, said = wait(server, read)
    assert code == 0, said
    (other,) = json.loads(server("instance", "list", "--fleet", "cloud", "--json").stdout)
    assert other["name"] != machine["name"]
    # Its agent is a process of this host, which outlives the server.
    assert server("fleet", "delete", "cloud", "-y").returncode == 0
    until(lambda: "cloud" not in {one["fleet"] for one in json.loads(server("instance", "list", "--json").stdout)})


def test_a_directory_of_the_host_is_mounted_for_the_servers_admin(server: Real, shared_directory: Path) -> None:
    there = shared_directory / f"sets-{uuid4().hex}"
    there.mkdir(mode=0o755)
    (there / "x").write_text("of the host")
    looked = run(server, [f"{there}:/stoker-sets:ro"], 'test "$(cat /stoker-sets/x)" = "of the host"')
    assert wait(server, looked)[0] == 0
