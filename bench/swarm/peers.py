"""Where the peers live: unpacked beside the repository's own environment, so that nothing of the machine changes.

From PyPI into a virtual environment of their own; from Debian by `apt-get download` and `dpkg -x`, since installing
them would start their services. What cannot be had says why.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from bench.result import Result

ROOT: Final = Path(__file__).resolve().parents[2] / ".venv-peers"
SLURM: Final = ("slurmctld", "slurmd", "slurm-client", "munge")
REDIS: Final = ("redis-server",)
INSTALL_S: Final = 300.0


class Missing(Exception):
    """A peer that cannot run here, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"not installed: {why}")


BROKEN: Final = (Missing, OSError, ValueError, subprocess.SubprocessError)
"""What a peer that is not there, or does not work, raises."""


def beside(name: str, measure: Callable[[], list[Result]]) -> list[Result]:
    """The peer's figures, or one line that says why there are none: a peer is never left out in silence."""
    try:
        return measure()
    except BROKEN as error:
        return [Result(name, 0.0, "", peer=why(error))]


def why(error: Exception) -> str:
    if isinstance(error, Missing):
        return str(error)
    said = getattr(error, "stderr", None) or str(error)
    return f"did not run: {_last_line(said.decode(errors='replace') if isinstance(said, bytes) else str(said))}"


@cache
def python(*packages: str) -> Path:
    """The Python of an environment that has these packages of PyPI."""
    home = _root() / "-".join(packages).replace("[", "-").replace("]", "")
    stamp = home / ".installed"
    if not stamp.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
        _run([str(home / "bin" / "python"), "-m", "pip", "install", *quiet, *packages])
        stamp.touch()
    return home / "bin" / "python"


@cache
def debian(*packages: str) -> Path:
    """The root of a tree into which these packages were unpacked, with all they need that this machine has not."""
    home = _root() / "debian" / packages[0]
    stamp = home / ".unpacked"
    if not stamp.exists():
        archives = home / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        try:
            _download(packages, archives)
        except Missing:
            # The lists of packages may be old; only root can fetch them anew.
            if os.geteuid() != 0:
                raise
            _run(["apt-get", "update", "-qq"])
            _download(packages, archives)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(home)])
        stamp.touch()
    return home


def program(home: Path, path: str) -> Path:
    """Of that tree, or of this machine where it was installed before."""
    return home / path if (home / path).exists() else Path("/") / path


def libraries(home: Path) -> dict[str, str]:
    """The environment in which programs of that tree find their libraries."""
    found = sorted({str(one.parent) for one in home.glob("usr/lib/**/*.so*")})
    return os.environ | {"LD_LIBRARY_PATH": ":".join(found)}


def _download(packages: tuple[str, ...], into: Path) -> None:
    told = _run(["apt-get", "install", "--simulate", "-qq", "--no-install-recommends", *packages])
    names = [line.split()[1] for line in told.splitlines() if line.startswith("Inst ")]
    if names:
        _run(["apt-get", "download", "-qq", *names], cwd=into)


def _root() -> Path:
    ROOT.mkdir(exist_ok=True)
    (ROOT / ".gitignore").write_text("*\n")
    return ROOT


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, timeout=INSTALL_S)
    except FileNotFoundError:
        raise Missing(f"this machine has no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[:3])} took longer than {INSTALL_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise Missing(f"{' '.join(command[:3])}: {_last_line(error.stderr)}") from None
    return done.stdout


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]
