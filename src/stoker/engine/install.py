"""Puts our agents on a host that somebody named, brings them up to date there, and removes every trace of them.

Each step is safe to take again: what is there already stays. What runs on the host does not notice an upgrade, for only
the shim is started anew, from a tree beside the old one; that goes when nothing runs from it any more.
"""

import asyncio
import ipaddress
import platform
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, instance_name
from stoker.core.route import SSH, Route
from stoker.core.sight import Way
from stoker.engine.progress import CHECK, CONNECT, READ, SHIP, START, Progress
from stoker.store import host as host_store
from stoker.store import ssh as ssh_store
from stoker.store.database import Database
from stoker.store.ssh import SshHost
from stoker.transport import parcel, script
from stoker.transport.agents import ShimLine
from stoker.transport.http import Line
from stoker.transport.parcel import UNPACKED, Parcel, lacking
from stoker.transport.remote import Remote
from stoker.transport.tunnel import Tunnels
from stoker.wire.shim import HostInfo, Leave

ROOT_BASE: Final = "/var/lib/stoker/host"
USER_BASE: Final = ".stoker/host"
SPARE_KB: Final = 50 * 1024
"""What has to be free beside the agents."""
ANSWER_S: Final = 15.0
LOOK_S: Final = 0.05
MB: Final = 1024 * 1024

Parcels = Callable[[], Awaitable[Parcel]]


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are on a host, and where our agents belong there."""

    remote: Remote
    base: str
    root: bool
    sudo: bool
    door: str
    """The user who may reach the agents' sockets, where that is not their own; nothing: nobody else."""
    systemd: bool
    cron: bool
    docker: bool
    uid: int
    machine: str


@dataclass(frozen=True, slots=True)
class Found:
    """What lies there."""

    free_kb: int
    there: str
    writable: bool
    owner: str
    current: str
    trees: tuple[str, ...]
    layers: tuple[str, ...]
    running: bool


@dataclass(frozen=True, slots=True)
class Installed:
    way: Way
    info: HostInfo


class Installer:
    def __init__(self, database: Database, tunnels: Tunnels, parcels: Parcels, server: str) -> None:
        """`server` is what tells this one from others whose agents may be on a host."""
        self._database, self._tunnels, self._parcels, self._server = database, tunnels, parcels, server

    async def install(self, id: InstanceId, host: SshHost, progress: Progress) -> Installed:
        async with progress.step(CONNECT) as step:
            login = await self._login(id)
            step.say(f"as {host.route.target.user}")
        async with progress.step(CHECK) as step:
            made = await self._parcels()
            found = await _look(login)
            await self._check(id, login, found, made)
            step.say(_known(login, found))
        await self._touch(host, True)
        async with progress.step(SHIP) as step:
            size = sum(one.size_bytes for one in lacking(made, found.trees, found.layers))
            shown = partial(step.share, total=size)
            await parcel.ship(login.remote, login.base, made, found.trees, found.layers, shown)
            step.say(f"{size / MB:.1f} MB" if size else "all of it was there")
        async with progress.step(START) as step:
            address, token, kept = await _start(login, made, f"{self._server} {id}")
            step.say(_kept(kept, found, made.digest))
        async with progress.step(READ) as step:
            info = await self._info(id, address, token)
            step.say(f"{info.cpus:g} CPU, {info.memory_mb / 1024:.1f} GB of memory, {len(info.gpus)} GPUs")
            ip = address_of(host.route, info)
        project_id = info.project_id
        way = Way(f"{SSH}:{address}", token, ip, one_project=not info.root, project_id=project_id)  # type: ignore[arg-type]
        return Installed(way, info)

    async def current(self, id: InstanceId) -> bool:
        """Whether its shim runs, and is as this server would have it."""
        made, login = await self._parcels(), await self._login(id)
        found = await _look(login)
        return found.running and found.current == made.digest

    async def uninstall(self, id: InstanceId, host: SshHost) -> None:
        login = await self._login(id)
        found = await _look(login)
        if found.owner and found.owner != f"{self._server} {id}":
            # Whoever came after us has taken everything over.
            return
        await self._leave(id)
        told = await login.remote.run(script.REMOVE, login.base)
        if told.code:
            raise Unavailable(f"The agents could not be removed: {told.said}.")
        await self._touch(host, False)

    async def _leave(self, id: InstanceId) -> None:
        """It takes along what only it knows of: control groups, sockets in other places."""
        async with self._database.connection() as connection:
            known = await host_store.get(connection, id)
        if known is None:
            return
        line = Line(known.address.partition(":")[2], known.token, connect=self._tunnels.connect(id))
        try:
            await line.raw("POST", "/leave", Leave(force=True, for_good=True), wait_s=ANSWER_S)
        except Unavailable:
            # It is not there. What is left of it is removed all the same.
            return
        finally:
            await line.close()

    async def revive(self, id: InstanceId) -> None:
        """Starts what is there, so that its tasks can be ended in good order."""
        login = await self._login(id)
        await login.remote.run('if [ -x "$1/start" ]; then "$1/start"; fi', login.base)

    async def _login(self, id: InstanceId) -> Login:
        remote = await self._tunnels.remote(id)
        told = script.read((await remote.run(script.LOGIN)).out)
        if told.get("system") != "Linux":
            hint = "Its user needs a shell such as /bin/sh; agents run on Linux only."
            raise Unavailable(f"The host is {told.get('system') or 'of an unknown kind'}, and not Linux.", hint=hint)
        uid = int(told["uid"])
        sudo = uid != 0 and "sudo" in told
        root = uid == 0 or sudo
        if "tar" not in told:
            raise Unavailable("There is no tar on the host.", hint="Install it there; it is tried again.")
        return Login(
            remote=remote.as_root() if sudo else remote,
            base=ROOT_BASE if root else str(PurePosixPath(told["home"]) / USER_BASE),
            root=root,
            sudo=sudo,
            door=str(uid) if sudo else "",
            systemd=root and "systemd" in told,
            cron="crontab" in told,
            docker="docker" in told or "podman" in told,
            uid=uid,
            machine=told["machine"],
        )

    async def _check(self, id: InstanceId, login: Login, found: Found, made: Parcel) -> None:
        if login.machine != platform.machine():
            hint = f"A server on {login.machine} can have it."
            raise Unavailable(f"It is {login.machine}; the agents here are for {platform.machine()}.", hint=hint)
        if not found.writable:
            who = "root" if login.root else "its user"
            hint = "Let it write there, log in as root, or allow sudo without a password."
            raise Unavailable(f"{who} may not write in {found.there}.", hint=hint, code="no_permission")
        need_kb = SPARE_KB + UNPACKED * sum(one.size_bytes for one in lacking(made, found.trees, found.layers)) // 1024
        if found.free_kb < need_kb:
            said = f"{found.there} has {found.free_kb // 1024} MB free, and the agents need {need_kb // 1024} MB."
            raise Unavailable(said, hint="Make room there; it is tried again.", code="disk_full")
        server, _, instance = found.owner.partition(" ")
        if not server or instance == str(id):
            return
        hint = f"Remove it there first, or, if that server is no more, `rm {login.base}/owner` on the host."
        if server != self._server:
            raise Unavailable("It belongs to another Stoker server.", hint=hint, code="host_taken")
        async with self._database.connection() as connection:
            owner = await ssh_store.owner(connection, UUID(instance))
        if owner is not None and owner.alive:
            name = instance_name(SSH, UUID(instance))
            hint = f"One host is in one fleet: take it out of one of the two. It is called {name} there."
            raise Unavailable(
                f"It is in fleet {owner.fleet} already, under another name.", hint=hint, code="host_taken"
            )

    async def _info(self, id: InstanceId, address: str, token: str) -> HostInfo:
        line = Line(address, token, connect=self._tunnels.connect(id))
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        try:
            while True:
                try:
                    return await ShimLine(line).host()
                except Unavailable:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(LOOK_S)
        finally:
            await line.close()

    async def _touch(self, host: SshHost, touched: bool) -> None:
        async with self._database.connection() as connection:
            await ssh_store.touch(connection, host, touched)


