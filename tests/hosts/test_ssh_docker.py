"""Containers on hosts that the server reaches by SSH: a real engine on each, and everything through one connection."""

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from stoker.bundle.place import Bundle
from tests.hosts.dock import Dock, docked
from tests.hosts.ground import Stands, hurry
from tests.hosts.land import Host, Land
from tests.hosts.stand import Stand, upgraded
from tests.hosts.test_ssh_luck import copies, unreachable, whole
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

WORK: Final = "/var/lib/stoker/host/shim/tasks/*/box/work"
COUNTS: Final = "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo end"
DEAF: Final = """\
import socket
server, taken = socket.create_server(("127.0.0.1", 5999)), []
while True: taken.append(server.accept())
"""
"""A registry that takes calls and says nothing."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@asynccontextmanager
async def served(stand: Stands, bundle: Bundle) -> AsyncIterator[Stand]:
    """Containers are given the bundle, so it is what is shipped."""
    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            yield s


async def idle(s: Stand, name: str, *docks: Dock, **more: Any) -> None:
    assert (await s.apply(name, [dock.on for dock in docks], **more)).status == 201
    for dock in docks:
        await s.is_(dock.on, "IDLE", patience_s=60)


def go(host: Host) -> None:
    """What COUNTS waits for."""
    host.run(f"for place in {WORK}; do touch $place/go; done")


async def counting(s: Stand, *hosts: Host) -> None:
    async def so() -> bool:
        return all(copies(host) == 1 for host in hosts)

    await until(so, "it counts")


def left(dock: Dock) -> list[str]:
    """Containers, tasks and mounts."""
    tasks = (dock.on.run("ls /var/lib/stoker/host/shim/tasks 2>/dev/null || true") or "").split()
    mounts = (dock.on.run("grep ' /var/lib/stoker/' /proc/mounts || true") or "").splitlines()
    return [one["Id"] for one in dock.containers()] + tasks + mounts


async def test_from_apply_to_a_log_and_nothing_is_left(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    """Who has a part of the host has a network of its own; who has all of it has the host's."""
    dock = docked(shire, shared_directory)
    host = dock.on
    files, processes = host.files(), host.processes()
    async with served(stand, bundle) as s:
        await idle(s, "office", dock, blocks=2)
        assert "a container engine" in (await s.of(host))["steps"][-1]["message"]
        assert (await s.of(host))["resources"]["docker"] is True
        space = (host.run("readlink /proc/1/ns/net") or "").strip()
        part = await s.submit("readlink /proc/self/ns/net; exit 3", image="busybox", ports=[80])
        assert (await s.run_is(part, "FAILED", patience_s=60))["exit_code"] == 3
        assert (await s.log(part)).startswith("net:[") and space not in await s.log(part)
        cpu = (await s.of(host))["resources"]["cpu"]
        all_of_it = await s.submit("readlink /proc/self/ns/net", image="busybox", resources={"cpu": cpu})
        await s.run_is(all_of_it, "DONE")
        assert (await s.log(all_of_it)).strip() == space
        assert host.connections() == 1
        assert left(dock) == []
        await s.told("DELETE", "fleets/office")

        async def gone() -> bool:
            return await s.of(host) is None

        await until(gone, "it is gone")
    assert host.processes() == processes
    assert {name for name in host.files() - files if "docker" not in name} == set()


