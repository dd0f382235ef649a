"""Debian's packages that a test needs: the first test that asks installs them, as root; others say what is missing."""

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.machine import unavailable

LOCK: Final = Path("/tmp/stoker-tests-packages.lock")
INSTALL_S: Final = 600.0
ENVIRON: Final = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def need(program: str, package: str) -> str:
    """The path of a program, from a package that is installed where it is missing."""
    return _path(program) or _installed(program, package)


def _path(program: str) -> str | None:
    return shutil.which(program, path=ENVIRON["PATH"])


@cache
def _installed(program: str, package: str) -> str:
    if os.geteuid() != 0:
        # Not a failure, in CI either: an ordinary user installs nothing.
        pytest.skip(f"needs root or {program}: apt-get install {package}")
    if shutil.which("apt-get") is None:
        unavailable(f"{program} is missing, and there is no apt-get to install {package} with")
    with open(LOCK, "a") as lock:
        # Several sessions of tests begin at once, and apt-get lets only one in.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := _path(program)) is not None:
            return found
        _apt("update", "-qq")
        # Nothing is started: what a test needs it starts itself, with a directory of its own.
        _apt("install", "-y", "-qq", "--no-install-recommends", package)
    found = _path(program)
    if found is None:
        unavailable(f"{package} was installed, and there is still no {program}")
    return found


def _apt(*words: str) -> None:
    policy = {"POLICY_RC_D": "1", "RUNLEVEL": "1"}
    done = subprocess.run(
        ["apt-get", *words], env=ENVIRON | policy, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        unavailable(f"apt-get {' '.join(words)} failed: {done.stderr.strip()[-2000:]}")
