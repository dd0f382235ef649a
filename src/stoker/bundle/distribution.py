"""The packages of others that agents need: whole distributions, and what these require in turn."""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from stoker.bundle.part import Part, module
from stoker.bundle.tree import PACKAGES
from stoker.core.errors import Unavailable

_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_NO_DIRECTORIES: Final = frozenset({"__pycache__", "tests", "test", "testing", "docs", "mypy", "v1"})
_WANTED: Final = frozenset({".py", ".so"})
_NO_FILES: Final = ("pytest_plugin.", "test_utils.", "_hypothesis_plugin.", "_test")


def closure(imported: Iterable[str]) -> dict[str, metadata.Distribution]:
    """By name: those that provide these modules, and all that they require here. Extras are nobody's need."""
    providers = metadata.packages_distributions()
    waiting = [_provider(providers, name) for name in sorted(imported)]
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        name = _plain(waiting.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            # Required under a condition that does not hold here; or pip would have installed it.
            continue
        found[name] = distribution
        for requirement in distribution.requires or ():
            wanted, _, condition = requirement.partition(";")
            if "extra" not in condition and (match := _NAME.match(wanted.strip())):
                waiting.append(match[0])
    return found


def parts(distributions: Mapping[str, metadata.Distribution]) -> Iterator[Part]:
    for name in sorted(distributions):
        for below, source in sorted(_files(distributions[name])):
            path = Path(below)
            if path.suffix not in _WANTED or path.name.startswith(_NO_FILES) or _NO_DIRECTORIES & set(path.parts[1:-1]):
                continue
            if path.suffix == ".py":
                yield module(f"{PACKAGES}/{below}", source)
            else:
                yield Part(f"{PACKAGES}/{below}", source)


def _provider(providers: Mapping[str, list[str]], name: str) -> str:
    if name not in providers:
        raise Unavailable(
            f"The agents need the package {name}, which is not installed here.",
            hint="Install Stoker anew: pip install --force-reinstall stoker.",
            code="bundle",
        )
    return providers[name][0]


def _files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Modules, by their place below the directory that they are imported from."""
    if distribution.files is not None:
        for listed in distribution.files:
            if ".." not in listed.parts and not listed.parts[0].endswith((".dist-info", ".egg-info", ".data")):
                yield str(listed), Path(str(listed.locate()))
        return
    # Packages of a Linux distribution have no list of their files.
    for top in (distribution.read_text("top_level.txt") or _plain(distribution.metadata["Name"])).split():
        place = Path(str(distribution.locate_file(top)))
        if place.is_dir():
            yield from ((str(file.relative_to(place.parent)), file) for file in place.rglob("*") if file.is_file())
        for file in place.parent.glob(f"{place.name}.*"):
            if file.is_file():
                yield file.name, file


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
