"""A whole Stoker of its own, started as a person would, and measured from outside."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.home import temporary_home
from stoker.client.client import Client
from stoker.client.config import resolve

START_S = 120.0


@dataclass(frozen=True)
class Stand:
    home: Path
    server: psutil.Process
    client: Client

    def postgres(self) -> list[psutil.Process]:
        return [one for one in _alive(self.server.children(recursive=True)) if "postgres" in _name(one)]

    def agents(self) -> list[psutil.Process]:
        """The shim, its fork server and its runners: whoever works in this home and is not the server."""
        ours = {self.server.pid, *(one.pid for one in self.postgres())}
        mark = str(self.home / "shim")
        return [one for one in psutil.process_iter() if one.pid not in ours and mark in " ".join(_command(one))]


def cpu_s(processes: list[psutil.Process]) -> float:
    """What they and their ended children have used."""
    total = 0.0
    for one in processes:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def cli(stand: Stand, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(_stoker(stand.home, *arguments), capture_output=True, check=True, timeout=START_S)


@contextmanager
def standing() -> Iterator[Stand]:
    with temporary_home() as home:
        try:
            yield up(home)
        finally:
            subprocess.run(_stoker(home, "down", "--force"), capture_output=True, timeout=START_S)


def up(home: Path) -> Stand:
    subprocess.run(_stoker(home, "up", "-d", "--port", "0"), check=True, stdout=subprocess.DEVNULL, timeout=START_S)
    pid = int((home / "server.pid").read_text().split()[0])
    return Stand(home, psutil.Process(pid), Client.of(resolve({}, home=str(home))))


def down(stand: Stand) -> None:
    subprocess.run(_stoker(stand.home, "down"), check=True, stdout=subprocess.DEVNULL, timeout=START_S)


def cold_start_s(stand: Stand) -> tuple[float, Stand]:
    """From nothing to an answer, on the data that is there."""
    down(stand)
    begun = time.perf_counter()
    again = up(stand.home)
    return time.perf_counter() - begun, again


def _stoker(home: Path, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("stoker")), "--home", str(home), *arguments]


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running()]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
