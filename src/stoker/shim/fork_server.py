"""The fork server seen from the shim: found by its socket, started when it is not there, ended when we leave.

It lives in a session of its own and is no part of the shim's life: when we are killed it stays, and the next shim
finds it. When it is killed its runners stay, and the next task starts another.
"""

import json
import os
import resource
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.core.errors import Broken, Unavailable
from stoker.runner.fork_client import ANSWER_BYTES, server_version
from stoker.runner.program import module_command
from stoker.runner.version import VERSION
from stoker.shim.limits import FORK_SERVER_S, KILLED_S

Fork = Callable[[Path, Path, socket.socket], int]
"""Asks the server at this socket for a runner in this directory with this listener; its process id."""

MODULE = "stoker.runner.fork"
_LOOK_S = 0.01
_ASK_S = 5.0


class ForkServer:
    """Its methods block; each may be called from any thread."""

    def __init__(self, path: Path, log: Path, fork: Fork, descriptors: tuple[int, int]) -> None:
        self._path, self._log, self._fork, self._descriptors = path, log, fork, descriptors
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, directory: Path, listener: socket.socket) -> int:
        return self._fork(self._path, directory, listener)

    def ensure(self) -> None:
        """Returns when it answers."""
        with self._turn:
            if self._answers():
                return
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            deadline = time.monotonic() + FORK_SERVER_S
            while not self._answers():
                if self._process.poll() is not None:
                    raise Broken(f"The fork server did not start; {self._log} says why.", code="fork_server")
                if time.monotonic() > deadline:
                    # One that hangs would stand in the way of the next.
                    self._process.kill()
                    raise Broken(f"The fork server does not answer after {FORK_SERVER_S:.0f} s.", code="fork_server")
                time.sleep(_LOOK_S)

    def reap(self) -> None:
        """If it was our child and is dead."""
        if self._process is not None:
            self._process.poll()

    def end(self) -> None:
        with self._turn:
            if (pid := self.pid()) is not None:
                _end(pid)
            self.reap()
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def pid(self) -> int | None:
        """Of the process that listens, whoever started it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, suppress(OSError, ValueError, KeyError):
            line.settimeout(_ASK_S)
            line.connect(str(self._path))
            line.send(b"{}")
            return int(json.loads(line.recv(ANSWER_BYTES))["pid"])
        return None

    def _answers(self) -> bool:
        """One of another version does not count: its successor takes its socket, and it leaves by itself."""
        with suppress(Unavailable):
            return server_version(self._path) == VERSION
        return False

    def _start(self) -> "subprocess.Popen[bytes]":
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                [*module_command(MODULE), "--socket", str(self._path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        # We allow ourselves more open files than jobs should have.
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, self._descriptors)
        return process


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(descriptor, number)
                if select.select([descriptor], [], [], KILLED_S)[0]:
                    return
        finally:
            os.close(descriptor)
