"""What the agents import: of Stoker's own modules, found by reading them, and by name of others'.

Read, not run, so that what is imported late or seldom is found as well.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOMS: Final = ("shim", "runner", "worker")
"""Whose modules are all programs of the bundle."""
_PACKAGE: Final = "stoker"


@dataclass(frozen=True)
class Imports:
    own: dict[str, Path]
    """Files of ours, by their place below the directory that holds the package."""
    others: frozenset[str]
    """Names of packages that are neither ours nor of the standard library."""


def collect(package: Path) -> Imports:
    """Everything that can be reached from the rooms of the agents."""
    waiting = [module for room in ROOMS for module in _modules_below(package, room)]
    own: dict[str, Path] = {}
    others: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name.partition(".")[0] != _PACKAGE:
            others.add(name.partition(".")[0])
            continue
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        file = _file_of(package, name)
        if file is not None:
            own[str(file.relative_to(package.parent))] = file
            if name != _PACKAGE:
                # What the package itself offers is for scripts.
                waiting.extend(_imported(ast.parse(file.read_bytes())))
    return Imports(own, frozenset(others - sys.stdlib_module_names))


def _modules_below(package: Path, room: str) -> Iterator[str]:
    for file in (package / room).rglob("*.py"):
        yield ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def _file_of(package: Path, name: str) -> Path | None:
    place = package.parent.joinpath(*name.split("."))
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            return file
    # A name that is imported from a module, and no module itself.
    return None


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            if node.module.partition(".")[0] == _PACKAGE:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif _names_a_module(node):
            assert isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant)
            yield str(node.args[0].value)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        children = node.orelse
    else:
        children = list(ast.iter_child_nodes(node))  # type: ignore[arg-type]
    for child in children:
        yield from _walk(child)


def _names_a_module(node: ast.AST) -> bool:
    """`import_module("…")`."""
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
    )
