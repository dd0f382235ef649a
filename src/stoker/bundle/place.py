"""Where bundles are on this host: made when there is none of what is installed, found at once when there is.

    HOME/bundle/DIGEST/                 a bundle, ready to run, and never changed
    HOME/bundle/layers/SHA256.tar.gz    what it was unpacked from, and what is sent to other hosts
    HOME/bundle/known/…                 what was made of which files

Whoever makes something holds the lock, makes it beside its place, and moves it there when it is on disk: who is killed
leaves nothing that anybody takes for whole.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stoker.bundle import archive, content, known, layer, prune, tree
from stoker.bundle.content import Content
from stoker.bundle.known import Bundle
from stoker.bundle.layer import Layer
from stoker.bundle.part import Part
from stoker.core.errors import Unavailable

__all__ = ["Bundle", "Layer", "find", "find_or_build"]

Say = Callable[[str], None]
"""Hears what is done now, in a few words."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NEEDED_MB: Final = 150


def find(home: Path) -> Bundle | None:
    """The one of what is installed here, if it is there already. Takes milliseconds."""
    return known.recall(home / "bundle")


def find_or_build(home: Path, say: Say = lambda _: None) -> Bundle:
    """Blocks, when it has to be made for some seconds. Any number of processes may ask at once."""
    place = home / "bundle"
    if (found := known.recall(place)) is not None:
        return found
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o755)
        with _lock(place, say):
            return known.recall(place) or _build(place, say)
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable(
                f"There is no room for the agents' bundle in {place}: {error.strerror}.",
                hint=f"It needs some {_NEEDED_MB} MB; make room, or put STOKER_HOME on another disk.",
                code="no_space",
            ) from error
        raise Unavailable(f"The agents' bundle cannot be made in {place}: {error}.", code="bundle") from error


@contextmanager
def _lock(place: Path, say: Say) -> Iterator[None]:
    with open(place / "lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process makes the bundle; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(place: Path, say: Say) -> Bundle:
    prune.remove_unfinished(place)
    say("looking for what the agents need")
    mark = known.code_mark()
    parts = content.collect()
    bundle = _described(place, parts, say)
    if not (bundle.root / tree.MANIFEST).exists():
        say("unpacking it")
        with _beside(place) as fresh:
            for one in bundle.layers:
                archive.unpack(one.archive, fresh)
            (fresh / tree.MANIFEST).write_text(bundle.manifest)
            fresh.chmod(0o755)
            _sync(fresh)
            # Left by somebody who removed some of it.
            shutil.rmtree(bundle.root, ignore_errors=True)
            fresh.rename(bundle.root)
    known.remember(place, bundle, mark, parts.watched)
    prune.remove_old(place, bundle.root)
    return bundle


def _described(place: Path, parts: Content, say: Say) -> Bundle:
    builder = content.builder()
    python = _layer(place, "python", parts.python, builder, say)
    packages = _layer(place, "packages", parts.packages, builder, say)
    # What an agent says it is: after an upgrade, its predecessor is told from it by that.
    version = f"{content.version()}+{content.digest(parts.agents, python.sha256, packages.sha256)[:12]}"
    with _beside(place) as work:
        told = work / tree.VERSION
        told.write_text(f"{version}\n")
        os.utime(told, (0, 0))
        agents = _layer(place, "agents", [*parts.agents, Part(tree.VERSION, told)], f"{builder} {version}", say)
    return known.describe(place, version, (python, packages, agents))


def _layer(place: Path, name: str, parts: Sequence[Part], builder: str, say: Say) -> Layer:
    mark = layer.fingerprint(parts, builder)
    if (found := known.layer(place, name, mark)) is not None:
        return found
    say(f"making the layer of {name}")
    with _beside(place) as work:
        made = layer.make(name, parts, work, place / "layers")
        _sync(made.archive)
    known.remember_layer(place, mark, made)
    return made


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A directory that is gone afterwards, unless it was moved to its place."""
    work = Path(tempfile.mkdtemp(prefix=prune.UNFINISHED, dir=place))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sync(path: Path) -> None:
    """All of the file system that it is on: a thousand files one by one would take a thousand times as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)
