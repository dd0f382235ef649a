"""Bad luck on the way to a host and on it: links that are cut, hosts that reboot, agents that are killed or renewed."""

import asyncio
from pathlib import Path

import pytest

from tests.hosts.ground import Stands, hurry
from tests.hosts.land import Host, Land
from tests.hosts.stand import Stand, checkout
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]

PROBE = """
import glob, os, socket
home = "/var/lib/stoker/host/shim"
there = os.environ["HOME"].split("/")[7]
for path in [home + "/shim.sock", home + "/tasks/" + there + "/runner.sock"]:
    try:
        socket.socket(socket.AF_UNIX).connect(path); print(path.split("/")[-1] + ": open")
    except OSError: print(path.split("/")[-1] + ": refused")
try: open(home + "/token").read(); print("token: open")
except OSError: print("token: refused")
"""
"""What a job tries that would like to be somebody else."""
COUNTS = "i=0; while [ ! -e /tmp/go ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo end"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def unreachable(s: Stand, host: Host, on: bool = True) -> None:
    async def so() -> bool:
        return ((await s.of(host))["unreachable_since"] is not None) is on

    await until(so, f"the host is {'un' if on else ''}reachable")


def whole(log: str) -> bool:
    """Every line is there, once, in its order."""
    lines = log.split()
    return lines[-1] == "end" and lines[:-1] == [str(number + 1) for number in range(len(lines) - 1)]


def copies(host: Host) -> int:
    """How many of the job run there."""
    lines = [line.split(None, 2) for line in (host.run("ps -eo pid=,ppid=,args=") or "").splitlines()]
    mine = {pid: parent for pid, parent, args in lines if "i=$((i+1))" in args}
    # A shell that is about to become `sleep` looks like its parent.
    return sum(parent not in mine for parent in mine.values())


async def test_a_link_that_is_cut_for_a_moment_is_noticed_by_nobody(stand: Stands, shire: Land) -> None:
    """Shorter than keep-alives wait: what was on its way arrives later."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        run = await s.submit(COUNTS)
        await s.run_is(run, "RUNNING")
        host.cut()
        await asyncio.sleep(0.4)
        host.mend()
        assert (await s.of(host))["unreachable_since"] is None
        host.run("touch /tmp/go")
        await s.run_is(run, "DONE")
        assert whole(await s.log(run))


async def test_a_link_that_is_cut_for_long_hurts_no_job(stand: Stands, shire: Land) -> None:
    """The host is called unreachable; when it is back its job is adopted as it was, with all of its log."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        run = await s.submit(COUNTS)
        await s.run_is(run, "RUNNING")
        host.cut()
        await unreachable(s, host)
        assert (await s.told("GET", f"runs/{run}"))["status"] == "RUNNING"
        assert copies(host) == 1
        later = await s.submit("echo later")
        host.mend()
        await unreachable(s, host, on=False)
        host.run("touch /tmp/go")
        done = await s.run_is(run, "DONE")
        assert whole(await s.log(run))
        assert [job["submission"] for job in done["jobs"]] == [1]
        await s.run_is(later, "DONE")


async def test_a_job_that_ends_while_its_host_is_cut_off(stand: Stands, shire: Land) -> None:
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        run = await s.submit(COUNTS + "; exit 3")
        await s.run_is(run, "RUNNING")
        host.cut()
        host.run("touch /tmp/go")
        await unreachable(s, host)
        host.mend()
        ended = await s.run_is(run, "FAILED")
        assert ended["exit_code"] == 3
        assert whole(await s.log(run))
        await s.is_(host, "IDLE")


@pytest.mark.parametrize("when", ["waiting", "starting", "stopping"])
async def test_a_link_that_is_cut_while_a_job_comes_or_goes(stand: Stands, shire: Land, when: str) -> None:
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        if when == "stopping":
            run = await s.submit(COUNTS)
            await s.run_is(run, "RUNNING")
            host.cut()
            await s.told("POST", f"runs/{run}/stop", {"abort": False})
            await asyncio.sleep(1.5)
            assert (await s.told("GET", f"runs/{run}"))["status"] == "TERMINATING", "nobody has confirmed it"
            host.mend()
            await s.run_is(run, "TERMINATED", patience_s=60)
        else:
            host.cut()
            if when == "waiting":
                await unreachable(s, host)
            run = await s.submit("echo once")
            await asyncio.sleep(1.5)
            host.mend()
            await s.run_is(run, "DONE", patience_s=60)
            assert await s.log(run) == "once\n"
        assert copies(host) == 0
        await s.is_(host, "IDLE")


