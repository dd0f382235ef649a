"""Makes one layer: an archive of files that change together, named by its digest."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.bundle import archive, compiling, elf
from stoker.bundle.part import Part
from stoker.core.errors import Broken

_COMPILING_S: Final = 600.0


@dataclass(frozen=True)
class Layer:
    name: str
    """`python`, `packages`, `agents`."""
    sha256: str
    """Of the archive."""
    size_bytes: int
    archive: Path
    """A tar.gz, to be unpacked in the root of a bundle."""


def fingerprint(parts: Iterable[Part], *beside: str) -> str:
    """Another one as soon as a source was touched."""
    digest = hashlib.sha256(json.dumps([sys.version, *beside]).encode())
    for part in parts:
        stat = part.source.stat()
        digest.update(f"{part.name}\0{part.source}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def make(name: str, parts: Sequence[Part], work: Path, archives: Path) -> Layer:
    """In `work`, a directory of its own; the archive has its place when it is whole."""
    _compile([part for part in parts if part.compiled], work)
    files: dict[str, Path] = {}
    for part in parts:
        made = work / part.name
        if not part.compiled:
            if not _is_elf(part.source):
                files[part.name] = part.source
                continue
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(elf.lean(part.source.read_bytes()))
        files[part.name] = made
    fresh = work / "layer.tar.gz"
    sha256, size = archive.write(fresh, files, [part.name for part in parts if part.program])
    archives.mkdir(parents=True, exist_ok=True)
    return Layer(name, sha256, size, fresh.replace(archives / f"{sha256}.tar.gz"))


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(elf.MAGIC)) == elf.MAGIC


def _compile(parts: Sequence[Part], work: Path) -> None:
    if not parts:
        return
    jobs = [(str(part.source), part.name.removesuffix("c"), str(work / part.name)) for part in parts]
    done = subprocess.run(
        # With the same seed for hashes each time, and otherwise as if nothing was installed.
        [sys.executable, "-S", "-s", "-P", compiling.__file__],
        env={"PYTHONHASHSEED": "0"},
        input=json.dumps(jobs).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=work,
        timeout=_COMPILING_S,
        check=False,
    )
    if done.returncode:
        raise Broken(
            f"The agents cannot be compiled: {done.stderr.decode(errors='replace').strip()[-2000:]}", code="bundle"
        )
