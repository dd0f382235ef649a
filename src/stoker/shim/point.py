"""Where a process finds what it mounts: empty directories that its own mounts cover, or, without root, links.

An absolute path has to exist on the host before anything can be mounted over it there, though only the job ever sees
what. What is missing is made, noted before, and removed again when no task needs it any more: not before, since a
directory that is removed takes with it what others have mounted over it.
"""

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from stoker.core.errors import UserError
from stoker.runner.place import write_file
from stoker.shim.volume import Bound, Owner
from stoker.wire.runner import Bind

MADE = "made"


class Points:
    """Blocks, and may be called from any thread."""

    def __init__(self, root: Path, *, is_root: bool) -> None:
        self._root, self._is_root = root, is_root
        self._turn = threading.Lock()

    def prepare(self) -> None:
        self._root.mkdir(exist_ok=True)

    def binds(self, bounds: Sequence[Bound], work: Path) -> tuple[Bind, ...]:
        """What the runner mounts; without root nothing, since the links are there already."""
        if not self._is_root:
            return ()
        return tuple(Bind(source=one.source, inside=str(work / one.inside), read_only=one.read_only) for one in bounds)

    def make(self, task: UUID, bounds: Sequence[Bound], work: Path, owner: Owner) -> None:
        if not self._is_root:
            for one in bounds:
                _link(one, work)
            return
        for one in bounds:
            if not one.inside.startswith("/"):
                _make(_missing(work / one.inside), owner)
        wanted = [one.inside for one in bounds if one.inside.startswith("/")]
        if not wanted:
            return
        with self._turn:
            write_file(self._root / str(task), json.dumps(wanted).encode())
            missing = [place for inside in wanted for place in _missing(Path(inside))]
            if missing:
                made = dict.fromkeys((*self._made(), *map(str, missing)))
                write_file(self._root / MADE, json.dumps(list(made)).encode())
                _make(missing, Owner())

    def drop(self, task: UUID) -> None:
        """Removes what only this task needed."""
        with self._turn:
            if not (self._root / str(task)).exists():
                return
            (self._root / str(task)).unlink()
            used = [inside for other in self.tasks() for inside in self._wanted(other)]
            made, kept = self._made(), []
            for place in sorted(made, key=len, reverse=True):
                if any(inside == place or inside.startswith(f"{place}/") for inside in used):
                    kept.append(place)
                    continue
                with suppress(OSError):
                    # With something in it, it is not ours any more.
                    os.rmdir(place)
            if len(kept) != len(made):
                write_file(self._root / MADE, json.dumps(kept).encode())

    def tasks(self) -> list[UUID]:
        found = []
        for name in os.listdir(self._root):
            with suppress(ValueError):
                found.append(UUID(name))
        return found

    def _wanted(self, task: UUID) -> list[str]:
        with suppress(FileNotFoundError, ValueError):
            wanted: list[str] = json.loads((self._root / str(task)).read_bytes())
            return wanted
        return []

    def _made(self) -> list[str]:
        with suppress(FileNotFoundError, ValueError):
            made: list[str] = json.loads((self._root / MADE).read_bytes())
            return made
        return []


def _missing(place: Path) -> list[Path]:
    """The directories that are not there, from above; in the end it is one."""
    missing = []
    for one in (place, *place.parents):
        if one.is_dir():
            break
        if os.path.lexists(one):
            raise UserError(f"{one} is no directory on this host, so nothing can be mounted at {place}.")
        missing.append(one)
    return missing[::-1]


def _make(places: Sequence[Path], owner: Owner) -> None:
    for place in places:
        place.mkdir(exist_ok=True)
        # Whatever our umask is: the job passes through.
        place.chmod(0o755)
        if owner.uid is not None and owner.gid is not None:
            os.chown(place, owner.uid, owner.gid)


def _link(one: Bound, work: Path) -> None:
    hint = "Run the agent as root, or write a relative path, which begins in the job's own directory."
    if one.inside.startswith("/"):
        raise UserError(
            f"{one.inside} is not below the job's own directory, and this host's agent runs without root, which may "
            "not mount.",
            hint=hint,
            code="needs_root",
        )
    if one.read_only:
        raise UserError(
            f"{one.inside} is to be read only, which this host's agent cannot promise without root.",
            hint="Leave :ro out, or run the agent as root.",
            code="needs_root",
        )
    place = work / one.inside
    if place.is_symlink() and os.readlink(place) == one.source:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(one.source)