async def test_a_host_that_is_cut_off_for_ever_loses_its_job_to_another_one(stand: Stands, shire: Land) -> None:
    """By the job's own policy: its agent stops it before the server gives it up, so there are never two. When the host
    is back, what is left there is removed."""
    first, second = shire.host(), shire.host()
    policy = {"stop_after": "10s", "fail_after": "11s"}
    async with stand() as s, s.serving():
        await s.apply("office", [first])
        await s.is_(first, "IDLE")
        retry = {"on_events": ["interruption", "error"], "max_attempts": 3}
        run = await s.submit(COUNTS, disconnect=policy, retry=retry, stop_duration=1)
        await s.run_is(run, "RUNNING")
        assert (await s.apply("office", [first, second])).status == 200
        await s.is_(second, "IDLE")
        first.cut()

        async def moved() -> bool:
            assert copies(first) + copies(second) <= 1
            return copies(second) == 1

        await until(moved, "the job runs on the other host", 60)
        first.mend()
        second.run("touch /tmp/go")
        await s.run_is(run, "DONE", patience_s=60)
        await s.is_(first, "IDLE")

        def clean() -> bool:
            return (first.run("ls /var/lib/stoker/host/shim/tasks") or "").strip() == ""

        await until(clean, "nothing of it is left on the first host")


@pytest.mark.parametrize("keeper", ["cron", "nobody"])
async def test_a_host_that_reboots(stand: Stands, shire: Land, keeper: str) -> None:
    """Its job was interrupted. The agent is back by cron, or where there is none, by the server."""
    host = shire.host(cron=keeper == "cron", boot=False)
    if keeper == "nobody":
        # Nothing that cron reads is ever read: there is none.
        host.write("/usr/bin/crontab", "#!/bin/sh\nexit 1\n", 0o755)
    host.boot()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        one = await s.is_(host, "IDLE")
        assert ("cron keeps it running" in one["steps"][3]["message"]) is (keeper == "cron")
        run = await s.submit(COUNTS)
        await s.run_is(run, "RUNNING")
        host.reboot()
        ended = await s.run_is(run, "FAILED", patience_s=60)
        assert ended["jobs"][0]["termination_reason"] in ("EXECUTOR_ERROR", "INTERRUPTED_BY_NO_CAPACITY")
        assert copies(host) == 0
        again = await s.submit("echo again")
        await s.run_is(again, "DONE", patience_s=60)
        assert (await s.of(host))["id"] == one["id"]


async def test_an_agent_that_was_killed_is_started_again_and_finds_its_job(stand: Stands, shire: Land) -> None:
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        run = await s.submit(COUNTS)
        await s.run_is(run, "RUNNING")
        host.run("kill -9 $(cat /var/lib/stoker/host/shim/pid)")
        await asyncio.sleep(0.5)

        async def answers() -> bool:
            return host.run("kill -0 $(cat /var/lib/stoker/host/shim/pid)", check=False) is not None

        await until(answers, "the agent is there again")
        assert copies(host) == 1
        host.run("touch /tmp/go")
        done = await s.run_is(run, "DONE")
        assert whole(await s.log(run))
        assert [job["submission"] for job in done["jobs"]] == [1]


