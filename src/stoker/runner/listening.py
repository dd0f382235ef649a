"""A unix socket that is there all at once: whoever finds it can connect to it. It replaces what was there before."""

import os
import socket
from pathlib import Path

# A caller that finds the queue full is not told to wait: asyncio takes its EAGAIN for a connection and loses the
# request. The kernel cuts this to its own limit (4,096 unless somebody changed it).
QUEUE = 65_535


def listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, kind)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    server.bind(str(fresh))
    server.listen(QUEUE)
    os.replace(fresh, path)
    return server


def held(path: str) -> bool:
    """Whether any process holds the socket that is bound there; none does from the moment on in which it dies."""
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
