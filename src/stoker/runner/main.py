"""The runner as a process: everything is wired here.

`serve` is called in a child of the fork server, or by `cold_start` in a process of its own.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pydantic import ValidationError

from stoker.core.errors import Broken
from stoker.runner.box import settled
from stoker.runner.identity import Identity
from stoker.runner.job import user_of
from stoker.runner.life import Life
from stoker.runner.limits import OWN_LOG_BYTES, OWN_LOG_DELAY_S
from stoker.runner.listening import QUEUE, listen
from stoker.runner.place import Place
from stoker.runner.reaper import Reaper
from stoker.runner.segment import Segments
from stoker.runner.spool import OwnLog, Spool
from stoker.runner.tenant import adopt_orphans, confine, name_process
from stoker.runner.version import VERSION
from stoker.wire.runner import Assignment

if TYPE_CHECKING:
    # A third of what a cold start takes, and the job does not wait for it.
    from aiohttp import web

    from stoker.runner.edge import Failed

# It logs what strangers send it, to a file that nobody bounds.
logging.getLogger("aiohttp").addHandler(logging.NullHandler())
logging.getLogger("aiohttp").propagate = False

_API: Final = "stoker.runner.api"
_HEAD_START_S: Final = 0.1
_PYTHON_IGNORES: Final = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""And gives back to the programs that it starts."""


def serve(directory: Path, listener: socket.socket) -> None:
    """Lives the life of a runner on a socket that listens already, and ends the process with it."""
    place = Place(directory)
    # First of all: whoever finds this directory must be able to tell whether we live.
    Identity.mine().write(place.identity)
    assignment = settled(Assignment.model_validate_json(place.assignment.read_bytes()), place)
    name_process("stoker-runner")
    adopt_orphans()
    if user_of(assignment) is not None:
        # What a container allows its users is the image's affair.
        confine(for_good=assignment.box is None)
    asyncio.run(_live(place, assignment, listener))


def cold_start(directory: Path) -> None:
    """Without a shim that has made the socket: makes it where `runner.json` says, and serves.

    Also as the first process of a container, for which the kernel ignores every signal without a handler. Whoever calls
    may have blocked SIGTERM: one that came meanwhile counts.
    """
    os.umask(0o077)
    ignore_no_signal()
    # Of a terminal that the container may have. They are meant for the job.
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        assignment = Assignment.model_validate_json(Place(directory).assignment.read_bytes())
        listener = listen(Path(assignment.socket))
    except (OSError, ValidationError) as error:
        raise Broken(f"No runner can begin in {directory}: {error}.", code="bad_assignment") from error
    with listener:
        serve(directory, listener)


def ignore_no_signal() -> None:
    """In this process and those it forks: what a runner ignores, every program of its job would ignore.

    A server that was started with `nohup … &` ignores Ctrl-C, and so does all that it starts.
    """
    for number in signal.valid_signals() - _PYTHON_IGNORES:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def rehearse() -> None:
    """Goes once through what every runner does first; called by the fork server, whose children inherit warm code."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_rehearse(Place(Path(directory))))


@dataclass(frozen=True)
class _Parts:
    """Of a runner, put together and not yet alive."""

    life: Life
    reaper: Reaper
    failed: "Failed"
    place: Place
    assignment: Assignment

    def site(self) -> "web.AppRunner":
        from aiohttp import web

        from stoker.runner.api import Api

        app = Api(self.life, self.place, self.assignment).application(self.failed)
        # A body is taken as it comes: a few bytes of it could stand for more than all our memory and time.
        return web.AppRunner(app, access_log=None, shutdown_timeout=2.0, lingering_time=1.0, auto_decompress=False)


def _put_together(place: Place, assignment: Assignment) -> _Parts:
    own_spool = Spool("the runner's own log", Segments(place.own), say=lambda _: None, delay_s=OWN_LOG_DELAY_S)
    own = OwnLog(own_spool, OWN_LOG_BYTES)
    reaper = Reaper()
    life = Life(place, assignment, Spool("the log", Segments(place.log), own.say), own, reaper)

    def failed(what: str, error: BaseException) -> None:
        own.say(f"{what} failed:\n{''.join(traceback.format_exception(error))}")

    return _Parts(life, reaper, failed, place, assignment)


async def _live(place: Place, assignment: Assignment, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(max_workers=4, thread_name_prefix="disk"))
    parts = _put_together(place, assignment)
    life = parts.life

    def unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        parts.failed(context["message"], context.get("exception") or RuntimeError("no more is known"))

    loop.set_exception_handler(unhandled)
    parts.reaper.start()
    loop.add_signal_handler(signal.SIGTERM, life.terminate)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    life.own.say(f"runner {VERSION} of task {assignment.id} is process {os.getpid()}")
    async with asyncio.TaskGroup() as group:
        # One of these that breaks takes the runner with it; the shim then says so.
        if assignment.job is not None:
            group.create_task(life.take(assignment.job))
        for work in (life.spool.drive(), life.own.spool.drive(), life.limits.watch()):
            group.create_task(work)
        door = group.create_task(_open(parts, listener))
        ends = {group.create_task(life.live()), group.create_task(life.abandoned())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        # Whoever still waits for news hears that there will be none.
        life.spool.finish()
        if door.done():
            await door.result().cleanup()
        if life.result is None or life.result.failure is not None or life.result.exit_code:
            await life.speak()
        # All that was promised is on disk. Taking apart loop, threads and modules would cost as much as the job did.
        os._exit(0)


async def _open(parts: _Parts, listener: socket.socket) -> "web.AppRunner":
    """Of most short jobs nobody ever asks anything: what answers is put together when the first one knocks."""
    knocked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(listener, knocked.set)
    await knocked.wait()
    loop.remove_reader(listener)
    if _API not in sys.modules:
        # A cold start: the job comes first, and goes on while this is read from the disk.
        if parts.assignment.job is not None:
            await parts.life.under_way(_HEAD_START_S)
        await asyncio.to_thread(import_module, _API)
    return await _opened(parts, listener)


async def _opened(parts: _Parts, listener: socket.socket) -> "web.AppRunner":
    from aiohttp import web

    site = parts.site()
    await site.setup()
    await web.SockSite(site, listener, backlog=QUEUE).start()
    return site


async def _rehearse(place: Place) -> None:
    path = place.directory / "socket"
    token = secrets.token_hex(16)
    parts = _put_together(place, Assignment(id=uuid4(), project_id=uuid4(), token=token, socket=str(path)))
    site = await _opened(parts, listen(path))
    reader, writer = await asyncio.open_unix_connection(str(path))
    for question in ("GET /healthz", "GET /pull?offset=0", "POST /run", "POST /job"):
        writer.write(f"{question} HTTP/1.1\r\nHost: runner\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    writer.write_eof()
    await reader.read()
    writer.close()
    await site.cleanup()
