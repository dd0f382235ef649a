"""A fleet of hosts that a person names: from `apply` to a run with its log, and until nothing of ours is left there."""

import asyncio
from typing import Any

import pytest

from stoker.bundle.place import Bundle
from tests.hosts.ground import Stands
from tests.hosts.land import Host, Land
from tests.hosts.packages import need
from tests.hosts.stand import Stand
from tests.machine import as_root
from tests.process.house import until

pytestmark = [as_root, pytest.mark.xdist_group("ssh")]


async def gone(s: Stand, host: Host) -> None:
    async def is_gone() -> bool:
        return await s.of(host) is None

    await until(is_gone, "it is gone")


async def test_a_host_that_is_named_runs_a_task_and_its_log_comes_through_the_tunnel(
    stand: Stands, shire: Land
) -> None:
    host = shire.host()
    async with stand() as s, s.serving():
        made = await s.apply("office", [host])
        assert made.status == 201, made.body
        one = await s.is_(host, "IDLE")
        assert [(step["step"], step["state"]) for step in one["steps"]] == [
            ("connect", "done"), ("check", "done"), ("ship the agents", "done"), ("start the agents", "done"),
            ("read what it has", "done"),
        ]  # fmt: skip
        assert one["trouble"] == ""
        assert one["resources"]["cpu"] > 0
        run = await s.submit("echo hello from $STOKER_RUN_NAME", name="greet")
        await s.run_is(run, "DONE")
        assert await s.log(run) == "hello from greet\n"
        assert host.connections() == 1, "all of it went through one connection"


async def test_applying_the_file_again_adds_and_removes_hosts_and_leaves_nothing_behind(
    stand: Stands, shire: Land
) -> None:
    """One host joins, the other leaves while a job is on it: it goes when the job has ended."""
    first, second = shire.host(), shire.host()
    files, processes = first.files(), first.processes()
    async with stand() as s, s.serving():
        await s.apply("office", [first])
        await s.is_(first, "IDLE")
        run = await s.submit("while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done")
        await s.run_is(run, "RUNNING")
        config = {"user": "root", "identity_file": "land.key", "hosts": [second.ip]}
        asked = {"configuration": {"type": "fleet", "name": "office", "ssh_config": config}}
        plan = await s.told("POST", "fleets/plan", asked)
        assert plan["joining"] == [second.ip]
        assert [(one["reason"], one["busy"]) for one in plan["leaving"]] == [
            ("it is not among the hosts of its fleet any more", True)
        ]
        assert {one["key"] for one in plan["changes"]} == {f"host {first.ip}", f"host {second.ip}"}
        assert (await s.apply("office", [second])).status == 200
        await s.is_(second, "IDLE")
        assert (await s.of(first))["status"] == "BUSY"
        first.run("touch /tmp/go")
        await s.run_is(run, "DONE")
        await gone(s, first)
        assert first.processes() == processes
        assert first.files() - files == set()
        run = await s.submit("echo still here")
        await s.run_is(run, "DONE")
        await s.told("DELETE", "fleets/office")
        await gone(s, second)


@pytest.mark.parametrize("sudo", [True, False], ids=["sudo", "plain"])
async def test_a_user_who_is_not_root(stand: Stands, shire: Land, bundle: Bundle, sudo: bool) -> None:
    """With sudo the agents are root's, and the user who logs in reaches them; without, they are the user's own."""
    if sudo:
        need("sudo", "sudo")
    host = shire.host(users=["ann"], boot=False)
    host.write("/etc/sudoers.d/ann", "ann ALL=(ALL) NOPASSWD: ALL\n" if sudo else "\n", 0o440)
    host.boot()
    files, processes = host.files(), host.processes()
    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            await login_as_ann(s, host, sudo)
    assert host.processes() == processes
    assert host.files() - files == set()


async def login_as_ann(s: Stand, host: Host, sudo: bool) -> None:
    await s.apply("office", [host], user="ann")
    one = await s.is_(host, "IDLE")
    check = one["steps"][1]["message"]
    assert ("root by sudo" if sudo else "a plain user: it serves one project") in check
    run = await s.submit("id -u; echo $HOME")
    await s.run_is(run, "DONE")
    user, home = (await s.log(run)).split()
    if sudo:
        assert user not in ("0", "2001") and home.startswith("/var/lib/stoker/host/")
    else:
        assert (user, home.startswith(f"{host.home('ann')}/.stoker/host/")) == ("2001", True)
    await s.told("DELETE", "fleets/office")
    await gone(s, host)


