"""mount and umount as the host has them, and who keeps a mounted directory busy."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.errors import UserError
from stoker.runner.view import mounted_below

MOUNT_S: Final = 90.0
BUSY: Final = "it is busy"
MOST_TOLD: Final = 3
_ENV: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_OPTIONS: Final = {"ext4": ("nosuid", "nodev"), "nfs": ("nosuid", "nodev", "retry=0")}


def is_mounted(place: Path) -> bool:
    """By the kernel's own list: to look at the directory itself could hang on a server that is away."""
    return str(place) in mounted_below(str(place.parent))


def command(source: str, place: Path, kind: str, device: str = "") -> list[str]:
    """`device` is the loop device that a file has already."""
    loop = ("loop",) if kind == "ext4" and not device else ()
    return ["mount", "-t", kind, "-o", ",".join((*_OPTIONS[kind], *loop)), "--", device or source, str(place)]


def mount(source: str, place: Path, kind: str, what: str) -> None:
    """Twice on one file would spoil it, so a loop device that was let go by force and is still busy is used again."""
    device = _loop_of(source) if kind == "ext4" else ""
    problem = _run(command(source, place, kind, device))
    if problem is not None and not is_mounted(place):
        raise UserError(f"{what[:1].upper()}{what[1:]} cannot be mounted: {problem}.", code="mount")


def unmount(place: Path, *, force: bool) -> str | None:
    """What is in the way; None: it is not mounted any more. By force, whoever uses it keeps what he has open."""
    problem = _run(["umount", *(["--lazy"] if force else []), "--", str(place)])
    if problem is None or not is_mounted(place):
        return None
    return BUSY if "busy" in problem else problem


def users_of(place: Path) -> str:
    """Processes that have something of it open, as far as we may see."""
    found = [f"process {pid} ({name}) uses it" for pid, name in _users(str(place))]
    return ", ".join(found[:MOST_TOLD]) or BUSY


def _users(place: str) -> Iterator[tuple[int, str]]:
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if any(one == place or one.startswith(f"{place}/") for one in _open(pid)):
            with suppress(OSError):
                yield int(pid), Path(f"/proc/{pid}/comm").read_text().strip()


def _open(pid: str) -> Iterator[str]:
    with suppress(OSError):
        links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root"]
        links += [f"/proc/{pid}/fd/{one}" for one in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            with suppress(OSError):
                yield os.readlink(link)


def _loop_of(image: str) -> str:
    done = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", image],
        capture_output=True, text=True, check=False, env=_ENV,
    )  # fmt: skip
    return done.stdout.split()[0] if done.stdout.split() else ""


def _run(command: Sequence[str]) -> str | None:
    """What went wrong, in the words of the program."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_ENV
        )
    except FileNotFoundError:
        return f"this host has no {command[0]}"
    try:
        _, told = process.communicate(timeout=MOUNT_S)
    except subprocess.TimeoutExpired:
        # Not waited for: in the hands of the kernel it may not die before its server is back.
        process.kill()
        return f"{command[0]} has not come to an end within {MOUNT_S:g} s"
    if process.returncode == 0:
        return None
    said = (told.strip().splitlines() or [f"{command[0]} ended with {process.returncode}"])[0]
    return said.removeprefix(f"{command[0]}: ").rstrip(".")[:500]
