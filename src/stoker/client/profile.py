"""Profiles: keys of a task that many files share, in `.stoker/profiles.yml` near the file or in Stoker's home.

The nearest file that knows a name is taken. A profile lies under what the file says: maps are merged key by key, lists
are replaced, and the file wins.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stoker.core.errors import UserError

if TYPE_CHECKING:
    from stoker.wire.yaml import Node, Pairs

NEAR: Final = Path(".stoker") / "profiles.yml"
AT_HOME: Final = "profiles.yml"
NONE: Final = "none"
"""In place of a name: no profile, also where one is the default."""
OWN: Final = ("name", "default")
FORBIDDEN: Final = ("type", "commands")
"""What a file says itself: a profile is no task."""
MOST_PROFILES: Final = 100


class Profile(NamedTuple):
    name: str
    default: bool
    where: str
    node: "Pairs"
    """With the keys of a task only."""


def chosen(name: str | None, directory: Path, home: Path) -> Profile | None:
    """By its name, or the default of the nearest file that has one."""
    if name == NONE:
        return None
    known: list[Profile] = []
    for file in places(directory, home):
        profiles = _read(file)
        for one in profiles:
            if one.name == name if name is not None else one.default:
                return one
        known += profiles
    if name is None:
        return None
    raise _unknown(name, known, directory)


def places(directory: Path, home: Path) -> Iterator[Path]:
    """The files that are there, nearest first: up to the repository's root, or the person's home."""
    seen: set[Path] = set()
    for one in (*(above / NEAR for above in _upwards(directory)), home / AT_HOME):
        if one not in seen and one.is_file():
            seen.add(one)
            yield one


def _upwards(directory: Path) -> Iterator[Path]:
    person = Path(os.path.expanduser("~"))
    for one in (directory, *directory.parents):
        yield one
        if one == person or (one / ".git").exists():
            return


def _unknown(name: str, known: Sequence[Profile], directory: Path) -> UserError:
    from difflib import get_close_matches

    near = get_close_matches(name, [one.name for one in known], 1)
    listed = f"Known are {', '.join(dict.fromkeys(one.name for one in known))}." if known else ""
    hint = f"Did you mean {near[0]}?" if near else listed
    missing = f"Write it into {directory / NEAR}, as `profiles: [{{name: {name}, …}}]`."
    return UserError(f"There is no profile {name}.", hint=hint or missing, code="no_profile")


def _read(file: Path) -> list[Profile]:
    from stoker.wire.yaml import BadYaml, Items, Pairs, compose

    try:
        root = compose(file.read_bytes())
    except BadYaml as error:
        raise UserError(f"{file}: {error.sentence}", hint=error.hint, code=error.code) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    listed = root.nodes.get("profiles") if isinstance(root, Pairs) else None
    if not isinstance(root, Pairs) or not isinstance(listed, Items) or len(root.nodes) > 1:
        line = next((root.lines[key] for key in root.nodes if key != "profiles"), 1) if isinstance(root, Pairs) else 1
        raise _refused(file, line, "expected `profiles:` with a list, and nothing else")
    if len(listed.nodes) > MOST_PROFILES:
        raise _refused(file, listed.line, f"there are more than {MOST_PROFILES} profiles")
    profiles: dict[str, Profile] = {}
    for node in listed.nodes:
        one = _profile(file, node)
        if one.name in profiles:
            raise _refused(file, node.line, f"there is a profile {one.name} above it")
        if one.default and (other := next((each.name for each in profiles.values() if each.default), None)):
            raise _refused(file, node.line, f"{other} is the default already")
        profiles[one.name] = one
    return list(profiles.values())


def _profile(file: Path, node: "Node") -> Profile:
    from stoker.wire.yaml import Pairs, Scalar

    name = node.nodes.get("name") if isinstance(node, Pairs) else None
    if not isinstance(node, Pairs) or not isinstance(name, Scalar) or not isinstance(name.value, str):
        raise _refused(file, node.line, "a profile is a map with a name")
    if name.value == NONE:
        raise _refused(file, name.line, f"{NONE} means no profile", "Choose another name.")
    default = node.nodes.get("default")
    if default is not None and not (isinstance(default, Scalar) and isinstance(default.value, bool)):
        raise _refused(file, node.lines["default"], "default: expected true or false")
    for key in FORBIDDEN:
        if key in node.nodes:
            raise _refused(file, node.lines[key], f"{key} does not belong into a profile", "Write it into the file.")
    kept = {key: one for key, one in node.nodes.items() if key not in OWN}
    inner = Pairs(node.line, kept, {key: node.lines[key] for key in kept})
    return Profile(name.value, bool(default is not None and default.value), str(file), inner)


def _refused(file: Path, line: int, what: str, hint: str = "") -> UserError:
    return UserError(f"{file}: line {line}: {what}.", hint=hint, code="profile")


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Maps key by key, and what lies over it wins; `env` is one, however it is written."""
    found = dict(under)
    for key, value in over.items():
        below = found.get(key)
        if key == "env" and below and value:
            below, value = _env(below), _env(value)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            found[key] = merged(below, value)
        elif value is not None or key not in found:
            found[key] = value
    return found


def _env(given: Any) -> Any:
    """A list of NAME=value and NAME as a map; what is neither is left for others to refuse."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        return given
    return {name: value if equals else None for name, equals, value in (one.partition("=") for one in given)}
