"""A job in a container: what it sees, how it ends, what is left."""

import asyncio
import json
import os
import time
from uuid import uuid4

import pytest

from tests.agents.shim_stage import until
from tests.hosts.conftest import Yards
from tests.hosts.engine import Engine
from tests.machine import as_root

pytestmark = [pytest.mark.xdist_group("docker"), as_root]


async def test_its_log_its_exit_code_and_nothing_is_left(yards: Yards, engine: Engine) -> None:
    async with yards() as yard:
        assert (await yard.ask("GET", "/host")).json["docker"] == engine.json("/version")["Version"]
        task = await yard.over(await yard.box("busybox", "printf 'one\\n\\0two\\377' ; echo err >&2", "exit 3"))
        assert task.result is not None
        assert (task.result.exit_code, task.result.signal) == (3, None)
        assert task.job_taken
        assert task.container_id in yard.containers()
        frames = (await yard.ask("GET", f"/tasks/{task.id}/log")).body
        assert b"one\n\0two\xff" in frames
        ended = await yard.terminate(task.id)
        assert ended.result == task.result
        assert yard.containers() == []
        assert (await yard.ask("GET", f"/tasks/{task.id}/log")).body == frames, "the log outlives the container"
        assert (await yard.remove(task.id)).status == 204
        assert yard.directories() == []


async def test_an_image_needs_nothing_of_ours(yards: Yards) -> None:
    """Another libc, no Python; or no shell at all, where the command is a program with its arguments."""
    async with yards() as yard:
        assert await yard.run_box("musl", "ls /lib; echo $0") == (0, "ld-musl-x86_64.so.1\n/bin/sh\n")
        code, text = await yard.run_box("scratch", job={"argv": ["/busybox", "echo", "a  b", "$HOME"]})
        assert (code, text) == (0, "a  b $HOME\n")
        code, text = await yard.run_box("scratch", entrypoint=["/busybox", "echo", "from", "its", "entrypoint"])
        assert (code, text) == (0, "from its entrypoint\n")
        failed = await yard.over(await yard.box("scratch", "echo hi"))
        assert failed.result is not None
        assert failed.result.failure == "executor"
        assert "there is no shell /bin/sh" in failed.result.message


async def test_what_the_image_says_is_so(yards: Yards) -> None:
    async with yards() as yard:
        code, text = await yard.run_box("own", "env; id; pwd; touch here", entrypoint=["/bin/env", "BY=entrypoint"])
        assert code == 0, text
        lines = text.splitlines()
        for expected in ("COLOUR=green", "PATH=/bin:/opt/bin", "HOME=/srv/app", "USER=app", "BY=entrypoint",
                         "LD_PRELOAD=/nothing.so", "STOKER_RUN_NAME=a-run", "/stoker/task/work",
                         "uid=1234(app) gid=1235(app) groups=1235(app),1300(staff)"):  # fmt: skip
            assert expected in lines, (expected, text)
        assert await yard.run_box("own") == (0, "entry point\n"), "its own program"


@pytest.mark.parametrize(
    ("user", "said"),
    [("0", "uid=0(root) gid=0(root)"), ("app:staff", "uid=1234(app) gid=1300(staff) groups=1300(staff)"),
     ("77", "uid=77 gid=0(root)"), ("77:88", "uid=77 gid=88")],
)  # fmt: skip
async def test_its_user(yards: Yards, user: str, said: str) -> None:
    async with yards() as yard:
        code, text = await yard.run_box("busybox", "id; touch a-file", user=user)
        assert (code, text.splitlines()[0][: len(said)]) == (0, said)


async def test_a_user_that_the_image_does_not_know(yards: Yards) -> None:
    async with yards() as yard:
        task = await yard.ended((await yard.box("busybox", "true", user="nobody-here")).id)
        assert task.reason == "EXECUTOR_ERROR"
        assert "There is no user nobody-here in the image" in task.message
        assert yard.containers() == []


async def test_its_limits(yards: Yards) -> None:
    async with yards() as yard:
        order = {"cpu": 0.5, "memory_mb": 64}
        code, text = await yard.run_box(
            "busybox",
            "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory.max cpu/cpu.cfs_quota_us cpu.max || true",
            order=order,
        )  # fmt: skip
        assert code == 0
        assert "67108864" in text
        assert "50000" in text
        mounts = (await yard.run_box("busybox", "grep shm /proc/mounts", shm_mb=96))[1]
        assert "size=98304k" in mounts


async def test_one_that_takes_too_much_memory_is_said_so(yards: Yards) -> None:
    async with yards() as yard:
        task = await yard.over(await yard.box("busybox", "tail /dev/zero", order={"memory_mb": 48}))
        assert task.result is not None
        assert task.result.oom
        assert task.result.exit_code != 0


