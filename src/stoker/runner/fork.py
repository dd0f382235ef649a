"""The warm fork server: a process that has imported all that a runner needs, and forks one when it is asked.

`python -m stoker.runner.fork --socket PATH`. One request a connection, one packet each way: a JSON object and, beside
it, the socket on which the runner will listen.

- `{"directory": "…"}` and one socket: `{"pid": N}`, a runner of the task in that directory.
- `{}`: `{"version": "…", "pid": N}` of the fork server itself.
- anything else: `{"error": "…"}`. Nothing that is sent ends this process.

It has one thread, so that a fork copies no lock that somebody holds; everything imported is frozen, so that the
garbage collector does not touch, and thereby copy, the pages that all runners share. It keeps nothing: when it dies,
runners go on, and the next one takes its place. When its socket is gone or belongs to a successor, it leaves.
"""

import argparse
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import stoker.runner.api
import stoker.runner.code  # noqa: F401 - what a runner that begins alone imports later
from stoker.runner.listening import listen
from stoker.runner.main import ignore_no_signal, rehearse, serve
from stoker.runner.place import Place
from stoker.runner.tenant import name_process, peer_is_ours
from stoker.runner.version import VERSION

_REQUEST_BYTES: Final = 64 * 1024
_REQUEST_S: Final = 1.0
"""A caller who says nothing holds up the others no longer than this."""
_LOOK_S: Final = 30.0
_CRASHED: Final = 70


class BadRequest(Exception):
    """Said to the caller."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker.runner.fork")
    parser.add_argument("--socket", type=Path, required=True)
    path: Path = parser.parse_args(argv).socket.absolute()
    os.umask(0o077)
    os.chdir("/")
    name_process("stoker-fork")
    ignore_no_signal()
    # The kernel reaps the runners that end; nobody here wants to know how.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = listen(path, socket.SOCK_SEQPACKET)
    server.settimeout(_LOOK_S)
    own = os.stat(path).st_ino
    rehearse()
    gc.collect()
    gc.freeze()
    _log(f"fork server {VERSION} is process {os.getpid()} and listens on {path}")
    try:
        while _is(path, own):
            with suppress(TimeoutError):
                connection, _ = server.accept()
                with connection:
                    _attend(server, connection)
    finally:
        if _is(path, own):
            path.unlink()
    return 0


def _is(path: Path, inode: int) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino == inode
    return False


def _attend(server: socket.socket, connection: socket.socket) -> None:
    """One request. Whatever is wrong with it stays between its caller and this connection."""
    descriptors: list[int] = []
    connection.settimeout(_REQUEST_S)
    try:
        if not peer_is_ours(connection):
            raise BadRequest("the caller is another user")
        data, descriptors, flags, _ = socket.recv_fds(connection, _REQUEST_BYTES, 8)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise BadRequest("the request is too large")
        answer = _answer(server, connection, data, descriptors)
    except (BadRequest, OSError) as error:
        _log(f"refused a request: {error}")
        answer = {"error": str(error)}
    finally:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)
    with suppress(OSError):
        connection.send(json.dumps(answer).encode())


def _answer(server: socket.socket, connection: socket.socket, data: bytes, descriptors: list[int]) -> dict[str, Any]:
    try:
        request = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("the request is no JSON") from None
    if request == {}:
        return {"version": VERSION, "pid": os.getpid()}
    directory = request.get("directory") if isinstance(request, dict) else None
    if not isinstance(directory, str) or not os.path.isabs(directory) or "\0" in directory or len(descriptors) != 1:
        raise BadRequest("a request has an absolute directory and one socket")
    if not Place(Path(directory)).assignment.is_file():
        raise BadRequest(f"there is no runner.json in {directory}")
    pid = os.fork()
    if pid == 0:
        server.detach()
        connection.detach()
        _become_runner(Path(directory), descriptors[0])
    return {"pid": pid}


def _become_runner(directory: Path, descriptor: int) -> NoReturn:
    """In the child, which keeps nothing of its parent but the modules."""
    try:
        os.setsid()
        _keep_only(descriptor)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # Not ignored, which every program of the job would inherit.
        signal.signal(signal.SIGHUP, lambda *_: None)
        _redirect()
        serve(directory, socket.socket(fileno=descriptor))
    except BaseException:
        _log(f"the runner of {directory} crashed:\n{traceback.format_exc()}")
        raise
    finally:
        # A runner that lived to its end has left already. Not by returning: above this is the fork server's loop.
        os._exit(_CRASHED)


def _keep_only(descriptor: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != descriptor:
            with suppress(OSError):
                os.close(int(name))


def _redirect() -> None:
    """What a runner itself prints is only ever the story of a crash; it goes where the fork server tells its own."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)


def _log(sentence: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
