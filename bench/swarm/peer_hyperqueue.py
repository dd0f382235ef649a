"""HyperQueue, from PyPI: server and worker in one process of its own."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.home import temporary_home
from bench.swarm import peers

PATIENCE_S = 400.0
_SCRIPT = Path(__file__).parent / "scripts" / "in_hyperqueue.py"


@dataclass(frozen=True)
class Figure:
    value: float
    memory_mb: float


def figure(what: Literal["files", "no-files", "chain", "start"], number: int, cores: int = 2) -> Figure:
    """Tasks a second, milliseconds a link, or milliseconds until it started."""
    python = peers.python("hyperqueue")
    with temporary_home() as home:
        (home / "server").mkdir()
        command = [str(python), "-P", str(_SCRIPT), str(home), str(cores), what, str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        told = json.loads(done.stdout.splitlines()[-1])
    return Figure(told["value"], told["memory_mb"])
