"""Containers beside the engine's own command line, on an engine of our own: what we add to `docker run`."""

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import psutil

from bench.first_run import ended, printed
from bench.home import temporary_home
from bench.result import Result
from bench.stand import Stand, standing
from stoker.client import log as logs
from stoker.client import run as runs
from stoker.wire.frame import decode
from tests.hosts.engine import Engine, busybox_tree, docker_program, engine

TRIES = 20
AT_ONCE = 20
LOG_BYTES = 400_000_000
UPTIME = "cut -d' ' -f1 /proc/uptime"
"""When a program began, by the clock that host and container share; it ticks every ten milliseconds."""


def measure() -> list[Result]:
    with temporary_home() as home, engine(home / "engine") as one:
        one.make_image("busybox:latest", busybox_tree(home / "tree"))
        with _pointed_at(one), standing() as stand:
            # The first one makes the bundle.
            begun = time.perf_counter()
            _done(stand, _submit(stand, "true"))
            first = Result("docker: the first container of a home, with its bundle", time.perf_counter() - begun, "s")
            return [first, *_starts(stand, one), *_at_once(stand, one), *_log(stand, one)]


@contextmanager
def _pointed_at(one: Engine) -> Iterator[None]:
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = one.host
    try:
        yield
    finally:
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before


def _submit(stand: Stand, *commands: str) -> str:
    configuration = {"type": "task", "image": "busybox", "commands": list(commands)}
    return str(runs.submit(stand.client.again(), configuration, expected=None, key=str(uuid4()))["name"])


def _done(stand: Stand, name: str) -> None:
    run = runs.wait(stand.client.again(), name, timeout_s=120.0)
    assert run["status"] == "DONE", run


def _docker_run(one: Engine, *command: str) -> bytes:
    words = [docker_program(), "-H", one.host, "run", "--rm", "busybox", *command]
    return subprocess.run(words, check=True, capture_output=True, timeout=120).stdout


def _starts(stand: Stand, one: Engine) -> list[Result]:
    """In turns: the machine's own speed moves."""
    ours, theirs, ends = [], [], []
    for _ in range(TRIES):
        begun = _uptime()
        theirs.append(float(_docker_run(one, "sh", "-c", UPTIME)) - begun)
        begun = _uptime()
        name = _submit(stand, UPTIME)
        _done(stand, name)
        over, at = _uptime(), float(printed(stand, name))
        ours.append(at - begun)
        ends.append(over - at)
    mine, peer = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
    return [
        Result(
            "docker: submit to process started, p50", mine, "ms", "<= docker run + 400 ms", f"docker run {peer:.0f} ms",
            ok=mine <= peer + 400,
        ),
        Result("docker: process exit to DONE visible, p50", statistics.median(ends) * 1e3, "ms"),
    ]  # fmt: skip


def _at_once(stand: Stand, one: Engine) -> list[Result]:
    def run_all(act: object) -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(act, range(AT_ONCE)))  # type: ignore[arg-type]
        return time.perf_counter() - begun

    peer = run_all(lambda _: _docker_run(one, "true"))
    mine = run_all(lambda _: ended(stand, _submit(stand, "true")))
    return [
        Result(
            f"docker: {AT_ONCE} runs at once, until all are done", mine, "s", "<= docker run + 4 s",
            f"docker run {peer:.1f} s", ok=mine <= peer + 4,
        )
    ]  # fmt: skip


def _log(stand: Stand, one: Engine) -> list[Result]:
    command = f"yes {'x' * 79} | head -c {LOG_BYTES}"
    begun = time.perf_counter()
    assert len(_docker_run(one, "sh", "-c", command)) == LOG_BYTES
    peer = LOG_BYTES / 1e6 / (time.perf_counter() - begun)
    watched, before = _Memory(), stand.server.memory_info().rss
    begun = time.perf_counter()
    name = _submit(stand, command)
    _done(stand, name)
    seconds = time.perf_counter() - begun
    grown = watched.end()
    pieces = logs.backlog(stand.client, name, logs.Which())
    size = sum(len(frame.data) for piece in pieces for frame in decode(piece.frames))
    assert size == LOG_BYTES, f"{size} bytes of {LOG_BYTES}"
    rate, server = LOG_BYTES / 1e6 / seconds, (stand.server.memory_info().rss - before) / 2**20
    return [
        Result("docker: log of a container", rate, "MB/s", ">= 40", f"docker run {peer:.0f} MB/s", ok=rate >= 40),
        Result("  the server grew", server, "MB", "<= 50 MB", ok=server <= 50),
        Result("  the runner in its container, at most", grown, "MB", "<= 120 MB", ok=grown <= 120),
    ]


class _Memory:
    """The most that a runner in a container takes: it is nobody's child that could be asked later."""

    def __init__(self) -> None:
        self._most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self._most / 2**20

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for one in psutil.process_iter(["name"]):
                if one.info["name"] == "stoker-runner":
                    self._most = max(self._most, _size(one))


def _size(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
