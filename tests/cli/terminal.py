"""A real terminal for a command: what a person types reaches it, and Ctrl-C is a key."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.conftest import ROOT, command

CTRL_C = b"\x03"
CTRL_D = b"\x04"


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process, self._master = process, master
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: bytes, timeout_s: float = 20.0) -> None:
        """What comes after the last thing that was waited for."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            if time.monotonic() > deadline or not self._read(0.1):
                raise AssertionError(f"{text!r} did not come, but {self.seen!r}")

    def ends(self, timeout_s: float = 20.0) -> int:
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.seen!r}"
            self._read(0.05)
        while self._read(0.0):
            pass
        return self._process.wait()

    def _read(self, patience_s: float) -> bool:
        """Whether there may be more."""
        if not select.select([self._master], [], [], patience_s)[0]:
            return patience_s > 0
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # Linux says so when the last one on the other side has closed it.
            return False
        self.seen += data
        return bool(data)


@contextmanager
def terminal(
    env: dict[str, str], *args: str, stdout: int | None = None, size: tuple[int, int] | None = None
) -> Iterator[Terminal]:
    """The command has it as stdin and stderr, and as stdout unless another is given. `size` is columns and lines."""
    master, slave = pty.openpty()
    if size is not None:
        termios.tcsetwinsize(slave, (size[1], size[0]))

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command(*args),
        env=env,
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        start_new_session=True,
        preexec_fn=control,
        cwd=ROOT,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
