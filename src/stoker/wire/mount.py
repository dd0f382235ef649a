"""What a task mounts, as people write it: `name:/path`, `/directory/of/the/host:/path`, each with `:ro` behind it."""

import posixpath
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from stoker.core.limits import MOST_PATH_CHARS, MOST_VOLUMES_OF_A_RUN
from stoker.wire.name import is_name
from stoker.wire.problem import described
from stoker.wire.word import no_nul, refused

HINT: Final = "Write name:/path of a volume, or /directory:/path of the host; :ro behind it only to read."
_KEYS: Final = ("volume", "host", "path", "read_only")


class Mounted(NamedTuple):
    """One entry, read. Either a volume's name or a directory of the host."""

    volume: str
    host: str
    path: str
    read_only: bool

    def __str__(self) -> str:
        return f"{self.volume or self.host}:{self.path}{':ro' if self.read_only else ''}"


def read(text: str) -> Mounted:
    """Of an entry that was checked."""
    source, path, *mode = text.split(":")
    return Mounted("" if source.startswith("/") else source, source if source.startswith("/") else "", path, bool(mode))


def _one(value: Any) -> str:
    if isinstance(value, dict):
        value = _from_map(value)
    if not isinstance(value, str):
        raise refused(f"expected name:/path, got {described(value)}", HINT)
    parts = no_nul(value).split(":")
    if len(parts) == 3 and parts[2] not in ("ro", "rw"):
        raise refused(f"expected ro or rw behind the path, got {described(parts[2])}", HINT)
    if len(parts) not in (2, 3):
        raise refused(f"expected name:/path, got {described(value)}", HINT)
    source, path = parts[:2]
    if source.startswith("/"):
        source = _path(source, "the directory of the host")
    elif not is_name(source):
        raise refused(f"{described(source)} is neither the name of a volume nor an absolute path", HINT)
    return str(Mounted("", source, _path(path, "the path in the job"), parts[2:] == ["ro"]))


def _from_map(value: dict[Any, Any]) -> str:
    unknown = [key for key in value if key not in _KEYS]
    if unknown:
        raise refused(f"there is no key {described(unknown[0])} here", f"Known are {', '.join(_KEYS)}.")
    source, path = value.get("volume") or value.get("host"), value.get("path")
    if not isinstance(source, str) or not isinstance(path, str) or bool(value.get("volume")) == bool(value.get("host")):
        raise refused("expected {volume: name, path: /path}, or host instead of volume", HINT)
    if not isinstance(value.get("read_only", False), bool):
        raise refused(f"read_only: expected true or false, got {described(value['read_only'])}")
    return f"{source}:{path}{':ro' if value.get('read_only') else ''}"


def _path(text: str, what: str) -> str:
    if not text.strip():
        raise refused(f"{what} is missing", HINT)
    if len(text) > MOST_PATH_CHARS:
        raise refused(f"{what} is longer than {MOST_PATH_CHARS} characters")
    if any(character in text for character in "\n\r\\"):
        raise refused(f"{what} has a character that no path here may have")
    if ".." in text.split("/"):
        raise refused(f"{what} leads upwards by ..", "Write where it is.")
    plain = posixpath.normpath(text)
    if plain in ("/", "."):
        raise refused(f"{what} is {described(text)}, which would hide everything else", HINT)
    return plain


def _apart(value: tuple[str, ...]) -> tuple[str, ...]:
    """No two at one place, and none inside of another: which is mounted first would decide what is seen."""
    paths = sorted(read(one).path for one in value)
    for first, second in pairwise(paths):
        if second == first or second.startswith(f"{first}/"):
            where = "twice" if second == first else f"inside of {first}"
            raise refused(f"{second} is mounted {where}", "Each needs a place of its own.")
    return value


Mounts = Annotated[
    tuple[Annotated[str, BeforeValidator(_one)], ...],
    Field(strict=False, max_length=MOST_VOLUMES_OF_A_RUN),
    AfterValidator(_apart),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MOST_VOLUMES_OF_A_RUN,
            "items": {
                "anyOf": [
                    {"type": "string", "pattern": "^[^:]+:[^:]+(:r[ow])?$"},
                    {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["path"],
                        "properties": {
                            "volume": {"type": "string"},
                            "host": {"type": "string"},
                            "path": {"type": "string"},
                            "read_only": {"type": "boolean"},
                        },
                    },
                ]
            },
        }
    ),
]


def volumes_of(mounts: Iterable[str]) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys(one.volume for one in map(read, mounts) if one.volume))


def hosts_of(mounts: Iterable[str]) -> list[Mounted]:
    return [one for one in map(read, mounts) if one.host]