async def test_stopped_within_its_grace_and_killed_after_it(yards: Yards) -> None:
    async with yards() as yard:
        polite, deaf = await asyncio.gather(
            yard.box("busybox", "trap 'echo bye; exit 9' TERM; echo up; while true; do sleep 0.05; done"),
            yard.box("busybox", "trap '' TERM; echo up; while true; do sleep 0.05; done"),
        )
        for task in (polite, deaf):
            await until_text(yard, task.id, "up\n")
        began = time.monotonic()
        one, two = await asyncio.gather(yard.terminate(polite.id, grace_s=10.0), yard.terminate(deaf.id, grace_s=1.0))
        assert one.result is not None
        assert one.result.exit_code == 9
        assert (await yard.text(polite.id)) == "up\nTerminated\nbye\n", "what its shell says of the sleep"
        assert two.result is not None
        assert (two.result.exit_code, two.result.signal) == (137, 9)
        assert 1.0 <= time.monotonic() - began < 8.0
        assert yard.containers() == []


async def until_text(yard: object, id: object, text: str) -> None:
    deadline = time.monotonic() + 20
    while await yard.text(id) != text:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_the_same_task_submitted_twice_at_once_runs_once(yards: Yards) -> None:
    async with yards() as yard:
        id = str(uuid4())
        tasks = await asyncio.gather(*(yard.box("busybox", "echo once", order={"id": id}) for _ in range(4)))
        assert {str(task.id) for task in tasks} == {id}
        task = await yard.over(tasks[0])
        assert len(yard.containers()) == 1
        assert await yard.text(task.id) == "once\n"


async def test_terminated_and_removed_at_once(yards: Yards) -> None:
    """At any moment of its start: in the end nothing is there."""
    async with yards() as yard:

        async def gone(delay_s: float) -> None:
            starting = asyncio.create_task(yard.box("busybox", "sleep 60"))
            await asyncio.sleep(delay_s)
            tasks = [id.name for id in yard.directories()]
            for id in tasks:
                await asyncio.gather(
                    yard.ask("POST", f"/tasks/{id}/terminate?wait_s=20", json={"fence": 2}),
                    yard.ask("DELETE", f"/tasks/{id}?fence=2"),
                )
            task = await starting
            await yard.ask("POST", f"/tasks/{task.id}/terminate?wait_s=20", json={"fence": 3})
            await yard.ask("DELETE", f"/tasks/{task.id}?fence=3")

        for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2):
            await gone(delay_s)
        assert yard.directories() == []
        await until(lambda: not yard.containers())


async def test_ports_of_a_bridge_are_kept_and_given_back(yards: Yards) -> None:
    async with yards() as yard:
        task = await yard.box("busybox", "while true; do echo hello | nc -l -p 8000; done", ports=[8000])
        (port,) = task.ports
        assert port.inside == 8000
        deadline = time.monotonic() + 20
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port.on_host)
                line = await reader.readline()
                writer.close()
            except OSError:
                line = b""
            if line == b"hello\n":
                break
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await yard.restart()
        assert (await yard.task(task.id)).ports == task.ports, "also after a restart"
        assert (await yard.terminate(task.id)).ports == ()


async def test_the_network_of_the_host(yards: Yards) -> None:
    async with yards() as yard:
        code, text = await yard.run_box("busybox", "readlink /proc/self/ns/net", network="host")
        assert (code, text.strip()) == (0, os.readlink("/proc/self/ns/net"))
        _, other = await yard.run_box("busybox", "readlink /proc/self/ns/net")
        assert other != text


async def test_several_at_once(yards: Yards) -> None:
    async with yards() as yard:
        tasks = await asyncio.gather(*(yard.box("busybox", f"echo {n}; exit {n}") for n in range(8)))
        ended = await asyncio.gather(*(yard.over(task) for task in tasks))
        assert [task.result.exit_code for task in ended if task.result] == list(range(8))
        assert [await yard.text(task.id) for task in ended] == [f"{n}\n" for n in range(8)]


async def test_the_engine_inside_only_where_it_is_asked_for(yards: Yards) -> None:
    async with yards() as yard:
        assert (await yard.run_box("busybox", "ls /var/run/docker.sock 2>/dev/null || echo none"))[1] == "none\n"
        assert (await yard.run_box("busybox", "ls /var/run/docker.sock", docker=True))[1] == "/var/run/docker.sock\n"


async def test_what_is_written_down_shows_no_password(yards: Yards) -> None:
    async with yards() as yard:
        task = await yard.box("busybox", "true", registry_auth={"username": "me", "password": "swordfish"})
        await yard.over(task)
        told = json.dumps((await yard.ask("GET", f"/tasks/{task.id}")).json)
        assert "swordfish" not in told
        assert "swordfish" not in (yard.home / "shim.log").read_text()
