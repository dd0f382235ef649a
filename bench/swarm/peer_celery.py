"""Celery from PyPI with Redis from Debian, which keeps everything in memory: the fastest it can be, and not durable."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bench.home import temporary_home
from bench.swarm import peers
from bench.swarm.process import started, until

START_S = 30.0
PATIENCE_S = 400.0
_SCRIPTS = Path(__file__).parent / "scripts"


def figure(what: Literal["files", "noop", "chain", "start"], number: int, cores: int = 2) -> float:
    """Tasks a second, milliseconds a link, or milliseconds until it started."""
    python = peers.python("celery[redis]")
    with temporary_home() as home, _redis(home) as url:
        (home / "out").mkdir()
        env = os.environ | {"STOKER_BENCH_REDIS": url, "STOKER_BENCH_OUT": str(home / "out")}
        env["PYTHONPATH"] = str(_SCRIPTS)
        worker = [str(python), "-m", "celery", "-A", "in_celery", "worker", "--concurrency", str(cores)]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
        with started([*worker, *quiet], home / "worker.log", env):
            command = [str(python), str(_SCRIPTS / "in_celery.py"), what, str(number)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=env)
    return float(json.loads(done.stdout.splitlines()[-1])["value"])


@contextmanager
def _redis(home: Path) -> Iterator[str]:
    tree, socket = peers.debian(*peers.REDIS), home / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(home)]
    forgetful = ["--save", "", "--appendonly", "no"]
    # Debian's redis-server is a link, and does what its name says.
    program = str(peers.program(tree, "usr/bin/redis-server").resolve())
    with started([*command, *forgetful], home / "redis.log", peers.libraries(tree), program=program):
        until(socket.exists, START_S, "redis-server's socket")
        yield f"redis+socket://{socket}"