async def test_an_upgrade_of_the_agents_disturbs_no_job(stand: Stands, shire: Land, tmp_path: Path) -> None:
    """A server of another version comes: only the layer that differs travels, the shim is started anew, the job and
    its runner do not notice; and the old tree goes."""
    host = shire.host()
    base = "/var/lib/stoker/host"
    async with stand() as s:
        async with s.serving():
            await s.apply("office", [host])
            await s.is_(host, "IDLE")
            run = await s.submit(COUNTS)
            await s.run_is(run, "RUNNING")
        before = host.run(f"cat {base}/shim/pid")
        (old,) = (host.run(f"ls {base}/bundle | grep -v layers") or "").split()
        python = host.run(f"stat -c %i {base}/bundle/{old}/python/told")
        s.parcel = checkout(tmp_path, "2")
        async with s.serving():

            def renewed() -> bool:
                return (host.run(f"cat {base}/current") or "").strip() == s.parcel.digest

            await until(renewed, "the agents are the new ones")
            assert host.run(f"cat {base}/shim/pid") != before

            def alone() -> bool:
                return (host.run(f"ls {base}/bundle") or "").split() == sorted([s.parcel.digest, "layers"])

            await until(alone, "the old tree is gone")
            told = host.run(f"cat {base}/bundle/{s.parcel.digest}/agents/told; stat -c %i {base}/bundle/*/python/told")
            assert told == f"version 2{python}", "what had not changed was not sent again"
            assert copies(host) == 1
            host.run("touch /tmp/go")
            done = await s.run_is(run, "DONE")
            assert whole(await s.log(run))
            assert [job["submission"] for job in done["jobs"]] == [1]


async def test_a_host_that_is_gone_for_good_is_let_go_by_force(stand: Stands, shire: Land) -> None:
    """Its agents cannot be removed from it: it stays until it can be reached, or somebody says that it is gone."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        name = (await s.is_(host, "IDLE"))["name"]
        host.switch_off()
        await s.told("DELETE", "fleets/office")
        await s.is_(host, "TERMINATING")
        await s.in_trouble(host)
        assert (await s.of(host))["status"] == "TERMINATING"
        await s.told("DELETE", f"instances/{name}?force=true")
        (one,) = await s.instances(finished=True)
        assert one["status"] == "TERMINATED"
        host.boot()
        assert (await s.apply("again", [host])).status == 201
        await s.is_(host, "IDLE", patience_s=60)


async def test_a_narrow_link_carries_a_loud_job(stand: Stands, shire: Land) -> None:
    """What a job prints waits on its host; neither keep-alives nor other requests are lost in it."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        host.narrow(20)
        run = await s.submit("head -c 4000000 /dev/zero | tr '\\0' x | fold -w 99; echo end")
        await s.run_is(run, "DONE", patience_s=60)
        host.narrow(None)
        assert (await s.of(host))["unreachable_since"] is None


async def test_whoever_is_on_the_host_needs_the_token(stand: Stands, shire: Land) -> None:
    """A job sees the agents' sockets, and gets nothing from them; nobody listens on an address."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host], blocks=4)
        await s.is_(host, "IDLE")
        listening = host.run("ss -Hlnt | awk '{print $4}'") or ""
        assert [one for one in listening.split() if not one.endswith(":22")] == []
        other = await s.submit(COUNTS)
        await s.run_is(other, "RUNNING")
        probe = await s.submit(f"/usr/bin/python3 -c '{PROBE}'")
        await s.run_is(probe, "DONE")
        assert (await s.log(probe)).split() == ["shim.sock:", "refused", "runner.sock:", "refused", "token:", "refused"]
        root = host.run(
            "curl -s -o /dev/null -w '%{http_code}' --unix-socket /var/lib/stoker/host/shim/shim.sock http://shim/tasks"
            " || echo no curl"
        )
        assert root in ("401", "no curl\n")
        host.run("touch /tmp/go")
        await s.run_is(other, "DONE")


async def test_a_host_that_is_set_up_anew_while_it_is_in_use_says_whose_key_has_changed(
    stand: Stands, shire: Land
) -> None:
    """It answers, with another key: not away, but somebody has to look. With the key it had, it goes on by itself."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        await s.is_(host, "IDLE")
        before = host.fingerprint
        key = (host.written / "etc/ssh/host_key").read_bytes()
        host.new_host_key()
        host.reboot()
        said = await s.in_trouble(host, "has changed", before, host.fingerprint)
        assert "stoker instance trust" in said
        await unreachable(s, host)
        waiting = await s.submit("echo here")
        (host.written / "etc/ssh/host_key").write_bytes(key)
        host.reboot()
        await unreachable(s, host, on=False)
        await s.run_is(waiting, "DONE")

        async def well() -> bool:
            return bool((await s.of(host))["trouble"] == "")

        await until(well, "nothing is wrong any more")
