"""Where a shim is wired: `run` is one until it is told to end."""

import asyncio
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
from aiohttp import web

from stoker.bundle.tree import Tree, own_root
from stoker.core.errors import StokerError
from stoker.runner.fork_client import start_runner
from stoker.runner.listening import QUEUE, listen
from stoker.runner.reaper import kill_leftovers
from stoker.shim import cgroup, diary, host, settings
from stoker.shim.api import Api
from stoker.shim.change import Changes
from stoker.shim.containers import Bundle, Containers
from stoker.shim.device import Devices
from stoker.shim.engine import SOCKETS, Engine, find_socket
from stoker.shim.engine_watch import EngineWatch
from stoker.shim.fence import Removed
from stoker.shim.fork_server import ForkServer
from stoker.shim.health import Checkup
from stoker.shim.home import Home
from stoker.shim.ledger import Ledger
from stoker.shim.limits import (
    AILING_EXAMINED_S,
    DESCRIPTORS,
    EXAMINED_S,
    LOOK_S,
    PRUNE_S,
    STARTS_AT_ONCE,
    THREADS,
)
from stoker.shim.point import Points
from stoker.shim.process import Host
from stoker.shim.prune import Images
from stoker.shim.shelf import Shelf
from stoker.shim.shim import Shim
from stoker.shim.task import Bench
from stoker.shim.tenant import Tenants
from stoker.shim.volume import Volumes
from stoker.wire.shim import HostGpu, HostInfo

log = structlog.get_logger()

InThread = Callable[..., Awaitable[Any]]


def run(home: Home, gpus: Sequence[HostGpu] | None = None) -> None:
    """Until SIGTERM or `/leave`, in a home that is ours. Runners go on without us, and the next shim finds them."""
    diary.begin(home.shim_log)
    told = settings.read(home.root).described() if gpus is None else gpus
    found = host.gpus() if told is None else told
    # Those that somebody only told us of are known to no driver.
    checkup = Checkup(home.root, found if told is None else (), host.ailing, time.monotonic)
    asyncio.run(_run(home, found, checkup))