SYSTEMCTL = """\
#!/bin/sh
unit=/etc/systemd/system/stoker-host.service
echo "$@" >>/tmp/systemctl
case "$*" in
  "enable --now stoker-host") $(sed -n 's/^ExecStart=//p' $unit) </dev/null >>/tmp/unit.log 2>&1 & echo $! >/tmp/main ;;
  "stop stoker-host"|"disable --now stoker-host") kill $(cat /tmp/main) ;;
esac
"""


async def test_where_there_is_systemd_it_keeps_the_agent_running(stand: Stands, shire: Land) -> None:
    """Played by a script that does what the unit says: this is no test of systemd."""
    host = shire.host(boot=False)
    host.write("/usr/local/bin/systemctl", SYSTEMCTL, 0o755)
    host.boot()
    host.run("mkdir -p /run/systemd/system /etc/systemd/system")
    files, processes = host.files(), host.processes()
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        one = await s.is_(host, "IDLE")
        assert "systemd keeps it running" in one["steps"][3]["message"]
        unit = host.run("cat /etc/systemd/system/stoker-host.service") or ""
        assert "KillMode=process" in unit and "Restart=always" in unit
        assert host.run("crontab -l", check=False) is None
        await s.run_is(await s.submit("echo hello"), "DONE")
        await s.told("DELETE", "fleets/office")
        await gone(s, host)
        assert host.processes() == processes
        assert host.files() - files == set()


async def test_a_host_is_in_one_fleet(stand: Stands, shire: Land) -> None:
    """By the same name it is refused when it is applied; by another name when it is met."""
    host = shire.host()
    other = f"{shire.network}.200"
    async with stand() as s, s.serving():
        both = await asyncio.gather(s.apply("one", [host]), s.apply("two", [host]))
        assert sorted(reply.status for reply in both) == [201, 422]
        refused = next(reply for reply in both if reply.status != 201)
        assert refused.body["error"]["problems"][0]["key"] == "ssh_config.hosts.0"
        assert f"{host.ip} is in fleet" in refused.body["error"]["message"]
        await s.is_(host, "IDLE")
        host.run(f"ip addr add {other}/24 dev eth0")
        assert (await s.apply("three", [{"host": other}])).status == 201
        said = await s.in_trouble(other, "already, under another name")
        assert "one host is in one fleet" in said.lower()
        await s.told("DELETE", "fleets/three")
        await gone_by_name(s, other)
        assert (await s.of(host))["status"] == "IDLE", "whose agents they are was looked at first"
        run = await s.submit("echo fine")
        await s.run_is(run, "DONE")


async def gone_by_name(s: Stand, name: str) -> None:
    async def is_gone() -> bool:
        return await s.of(name) is None

    await until(is_gone, f"{name} is gone")


async def test_who_is_not_let_in_is_told_which_line_is_missing(stand: Stands, shire: Land) -> None:
    """With the key of the project, which the server has made and nobody else has ever seen."""
    host = shire.host()
    async with stand() as s, s.serving():
        await s.apply("office", [host], identity_file=None)
        said = await s.in_trouble(host, "does not let root in with the key of the project", "authorized_keys")
        public = (await s.told("GET", "key"))["public_key"]
        assert public in said
        host.admit(public)
        again = await s.apply("office", [host], identity_file=None)
        assert again.status == 200
        await s.is_(host, "IDLE", patience_s=10)
        assert (await s.of(host))["trouble"] == ""
        async with s.served.context.database.connection() as connection:
            sealed = await connection.fetchval("SELECT sealed FROM ssh_key")
        assert b"PRIVATE" not in sealed
        assert (s.home / "seal.key").stat().st_mode & 0o077 == 0


async def test_private_keys_are_shown_to_nobody(stand: Stands, shire: Land, capsys: pytest.CaptureFixture[str]) -> None:
    host = shire.host()
    secret = shire.key.read_text().splitlines()[2]
    async with stand() as s, s.serving():
        answers: list[Any] = [(await s.apply("office", [host])).body]
        await s.is_(host, "IDLE")
        for path in ("fleets", "fleets/office", "instances", f"instances/{(await s.of(host))['name']}", "events"):
            answers.append(await s.told("GET", path))
        async with s.served.context.database.connection() as connection:
            rows = [await connection.fetch(f"SELECT * FROM {table}") for table in ("fleet", "journal", "ssh_host")]
        assert secret not in repr((answers, rows))
        wrong = {"configuration": {"type": "fleet"}, "keys": {"land.key": [s.key]}}
        for path in ("fleets", "fleets/plan"):
            refused = await s.ask("POST", path, wrong)
            assert refused.status in (400, 422)
            assert secret not in repr(refused.body) and "PRIVATE" not in repr(refused.body)
        await s.told("DELETE", "fleets/office")
        await gone(s, host)

        async def forgotten() -> bool:
            async with s.served.context.database.connection() as connection:
                left = await connection.fetchval("SELECT count(*) FROM ssh_key WHERE fleet_id IS NOT NULL")
            return int(left) == 0

        await until(forgotten, "its keys went with the fleet")
    assert secret not in "".join(capsys.readouterr())


