"""Hosts reached by SSH: one from `apply` to IDLE, a request through its tunnel, and two hundred that a server holds.

The hosts are network namespaces with an sshd of their own. Of the two hundred only the sshd is real, and one: each has
an address of its own on it, and an agent that is played (`bench/ssh_hold.py`).
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import psutil

from bench.result import Result
from bench.stand import cpu_s
from stoker.bundle.place import find_or_build
from stoker.core.ids import InstanceId
from stoker.store import host as host_store
from stoker.transport.agents import ShimLine
from stoker.transport.http import Line
from tests.hosts.land import Host, land
from tests.hosts.stand import Stand

REQUESTS = 1_000
HOSTS = 200
MEASURE_S = 20.0
READY_S = 180.0
IDLE_LIMIT_S, REQUEST_LIMIT_MS, MEMORY_LIMIT_MB, CPU_LIMIT = 10.0, 3.0, 350.0, 20.0


def ssh(url: str) -> list[Result]:
    if os.geteuid() != 0:
        print("hosts are network namespaces: without root they are not measured")
        return []
    with land() as ground, tempfile.TemporaryDirectory(prefix="stoker-bench-ssh-") as place:
        os.chmod(place, 0o711)
        key = ground.key.read_text()
        measured = asyncio.run(_one(Path(place), url, key, ground.host()))
        return [*measured, *_many(Path(place), url, key, ground.host())]


async def _one(place: Path, url: str, key: str, host: Host) -> list[Result]:
    parcel = await asyncio.to_thread(find_or_build, place)
    stand = Stand(place / "server", url, parcel, key, log_level="warning")
    async with stand.serving():
        begun = time.perf_counter()
        await stand.apply("one", [host])
        one = await stand.is_(host, "IDLE")
        up_s = time.perf_counter() - begun
        taken = await _requests_ms(stand, one)
        await stand.told("DELETE", "fleets/one")
        while await stand.of(host) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    p50, p99 = median(taken), sorted(taken)[int(len(taken) * 0.99)]
    return [
        _of("an SSH host from apply to IDLE, with the bundle built", up_s, "s", IDLE_LIMIT_S),
        _of("a request through the tunnel, p50", p50, "ms", REQUEST_LIMIT_MS),
        Result("a request through the tunnel, p99", p99, "ms"),
    ]


async def _requests_ms(stand: Stand, one: Any) -> list[float]:
    id = InstanceId(UUID(one["id"]))
    async with stand.served.context.database.connection() as connection:
        known = await host_store.get(connection, id)
    assert known is not None
    line = Line(known.address.removeprefix("ssh:"), known.token, connect=stand.tunnels.connect(id))
    taken = []
    for _ in range(REQUESTS):
        begun = time.perf_counter()
        await ShimLine(line).host()
        taken.append((time.perf_counter() - begun) * 1000)
    await line.close()
    return taken


def _many(place: Path, url: str, key: str, host: Host) -> list[Result]:
    addresses = [f"{host.land.network}.{number}" for number in range(40, 40 + HOSTS)]
    host.run("; ".join(f"ip addr add {one}/24 dev eth0" for one in addresses))
    (place / "key").write_text(key)
    (place / "addresses").write_text("\n".join(addresses))
    agents = host.start([sys.executable, "-m", "bench.ssh_hold", "agents", str(HOSTS)])
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.ssh_hold", "server", str(place)],
        stdout=subprocess.PIPE, env={**os.environ, "BENCH_URL": url},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        begun = time.perf_counter()
        for line in server.stdout:
            if line == b"ready\n":
                break
            print(line.decode(), end="")
        assert server.poll() is None, "not all hosts are up"
        up_s = time.perf_counter() - begun
        time.sleep(5.0)
        seen = psutil.Process(server.pid)
        before, begun = cpu_s([seen]), time.perf_counter()
        time.sleep(MEASURE_S)
        share = (cpu_s([seen]) - before) / (time.perf_counter() - begun) * 100
        memory = seen.memory_info().rss / 2**20
    finally:
        server.terminate()
        server.wait(30)
        agents.kill()
        agents.wait()
    return [
        Result(f"{HOSTS} SSH hosts, until a server holds them all", up_s, "s"),
        _of(f"{HOSTS} SSH hosts, memory of the server", memory, "MB", MEMORY_LIMIT_MB),
        _of(f"{HOSTS} SSH hosts, CPU of the idle server", share, "% of a core", CPU_LIMIT),
    ]


def _of(name: str, value: float, unit: str, limit: float) -> Result:
    return Result(name, value, unit, f"<= {limit:g} {unit}", ok=value <= limit)
