"""A unix socket that is there all at once: whoever finds it can connect to it. It replaces what was there before."""

import os
import socket
from pathlib import Path


def listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, kind)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    server.bind(str(fresh))
    server.listen(128)
    os.replace(fresh, path)
    return server


def listening(path: str) -> bool:
    """Whether any process holds the socket that is bound there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            # Its queue is full, so it has one.
            return True
    return True