async def test_a_host_that_is_off_is_waited_for(stand: Stands, shire: Land) -> None:
    host = shire.host(boot=False)
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        said = await s.in_trouble(host)
        assert "does not answer" in said or "refuses connections" in said
        assert (await s.of(host))["status"] == "PENDING"
        host.boot()
        await s.is_(host, "IDLE", patience_s=60)


async def test_a_host_key_that_changed_is_refused_until_somebody_trusts_it(stand: Stands, shire: Land) -> None:
    host = shire.host()
    before = host.fingerprint
    async with stand() as s, s.serving():
        await s.apply("office", [host])
        name = (await s.is_(host, "IDLE"))["name"]
        await s.told("DELETE", "fleets/office")
        await gone(s, host)
        host.new_host_key()
        host.reboot()
        await s.apply("again", [host])
        said = await s.in_trouble(host, "has changed", before, host.fingerprint)
        assert "stoker instance trust" in said
        name = (await s.of(host))["name"]
        keys = (await s.told("GET", f"instances/{name}/keys"))["items"]
        assert keys == [{"place": host.ip, "fingerprint": before, "offered": host.fingerprint}]
        wrong = await s.ask("POST", f"instances/{name}/trust", {"place": host.ip, "fingerprint": before})
        assert wrong.status == 409
        taken = {"place": host.ip, "fingerprint": host.fingerprint}
        await s.told("POST", f"instances/{name}/trust", taken)
        await s.is_(host, "IDLE", patience_s=60)


async def test_hosts_on_which_the_agents_cannot_be(stand: Stands, shire: Land, bundle: Bundle) -> None:
    """A full disk, no permission, and the agents of another server: each is said, and tried again."""
    full, closed, taken = shire.host(disk_mb=40), shire.host(users=["ann"]), shire.host()
    closed.run(f"chmod 0555 {closed.home('ann')}; chown root {closed.home('ann')}")
    owner = "/var/lib/stoker/host/owner"
    taken.run(f"mkdir -p /var/lib/stoker/host; echo 0123456789abcdef x > {owner}")
    async with stand() as s:
        s.parcel = bundle
        async with s.serving():
            await mended(s, full, closed, taken, owner)


async def mended(s: Stand, full: Host, closed: Host, taken: Host, owner: str) -> None:
    hosts: list[Host | dict[str, str]] = [full, {"host": closed.ip, "user": "ann"}, taken]
    await s.apply("office", hosts)
    assert "MB free, and the agents need" in await s.in_trouble(full)
    assert f"may not write in {closed.home('ann')}" in await s.in_trouble(closed)
    said = await s.in_trouble(taken)
    assert "belongs to another Stoker server" in said and f"rm {owner}" in said
    taken.run(f"rm {owner}")
    closed.run(f"chmod 0755 {closed.home('ann')}; chown ann {closed.home('ann')}")
    # Applied again, everything is tried again at once.
    await s.apply("office", hosts)
    await s.is_(taken, "IDLE", patience_s=20)
    await s.is_(closed, "IDLE", patience_s=60)


async def test_hosts_behind_a_gate(stand: Stands, shire: Land) -> None:
    """The one behind it lets in nobody else; its place says how it is reached, and both keys are pinned."""
    gate, inner = shire.host(), shire.host()
    inner.run(f"printf 'Match Address *,!{gate.ip}\\n  DenyUsers *\\n' >> /etc/ssh/sshd_config")
    inner.reboot()
    async with stand() as s, s.serving():
        await s.apply("far", [inner], proxy_jump={"host": gate.ip})
        one = await s.is_(inner, "IDLE")
        assert one["location"] == f"{inner.ip} via {gate.ip}"
        keys = (await s.told("GET", f"instances/{one['name']}/keys"))["items"]
        assert {key["fingerprint"] for key in keys} == {gate.fingerprint, inner.fingerprint}
        run = await s.submit("echo from afar")
        await s.run_is(run, "DONE")
        assert await s.log(run) == "from afar\n"
