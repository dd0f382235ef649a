"""What a test may ask of the machine it runs on: to be root, and disks that are small or full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users, mounts and limits are made by it")


def unavailable(reason: str) -> NoReturn:
    """Skips a test that this machine cannot run; in CI nothing is skipped in silence."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, mounted at `place`, which is made where it is missing. Others may pass through it."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a small disk is a mount")
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable(f"this root may not mount: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(ballast: Path, leave_bytes: int = 0) -> None:
    """No more than `leave_bytes` fit on the disk that this file is on; removing the file makes room again."""
    with open(ballast, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    os.truncate(ballast, max(0, ballast.stat().st_size - leave_bytes))
