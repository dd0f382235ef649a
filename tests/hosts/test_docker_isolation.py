"""A container is bad company: what it finds of ours, and what it can make us do."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.agents.shim_stage import until
from tests.hosts.conftest import Yards
from tests.hosts.engine import Engine
from tests.machine import as_root

pytestmark = [pytest.mark.xdist_group("docker"), as_root]


async def test_on_the_hosts_network_nobody_of_ours_is_reached(yards: Yards) -> None:
    """Neither the shim nor another runner: their sockets are files that are not there, and nothing of ours listens on a
    port or under an abstract name; nor is there a token but its own."""
    async with yards() as yard:
        other = await yard.box("busybox", "sleep 60", network="host", order={"token": "o" * 40})
        process = await yard.start_job("sleep 60")
        pids = {one.process.pid for one in (yard,) if one.process is not None}
        code, text = await yard.run_box(
            "busybox",
            "ls -a /stoker/task; echo -- ; find / -path /proc -prune -o -type s -print 2>/dev/null; echo --",
            "cat /proc/net/unix; echo --",
            f"for path in {yard.home} /run/docker.sock {other.socket} {process.socket}; do ls $path 2>&1 || true; done",
            "grep -r oooooooooooooooo /stoker/task && exit 9; true",
            f"ls /proc/{min(pids)} 2>&1 || true",
            network="host",
        )
        assert code == 0, text
        listing, sockets, abstract, paths = text.split("--\n")
        assert "task.jsonl" not in listing
        assert "token" not in listing
        assert sorted(sockets.split()) == ["/stoker/task/notify.sock", "/stoker/task/runner.sock"]
        ours = [line for line in abstract.splitlines() if "stoker" in line and line.split()[-1].startswith("@")]
        assert ours == [], "an abstract name is reached by all on the host's network"
        assert paths.count("No such file") == 5, paths
        for pid in (*pids, yard.runner(process.id)):
            assert not _listens(pid), "on a port"


def _listens(pid: int | None) -> list[str]:
    """Sockets of the network that a process listens on."""
    own = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd") if _is_link(pid, name)}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


def _is_link(pid: int | None, name: str) -> bool:
    return os.path.lexists(f"/proc/{pid}/fd/{name}")


async def test_what_it_lays_in_its_box_leads_us_nowhere(yards: Yards, engine: Engine) -> None:
    """Links to files of the host, pipes, a result that is none: nothing of it is followed, and nobody waits for it."""
    async with yards() as yard:
        secret = yard.home / "token"
        segment = f"{0:020}.log"
        commands = (
            "rm -rf log result.json",
            f"mkdir log; ln -s {secret} log/{segment}",
            f"ln -s {secret} result.json",
            "rm -rf own; ln -s /etc own",
            "touch laid; sleep 60",
        )
        task = await yard.box("busybox", "cd /stoker/task", *commands, user="0")
        await until((yard.box_of(task.id) / "laid").exists)
        told = await yard.ask("GET", f"/tasks/{task.id}/log")
        assert yard.token.encode() not in told.body
        own = await yard.ask("GET", f"/tasks/{task.id}/log?own=true")
        assert b"root:" not in own.body
        engine.docker("kill", task.container_id)
        ended = await yard.ended(task.id)
        assert (ended.result, ended.reason) == (None, "EXECUTOR_ERROR")
        assert yard.token not in ended.message
        pipe = await yard.box("busybox", "cd /stoker/task; rm -rf log; mkfifo log || true; sleep 60")
        told = await asyncio.wait_for(yard.ask("GET", f"/tasks/{pipe.id}/log"), 5.0)
        assert told.status == 200
        for one in (task, pipe):
            await yard.clear_task(one.id)
        assert yard.directories() == []
        assert secret.exists()


async def test_nudges_without_end_wake_us_now_and_then_only(yards: Yards) -> None:
    async with yards() as yard:
        task = await yard.box("busybox", "echo up; sleep 60")
        assert yard.process is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as speaker:
            directory = os.open(yard.box_of(task.id), os.O_PATH)
            before = _cpu_s(yard.process.pid)
            deadline = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < deadline:
                try:
                    for _ in range(50):
                        speaker.sendto(b"x" * 200, f"/proc/self/fd/{directory}/notify.sock")
                except BlockingIOError:
                    await asyncio.sleep(0.001)
            os.close(directory)
        assert _cpu_s(yard.process.pid) - before < 0.5
        assert (await yard.terminate(task.id)).state == "terminated"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
