"""`stoker up`, `stoker down`, `stoker server`: the server of this machine."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Final

import click

from stoker.cli import life, moment, screen
from stoker.cli.command import F, Session, command, json_option, pass_session
from stoker.cli.config import warn_of_variable
from stoker.cli.shim import leave
from stoker.core.errors import Conflict, StokerError, UserError

HOST: Final = "127.0.0.1"
PORT: Final = 4400
READY_S: Final = 180.0
"""The first start makes a database, which takes some seconds even on a fast disk."""
STOP_S: Final = 60.0
SHIM_S: Final = 10.0
LOOK_S: Final = 0.05
LOG_LINES: Final = 15
LOG_BYTES: Final = 16 * 1024 * 1024
"""A larger one is put aside when the next server starts; one old one is kept."""


def place_options(function: F) -> F:
    for option in (
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            envvar="STOKER_PORT",
            help=f"The last one of this home, at first {PORT}, unless you say; 0 takes a free one.",
        ),
        click.option(
            "--host",
            default=HOST,
            metavar="ADDRESS",
            envvar="STOKER_HOST",
            help=f"To listen on; {HOST} unless you say.",
        ),
    ):
        function = option(function)
    return function


@command(
    "up",
    short_help="Start a server on this machine.",
    example="""
    stoker up                                    # in the foreground, Ctrl-C ends it
    stoker up -d                                 # in the background, `stoker down` ends it
    stoker --home ~/second up -d --port 4401     # a second one beside it
    """,
)
@click.option("-d", "--detach", is_flag=True, help="In the background.")
@place_options
@json_option
@pass_session
def up(session: Session, detach: bool, host: str, port: int | None, as_json: bool) -> None:
    """Start a server on this machine, which also runs the jobs, and make it the one you talk to.

    Everything it keeps is under --home. It needs no root, no Docker and no database: it brings its own.
    """
    home = prepare(session.config.home)
    running = life.found(home)
    if running is not None:
        if not detach or (port is not None and port != _port_of(session.config.url)):
            raise life.running(home)
        if not as_json:
            screen.note("It is already running.")
        # Somebody else may have started it a moment ago.
        _wait_ready(home, lambda: _url_in(home), running.alive, 0)
        _tell_up(session, home, running.pid, as_json)
        return
    chosen = _chosen_port(home, host, port)
    if not detach:
        _serve(home, host, chosen, local=True)
        return
    started = time.monotonic()
    pid = _start(home, host, chosen)
    if not as_json:
        screen.note(f"Ready after {moment.span(time.monotonic() - started)}.")
    _tell_up(session, home, pid, as_json)


@command(
    "server",
    short_help="Run a server, as a service manager would.",
    example="""
    stoker server --host 0.0.0.0 --port 4400
    STOKER_DATABASE_URL=postgresql://… stoker server
    """,
)
@place_options
@click.option("--local/--no-local", default=False, help="Also run jobs on this machine, as `stoker up` does.")
@pass_session
def server(session: Session, host: str, port: int | None, local: bool) -> None:
    """Run a server in the foreground, until SIGTERM.

    STOKER_DATABASE_URL names a PostgreSQL that several servers share, STOKER_LOGS the directory of logs that they
    share; STOKER_LOG_FORMAT=json makes its own log one for programs.
    """
    home = prepare(session.config.home)
    _serve(home, host, _chosen_port(home, host, port), local=local)


@command(
    "down",
    short_help="Stop the server of this machine.",
    example="""
    stoker down
    stoker down --force      # at once
    """,
)
@click.option("--force", is_flag=True, help="Kill it when it does not end by itself.")
@pass_session
def down(session: Session, force: bool) -> None:
    """Stop the server of this machine. Jobs that run go on, and are found again by the next `stoker up`."""
    home = session.config.home
    running = life.found(home)
    if running is None:
        # It may have been killed, and its shim outlives it.
        said = leave(home)
        screen.note(" ".join(filter(None, (f"No server of {home} is running.", said))))
        return
    running.signal(SIGTERM)
    if not running.ended_within(5.0 if force else STOP_S):
        if not force:
            raise UserError(
                f"The server (process {running.pid}) has not ended within {STOP_S:.0f} seconds.",
                hint=f"{home / 'server.log'} may say why; `stoker down --force` kills it.",
            )
        running.signal(SIGKILL)
        if not running.ended_within(STOP_S):
            raise UserError(f"Process {running.pid} does not die; the kernel holds it.")
    said = leave(home)
    screen.out("Stopped.")
    if said:
        screen.note(said)


def _serve(home: Path, host: str, port: int, *, local: bool) -> None:
    """Here, until somebody stops it."""
    from stoker.shim.start import start

    with life.held(home):
        # First of all: it gets ready on another core while the server is still being imported.
        started = start(home / "shim") if local else None
        try:
            _serve_here(home, host, port, local=local)
        except BaseException:
            if started is not None:
                _send_away(home, started)
            raise


def _send_away(home: Path, shim: "subprocess.Popen[bytes]") -> None:
    """The server that it was started for did not come."""
    from stoker.shim.start import listening

    give_up_at = time.monotonic() + SHIM_S
    while not listening(home / "shim") and shim.poll() is None and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)
    leave(home)


def _serve_here(home: Path, host: str, port: int, *, local: bool) -> None:
    import asyncio
    import gc

    # A hundred thousand objects are made that stay: to look through them again and again finds nothing.
    gc.disable()
    from stoker.server.main import Served, serve
    from stoker.server.settings import Settings

    def ready(served: Served) -> None:
        if sys.stderr.isatty():
            screen.note(f"Stoker is up at {served.url}. Ctrl-C stops it; what runs goes on.")

    asyncio.run(serve(Settings.of(os.environ, home=home, host=host, port=port, local=local), ready))


def prepare(home: Path) -> Path:
    """The home as a directory that we may write to. As root, users of projects pass through it to their jobs."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        owner = home.stat().st_uid
    except OSError as error:
        raise UserError(
            f"{home} cannot be made: {error.strerror}.", hint="Choose another place with --home or STOKER_HOME."
        ) from None
    if not os.access(home, os.W_OK | os.X_OK):
        raise UserError(f"{home} cannot be written to.", hint="Choose another place with --home or STOKER_HOME.")
    if owner != os.geteuid():
        raise UserError(f"{home} belongs to another user.", hint="Choose another place with --home or STOKER_HOME.")
    return home