async def test_nodes_in_containers_reach_each_other(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    """Each on a host of its own, in the host's network, at ports that nobody had to name."""
    docks = [docked(shire, shared_directory) for _ in range(2)]
    speak = (
        'if [ "$STOKER_NODE_RANK" = 0 ]; then nc -l -p 7777 >heard; echo heard $(cat heard)',
        'else until echo "from $STOKER_NODE_RANK" | nc "$STOKER_MASTER_NODE_IP" 7777; do sleep 0.05; done; fi',
    )
    async with served(stand, bundle) as s:
        await idle(s, "pair", *docks)
        run = await s.submit("\n".join(speak), image="busybox", nodes=2)
        done = await s.run_is(run, "DONE", patience_s=60)
        assert len({job["instance"] for job in done["jobs"]}) == 2
        assert await s.log(run) == "heard from 1\n"
        assert [left(dock) for dock in docks] == [[], []]


async def test_a_host_reboots_under_a_container_with_a_volume(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    """The engine comes back and has the dead container: its job was interrupted and is not run again by itself, and
    what it had written to its volume is there for the next one."""
    dock = docked(shire, shared_directory, cron=True)
    async with served(stand, bundle) as s:
        await idle(s, "office", dock)
        volume = {"configuration": {"type": "volume", "name": "data", "kind": "local", "size": "16MB"}}
        await s.told("POST", "volumes", volume)
        run = await s.submit(f"echo kept >/data/x; sync; {COUNTS}", image="busybox", volumes=["data:/data"])
        await s.run_is(run, "RUNNING", patience_s=60)
        await counting(s, dock.on)
        dock.on.reboot()
        dock.wait()
        ended = await s.run_is(run, "FAILED", patience_s=90)
        assert ended["jobs"][0]["termination_reason"] in ("EXECUTOR_ERROR", "INTERRUPTED_BY_NO_CAPACITY")
        assert copies(dock.on) == 0
        again = await s.submit("cat /data/x", image="busybox", volumes=["data:/data"])
        await s.run_is(again, "DONE", patience_s=60)
        assert await s.log(again) == "kept\n"
        await s.is_(dock.on, "IDLE")
        assert left(dock) == []


async def test_a_link_is_cut_while_a_container_runs_and_while_its_image_comes(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    dock = docked(shire, shared_directory)
    host = dock.on
    with host.start(["/usr/bin/python3", "-c", DEAF]) as deaf:
        try:
            async with served(stand, bundle) as s:
                await idle(s, "office", dock, blocks=2)
                run = await s.submit(COUNTS, image="busybox")
                await s.run_is(run, "RUNNING", patience_s=60)
                await counting(s, host)
                pulled = await s.submit("true", image="127.0.0.1:5999/team/x")

                async def pulling() -> bool:
                    return bool((await s.told("GET", f"runs/{pulled}"))["jobs"][0]["status"] == "PULLING")

                await until(pulling, "its image comes")
                host.cut()
                await unreachable(s, host)
                assert (await s.told("GET", f"runs/{run}"))["status"] == "RUNNING"
                # Whoever stops it now is heard as soon as the host is back.
                await s.told("POST", f"runs/{pulled}/stop", {"abort": True})
                host.mend()
                await s.run_is(pulled, "TERMINATED", patience_s=60)
                go(host)
                done = await s.run_is(run, "DONE")
                assert whole(await s.log(run))
                assert [job["submission"] for job in done["jobs"]] == [1]
                await s.is_(host, "IDLE")
                assert left(dock) == []
        finally:
            deaf.kill()


async def test_the_engine_of_a_host_is_killed_while_five_runs_are_on_it(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    """Those that may be tried again are, once each: never are there two of one."""
    dock = docked(shire, shared_directory)
    host = dock.on
    async with served(stand, bundle) as s:
        await idle(s, "office", dock, blocks=5)
        retry = {"on_events": ["error"], "max_attempts": 2}
        runs = [await s.submit(f"echo $STOKER_SUBMISSION; {COUNTS}", image="busybox", retry=retry) for _ in range(5)]
        for run in runs:
            await s.run_is(run, "RUNNING", patience_s=60)

        async def all_count() -> bool:
            return copies(host) == 5

        await until(all_count, "all count")
        dock.kill()
        assert not dock.answers()
        dock.start_again()
        await until(all_count, "all count again", 90)
        go(host)
        for run in runs:
            done = await s.run_is(run, "DONE", patience_s=60)
            assert max(job["submission"] for job in done["jobs"]) == 2
        await s.is_(host, "IDLE")
        assert left(dock) == []


async def test_an_upgrade_of_the_agents_leaves_a_container_the_tree_that_it_runs_from(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path, tmp_path: Path
) -> None:
    """Of a process in a container the host does not see from which path it runs. Once it has ended, the next upgrade
    removes its tree too."""
    dock = docked(shire, shared_directory)
    host, base = dock.on, "/var/lib/stoker/host"

    async def came(s: Stand, one: Bundle) -> list[str]:
        """The trees that are left when the new agents are there, and those from which nothing runs are gone."""

        async def so() -> bool:
            new = (host.run(f"cat {base}/current") or "").strip() == one.digest
            return new and all(step["state"] == "done" for step in (await s.of(host))["steps"])

        await until(so, "the agents are the new ones")
        return (host.run(f"ls {base}/bundle") or "").split()

    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            await idle(s, "office", dock)
            run = await s.submit(COUNTS, image="busybox")
            await s.run_is(run, "RUNNING", patience_s=60)
            await counting(s, host)
        for version in ("2", "3"):
            s.parcel = renewed = upgraded(bundle, tmp_path, version)
            async with s.serving():
                assert {bundle.digest, renewed.digest} <= set(await came(s, renewed))
                assert copies(host) == 1
        async with s.serving():
            go(host)
            done = await s.run_is(run, "DONE")
            assert whole(await s.log(run))
            assert [job["submission"] for job in done["jobs"]] == [1]

            # The server that forked for the first shim leaves by itself, but only after half a minute.
            running = (host.run("ps -eo pid=,args=") or "").splitlines()
            (forker,) = (line.split()[0] for line in running if f"{bundle.digest}/start.py" in line)
            host.run(f"kill {forker}")
        s.parcel = renewed = upgraded(bundle, tmp_path, "4")
        async with s.serving():
            again = await s.submit("echo again", image="busybox")
            await s.run_is(again, "DONE", patience_s=60)
            assert bundle.digest not in await came(s, renewed)
            assert left(dock) == []


async def test_described_gpus_of_a_host_are_shared_out_and_never_given_twice(
    stand: Stands, shire: Land, bundle: Bundle, shared_directory: Path
) -> None:
    """Processes find theirs in the environment. This engine knows no GPUs: a container that wants one says so in the
    engine's words, and gives it back."""
    dock = docked(shire, shared_directory)
    host = dock.on
    gpus = [{"index": n, "id": f"GPU-{n}", "name": "A100", "memory_mb": 81920} for n in range(2)]
    told = shlex.quote(json.dumps({"gpus": gpus}))
    host.run(f"mkdir -p /var/lib/stoker/host/shim; echo {told} >/var/lib/stoker/host/shim/settings.json")
    async with served(stand, bundle) as s:
        await idle(s, "office", dock, blocks="auto")
        assert "2 GPUs" in (await s.of(host))["steps"][-1]["message"]
        wanted = {"resources": {"gpu": 1}}
        names = [f"{name}; until [ -e /tmp/go ]; do sleep 0.05; done" for name in ["echo $CUDA_VISIBLE_DEVICES"] * 2]
        runs = [await s.submit(line, **wanted) for line in names]
        for run in runs:
            await s.run_is(run, "RUNNING")
        third = await s.submit("true", **wanted)
        assert (await s.told("GET", f"runs/{third}"))["status"] == "SUBMITTED"
        host.run("touch /tmp/go")
        for run in (*runs, third):
            await s.run_is(run, "DONE")
        assert {await s.log(run) for run in runs} == {"GPU-0\n", "GPU-1\n"}
        boxed = await s.submit("true", image="busybox", **wanted)
        failed = await s.run_is(boxed, "FAILED", patience_s=60)
        assert failed["jobs"][0]["termination_reason"] == "CREATING_CONTAINER_ERROR"
        assert "could not select device driver" in failed["jobs"][0]["message"]
        await s.run_is(await s.submit("true", **wanted), "DONE")
        assert left(dock) == []