async def _run(home: Home, gpus: Sequence[HostGpu], checkup: Checkup) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="disk") as pool:

        def in_thread(work: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
            return loop.run_in_executor(pool, work, *arguments)

        fork_server = ForkServer(home.socket("fork.sock"), home.fork_log, start_runner, raise_descriptors())
        tenants = Tenants(Ledger(home.root / "projects"), is_root=home.is_root)
        containers = _containers(home)
        shim, devices, cgroups = _made(home, gpus, fork_server, tenants, in_thread, containers)
        notified = _hear(home, shim)
        beside = [loop.create_task(_warm(fork_server, in_thread))]
        await containers.watch.look()
        await shim.recover()

        def seen() -> HostInfo:
            limited, only = cgroups.version > 0, tenants.only
            return host.look(home.root, devices.gpus, cgroups=limited, project_id=only, docker=shim.docker)

        edge = Api(shim, seen, home.token())
        runner = await _open(home, edge)
        log.info("shim serves", home=str(home.root), boot=shim.boot, root=home.is_root, cgroups=cgroups.version)
        guard = _guard_door(home.socket("shim.sock"), asked)
        examining = _examine(shim, checkup, in_thread)
        for work in (shim.watch(), _reap(fork_server), guard, examining, containers.watch.run(), _prune(containers)):
            beside.append(loop.create_task(work))
        await _either(asked, shim.left)
        await shim.stop()
        await runner.cleanup()
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        await containers.engine.close()
        loop.remove_reader(notified)
        notified.close()
        if shim.left.is_set():
            await in_thread(fork_server.end)
            cgroups.close()
            for name in ("shim.sock", "notify.sock"):
                home.socket(name).unlink(missing_ok=True)
            home.leave()
        log.info("shim ends", left=shim.left.is_set())


def _containers(home: Home) -> Containers:
    engine, home_id = Engine(find_socket() or Path(SOCKETS[0])), home.id()
    images = Images(engine, Ledger(home.root / "images"), time.time)
    return Containers(engine, home_id, EngineWatch(engine, home_id), images, lambda: _bundle(home))


def _bundle(home: Home) -> Bundle:
    """The one that we run from. There is nothing to make another one of, and it stays as long as it is mounted."""
    if (own := own_root()) is not None:
        return Tree(own)
    from stoker.bundle.place import find_or_build

    return find_or_build(home.root)


def _made(
    home: Home,
    gpus: Sequence[HostGpu],
    fork_server: ForkServer,
    tenants: Tenants,
    in_thread: InThread,
    containers: Containers,
) -> tuple[Shim, Devices, cgroup.Cgroups]:
    cgroups = cgroup.find(cgroup.name_of(home.root))
    devices = Devices(gpus)
    volumes = Volumes(home.volumes, is_root=home.is_root)
    points = Points(home.volumes / "points", is_root=home.is_root)
    volumes.prepare()
    points.prepare()
    bench = Bench(
        Host(
            home=home,
            shelf=Shelf(home),
            fork_server=fork_server,
            cgroups=cgroups,
            devices=devices,
            volumes=volumes,
            points=points,
            notify=home.socket("notify.sock"),
            kill_leftovers=kill_leftovers,
            in_thread=in_thread,
        ),
        containers,
        Changes(),
        asyncio.Semaphore(STARTS_AT_ONCE),
        time.time,
    )
    shim = Shim(bench, tenants, Removed(Ledger(home.root / "removed")))
    containers.images.names, containers.watch.wanted = shim.images, shim.holds
    containers.watch.changed = bench.changes.bump
    return shim, devices, cgroups


async def _open(home: Home, edge: Api) -> web.AppRunner:
    # A body is taken as it comes: a few bytes of it could stand for more than all our memory and time.
    runner = web.AppRunner(edge.application(), access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    path = home.socket("shim.sock")
    door = listen(path)
    home.admit(path)
    await web.SockSite(runner, door, backlog=QUEUE).start()
    home.announce(path)
    return runner


def _hear(home: Home, shim: Shim) -> socket.socket:
    """Runners say their id when something changed. What they say is a hint, and may be anything."""
    path = home.socket("notify.sock")
    path.unlink(missing_ok=True)
    hearing = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    hearing.bind(str(path))
    path.chmod(0o600)

    def heard() -> None:
        with suppress(BlockingIOError):
            while True:
                said = hearing.recv(256)
                with suppress(ValueError):
                    shim.notified(UUID(said.decode(errors="replace").strip()))

    asyncio.get_running_loop().add_reader(hearing, heard)
    return hearing


async def _warm(fork_server: ForkServer, in_thread: InThread) -> None:
    """Before the first task needs it. If it fails now, that task will say so."""
    try:
        await in_thread(fork_server.ensure)
    except (OSError, StokerError) as error:
        log.warning("no fork server", error=str(error))


async def _reap(fork_server: ForkServer) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        fork_server.reap()


async def _examine(shim: Shim, checkup: Checkup, in_thread: InThread) -> None:
    while True:
        try:
            health = await in_thread(checkup.look)
        except OSError as error:
            health = f"its disk cannot be looked at: {error}"
        shim.examined(health)
        await asyncio.sleep(AILING_EXAMINED_S if health else EXAMINED_S)


async def _prune(containers: Containers) -> None:
    while True:
        await asyncio.sleep(PRUNE_S)
        # An engine that is away, or busy, is asked again.
        with suppress(StokerError):
            await containers.images.prune()


async def _guard_door(path: Path, leave: asyncio.Event) -> None:
    """A shim whose socket was deleted is reached by nobody, and its lock keeps the next one away: it leaves."""
    own = _inode(path)
    while own is not None and _inode(path) == own:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    log.error("our socket is gone, and so are we", socket=str(path))
    leave.set()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.get_running_loop().create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


def raise_descriptors() -> tuple[int, int]:
    """Each task costs one. Returns the limits as they were, which are those of whatever we start."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return before
