"""What was made of which files, so that nothing is made twice, and a look at some dates is enough to know that."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from stoker.bundle import content, tree
from stoker.bundle.layer import Layer

_KNOWN: Final = "known"


@dataclass(frozen=True)
class Bundle:
    """One that is here."""

    root: Path
    """Where it is unpacked."""
    digest: str
    """Of all layers."""
    version: str
    """What agents from it say they are."""
    layers: tuple[Layer, ...]

    @staticmethod
    def command(root: PurePath, module: str) -> list[str]:
        """Starts `python -m module` from this bundle where it lies at `root`, here or elsewhere."""
        return tree.command(root, module)

    @property
    def manifest(self) -> str:
        """`bundle.json`, which is written last where it is unpacked: without it, it is not whole."""
        layers = [{"name": one.name, "sha256": one.sha256, "size_bytes": one.size_bytes} for one in self.layers]
        told = {"digest": self.digest, "version": self.version, "platform": this_platform(), "layers": layers}
        return json.dumps(told, indent=2) + "\n"

    @property
    def size_bytes(self) -> int:
        """Of all archives."""
        return sum(one.size_bytes for one in self.layers)


def this_platform() -> str:
    return f"linux-{platform.machine()}"


def describe(place: Path, version: str, layers: Sequence[Layer]) -> Bundle:
    named = [this_platform(), *(f"{one.name}:{one.sha256}" for one in layers)]
    digest = hashlib.sha256("\n".join(named).encode()).hexdigest()[:32]
    return Bundle(place / digest, digest, version, tuple(layers))


def recall(place: Path) -> Bundle | None:
    """The bundle of what is installed here, when it was made and nothing has changed since."""
    told = _read(_file(place, _installation()))
    try:
        if told["code"] != code_mark() or any(_date(path) != date for path, date in told["watched"]):
            return None
        layers = tuple(_layer(place, one) for one in told["layers"])
        bundle = Bundle(place / told["digest"], told["digest"], told["version"], layers)
    except (KeyError, TypeError, ValueError):
        return None
    whole = (bundle.root / tree.MANIFEST).exists() and all(one.archive.exists() for one in layers)
    return bundle if whole else None


def remember(place: Path, bundle: Bundle, code: str, watched: Iterable[Path]) -> None:
    """`code`: as it was before anything was read."""
    told = json.loads(bundle.manifest)
    told |= {"code": code, "watched": [[str(path), _date(path)] for path in watched]}
    _write(_file(place, _installation()), told)


def layer(place: Path, name: str, mark: str) -> Layer | None:
    with suppress(KeyError, TypeError, ValueError):
        found = _layer(place, _read(_file(place, f"{name}-{mark[:32]}")))
        return found if found.archive.exists() else None
    return None


def remember_layer(place: Path, mark: str, made: Layer) -> None:
    told = {"name": made.name, "sha256": made.sha256, "size_bytes": made.size_bytes}
    _write(_file(place, f"{made.name}-{mark[:32]}"), told)


def code_mark() -> str:
    """Another one as soon as a file of ours was touched, came or went."""
    digest = hashlib.sha256(f"{sys.version} {content.PACKAGE}\n".encode())
    for path, size, at in sorted(_dates(str(content.PACKAGE))):
        digest.update(f"{path}\0{size}\0{at}\n".encode())
    return digest.hexdigest()


def _dates(directory: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _dates(entry.path)
            elif entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


def _date(path: Path | str) -> list[int]:
    try:
        stat = os.stat(path)
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns]


def _installation() -> str:
    """Several may share a home."""
    return "bundle-" + hashlib.sha256(f"{sys.prefix}\0{content.PACKAGE}".encode()).hexdigest()[:32]


def _layer(place: Path, told: dict[str, Any]) -> Layer:
    archive = place / "layers" / f"{told['sha256']}.tar.gz"
    return Layer(str(told["name"]), str(told["sha256"]), int(told["size_bytes"]), archive)


def _file(place: Path, name: str) -> Path:
    return place / _KNOWN / f"{name}.json"


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        told = json.loads(path.read_text())
        return told if isinstance(told, dict) else {}
    return {}


def _write(path: Path, told: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(told))
    fresh.replace(path)
