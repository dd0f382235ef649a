"""Asks the fork server for a runner. Small, and without the runner's modules: the shim does not need them."""

import json
import socket
from pathlib import Path
from typing import Any, Final

from stoker.core.errors import Broken, Unavailable

ANSWER_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 10.0


def start_runner(socket_path: Path, directory: Path, listener: socket.socket) -> int:
    """The pid of a new runner for the task in `directory`, which serves on `listener`.

    `Unavailable` when no fork server answers: start one and ask again. A request that was cut off may have started a
    runner all the same; the task's `runner.pid` tells.
    """
    answer = _ask(socket_path, {"directory": str(directory)}, [listener.fileno()])
    return int(answer["pid"])


def server_version(socket_path: Path) -> str:
    """Of the fork server that listens there: after an upgrade an old one is replaced."""
    return str(_ask(socket_path, {}, [])["version"])


def _ask(socket_path: Path, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(socket_path))
            socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
            told = connection.recv(ANSWER_BYTES)
        except OSError as error:
            raise Unavailable(f"The fork server does not answer: {error}.", code="fork_server") from error
    if not told:
        raise Unavailable("The fork server has hung up.", code="fork_server")
    answer: dict[str, Any] = json.loads(told)
    if "error" in answer:
        raise Broken(f"The fork server says: {answer['error']}.", code="fork_server")
    return answer
