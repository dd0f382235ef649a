"""What goes into the three layers of a bundle, collected from what is installed here."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from stoker.bundle import distribution, imports, installed, library
from stoker.bundle.part import Part, module
from stoker.bundle.tree import AGENTS, LIBRARIES, PACKAGE_LIBRARIES, START
from stoker.core.errors import Unavailable

_HERE: Final = Path(__file__).resolve().parent
PACKAGE: Final = _HERE.parent


@dataclass(frozen=True)
class Content:
    python: Sequence[Part]
    packages: Sequence[Part]
    agents: Sequence[Part]
    watched: Sequence[Path]
    """One of these is touched when anything of it but our own code is installed anew."""


def collect() -> Content:
    interpreter = installed.find()
    found = imports.collect(PACKAGE)
    python, libraries = _python(interpreter)
    packages = _packages(interpreter.loader, [*distribution.parts(distribution.closure(found.others))], libraries)
    agents = [module(f"{AGENTS}/{name}", source) for name, source in sorted(found.own.items())]
    agents.append(Part(START, _HERE / "start.py"))
    return Content(python, packages, agents, _watched(interpreter, python, packages))


def _python(interpreter: installed.Installed) -> tuple[list[Part], Mapping[str, Path]]:
    parts = list(interpreter.parts())
    libraries = dict(library.needed(interpreter.loader, interpreter.program, library.BY_NAME))
    for part in interpreter.extensions():
        try:
            libraries |= library.needed(interpreter.loader, part.source)
        except library.Missing:
            continue
        parts.append(part)
    parts += (Part(f"{LIBRARIES}/{name}", path) for name, path in sorted(libraries.items()))
    return parts, libraries


def _packages(loader: Path, parts: Sequence[Part], libraries: Mapping[str, Path]) -> list[Part]:
    more: dict[str, Path] = {}
    for part in parts:
        if part.source.suffix == ".so":
            try:
                more |= library.needed(loader, part.source)
            except library.Missing as error:
                raise Unavailable(f"No bundle of the agents can be made: {error}.", code="bundle") from error
    own = {name: path for name, path in more.items() if name not in libraries}
    return [*parts, *(Part(f"{PACKAGE_LIBRARIES}/{name}", path) for name, path in sorted(own.items()))]


def _watched(interpreter: installed.Installed, python: Sequence[Part], packages: Sequence[Part]) -> list[Path]:
    """Who installs a package anew touches its directory, or its one file."""
    watched = {interpreter.library, interpreter.library / "os.py"}
    watched |= {part.source for part in python if not part.compiled}
    for part in packages:
        below = len(Path(part.name).parts) - 2
        above = part.source.parents
        watched |= {above[below], above[below - 1] if below else part.source}
    return sorted(watched)


def builder() -> str:
    """Stands for the code that makes bundles: another one makes others."""
    digest = hashlib.sha256()
    for file in sorted(_HERE.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def digest(parts: Sequence[Part], *beside: str) -> str:
    """Of what is in them, whenever it was written."""
    found = hashlib.sha256("\0".join(beside).encode())
    for part in parts:
        found.update(part.name.encode() + hashlib.sha256(part.source.read_bytes()).digest())
    return found.hexdigest()


def version() -> str:
    return metadata.version("stoker")
