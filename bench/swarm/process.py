"""Processes that a measurement starts and, whatever happens, ends: by their id."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

END_S = 15.0


@contextmanager
def started(
    command: list[str], log: Path, env: dict[str, str] | None = None, *, program: str | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """In a session of its own, so that what it started ends with it. `program` where argv[0] is not the file's name."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, executable=program,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        ended(process)


def ended(process: "subprocess.Popen[bytes]", by: int = signal.SIGTERM) -> None:
    """It and what it left behind."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(by)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


def until(holds: Callable[[], bool], patience_s: float, what: str, pause_s: float = 0.005) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen in {patience_s:.0f} s")
        time.sleep(pause_s)


def family(process: psutil.Process) -> list[psutil.Process]:
    """It and what it has started: a worker has a guard above it, which is the one that was started."""
    return [process, *process.children(recursive=True)]


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