async def _look(login: Login) -> Found:
    told = await login.remote.run(script.LOOK, login.base)
    if told.code:
        raise Unavailable(f"The host cannot be looked at: {told.said}.")
    one = script.read(told.out)
    return Found(
        free_kb=int(one["free_kb"]),
        there=one["there"],
        writable="writable" in one,
        owner=one.get("owner", ""),
        current=one.get("current", ""),
        trees=tuple(script.every(told.out, "tree")),
        layers=tuple(script.every(told.out, "layer")),
        running="pid" in one,
    )


async def _start(login: Login, made: Parcel, owner: str) -> tuple[str, str, str]:
    """Where the shim listens, its token, and who starts it again."""
    tree = PurePosixPath(login.base) / "bundle" / made.digest
    command = script.quoted([*made.command(tree, "stoker.shim"), "--home", f"{login.base}/shim"])
    start = script.START.format(base=script.quoted([login.base]), command=f"{command} --detach")
    unit = script.UNIT.format(command=command)
    told = await login.remote.run(
        script.INSTALL, login.base, made.digest, owner, "1" if login.systemd else "", start, unit, login.door
    )
    one = script.read(told.out)
    if told.code or "address" not in one:
        raise parcel.failed(told.err, f"The agent did not start: {told.said}.")
    return one["address"], one["token"], one.get("kept", "")


def _known(login: Login, found: Found) -> str:
    who = "root by sudo" if login.sudo else "root" if login.root else "a plain user: it serves one project"
    runtime = "Docker is there" if login.docker else "no Docker: jobs are processes"
    return f"{who}; {runtime}; {found.free_kb / 1024 / 1024:.1f} GB free"


def _kept(kept: str, found: Found, digest: str) -> str:
    keeper = {"systemd": "systemd keeps it running", "cron": "cron keeps it running"}
    said = keeper.get(kept, "no cron and no systemd: this server starts it again after a reboot")
    if found.running and found.current != digest:
        return f"the one that was there was replaced; {said}"
    return said


def address_of(route: Route, info: HostInfo) -> str:
    """Where other hosts reach it."""
    if route.ip:
        return route.ip
    if route.network:
        network = ipaddress.ip_network(route.network)
        inside = [one for one in info.addresses if ipaddress.ip_address(one) in network]
        if not inside:
            has = ", ".join(info.addresses) or "none"
            hint = "Correct network in the fleet's file, or say ip for this host."
            raise Unavailable(f"It has no address in {route.network}; its addresses are {has}.", hint=hint)
        return inside[0]
    host = route.target.host
    return host if _is_address(host) or not info.addresses else _first(info.addresses)


def _first(addresses: Iterable[str]) -> str:
    """An IPv4 one, if there is one."""
    return min(addresses, key=lambda one: (":" in one, one))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