def free_port(host: str, port: int) -> int:
    """Asked before anything starts: a clear sentence now instead of a line in a log later."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise UserError(f"{host!r} is no address: {error.strerror}.") from None
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE:
                raise Conflict(
                    f"Port {port} is used by another program.", hint=f"Choose another: --port {port + 1}."
                ) from None
            case errno.EACCES:
                raise UserError(f"Port {port} is for root only.", hint=f"Choose another: --port {PORT}.") from None
            case errno.EADDRNOTAVAIL:
                raise UserError(f"This machine does not have the address {host}.") from None
        raise UserError(f"{host}:{port} cannot be listened on: {error.strerror}.") from None


def _chosen_port(home: Path, host: str, wanted: int | None) -> int:
    """Without a word the one that this home had before: whoever follows a log there finds the server again."""
    if wanted is None:
        last = _url_in(home)
        wanted = _port_of(last) if last.startswith(_url(host, 0)[:-1]) else None
    return free_port(host, PORT if wanted is None else wanted)


def _port_of(url: str) -> int | None:
    from urllib.parse import urlsplit

    return urlsplit(url).port


def _url(host: str, port: int) -> str:
    """For clients on this machine; an address that means all of them is no address to connect to."""
    name = {"0.0.0.0": HOST, "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _start(home: Path, host: str, port: int) -> int:
    """In a session of its own, so that it outlives this terminal; returns when it is ready."""
    log = home / "server.log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        began_at = output.tell()
        argv = [sys.executable, "-P", "-m", "stoker.cli.main", "--home", str(home), "up"]
        argv += ["--host", host, "--port", str(port)]
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=home
        )
    _wait_ready(home, lambda: _url(host, port), lambda: started.poll() is None, began_at)
    return started.pid


def _wait_ready(home: Path, url: Callable[[], str], alive: Callable[[], bool], began_at: int) -> None:
    """`began_at` is where its log begins."""
    log = home / "server.log"
    give_up_at = time.monotonic() + READY_S
    with screen.progress("Starting") as step:
        while not ready(url()):
            step()
            if not alive():
                raise StokerError(
                    f"The server did not start. {log} ends with:\n{_tail(log, began_at)}", hint=f"All of it: {log}"
                )
            if time.monotonic() > give_up_at:
                raise StokerError(
                    f"The server is not ready after {READY_S:.0f} seconds and still tries.",
                    hint=f"{log} may say why; `stoker down --force` ends it.",
                )
            time.sleep(LOOK_S)


def ready(url: str) -> bool:
    from stoker.client.client import Client

    if not url:
        return False
    try:
        return Client(url, "", "").ask("GET", "/healthz/ready", answer_s=5.0, patience_s=0.0).status == 200
    except StokerError:
        return False


def _tail(log: Path, start: int) -> str:
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read()[-16_384:].decode(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-LOG_LINES:])


def _url_in(home: Path) -> str:
    from stoker.client.config import read

    return read(home / "config.yml").get("url", "")


def _tell_up(session: Session, home: Path, pid: int, as_json: bool) -> None:
    url = _url_in(home)
    if as_json:
        screen.show_json({"url": url, "home": str(home), "pid": pid, "log": str(home / "server.log")})
        return
    screen.out(f"Stoker is up at {url}")
    screen.note(f"  log   {home / 'server.log'}\n  stop  stoker{_home_flag(session)} down")
    screen.note(f"  try   stoker{_home_flag(session)} run -- echo hello")
    warn_of_variable(session.config, "url")


def _home_flag(session: Session) -> str:
    return f" --home {session.config.home}" if session.config.origins["home"] == "flag" else ""
