"""Which server a person talks to, as whom and about what: flags before the environment before HOME/config.yml.

The file is YAML. What we write into it is one `key: "value"` a line, which is read without a YAML library, since that
alone would cost `stoker ps` a fifth of its time; what people write into it otherwise is left to the library.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.core.errors import UserError

KEYS: Final = ("url", "token", "project")
DEFAULT_PROJECT: Final = "main"
_PLAIN: Final = re.compile(r'(\w+):[ \t]+("(?:[^"\\]|\\.)*"|[A-Za-z][\w.:/@+-]*)[ \t]*')
_SPECIAL: Final = frozenset({"y", "yes", "no", "n", "on", "off", "true", "false", "null"})


@dataclass(frozen=True)
class Config:
    """What was found; `origins` says for each key who said so."""

    home: Path
    url: str = ""
    token: str = field(default="", repr=False)
    project: str = DEFAULT_PROJECT
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.home / "config.yml"


def default_home() -> Path:
    return Path("/var/lib/stoker") if os.name == "posix" and os.geteuid() == 0 else Path.home() / ".stoker"


def resolve(
    environ: Mapping[str, str],
    *,
    home: str | None = None,
    url: str | None = None,
    token: str | None = None,
    project: str | None = None,
) -> Config:
    """The arguments are flags; an empty variable counts as one that is not set."""
    place = Path(home or environ.get("STOKER_HOME") or default_home()).expanduser().absolute()
    origins = {"home": "flag" if home else "STOKER_HOME" if environ.get("STOKER_HOME") else "default"}
    kept = read(place / "config.yml")
    found: dict[str, str] = {}
    for key, flag in zip(KEYS, (url, token, project), strict=True):
        variable = f"STOKER_{key.upper()}"
        for value, origin in ((flag, "flag"), (environ.get(variable), variable), (kept.get(key), "config.yml")):
            if value:
                found[key], origins[key] = value, origin
                break
    origins.setdefault("project", "default")
    return Config(place, found.get("url", ""), found.get("token", ""), found.get("project", DEFAULT_PROJECT), origins)


def read(path: Path) -> dict[str, str]:
    """What the file says; a file that is not there says nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError:
        # Somebody else's home may be named only to reach their server, with a token from the environment.
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        plain = _PLAIN.fullmatch(line)
        if plain is None or plain[2].lower() in _SPECIAL:
            return _read_with_library(path, text)
        found[plain[1]] = json.loads(plain[2]) if plain[2].startswith('"') else plain[2]
    return found


def _read_with_library(path: Path, text: str) -> dict[str, str]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UserError(f"{path} has to be a map.", hint="For example: url: http://127.0.0.1:4400")
    return {key: str(value) for key, value in found.items() if value is not None}


def write(path: Path, values: Mapping[str, str]) -> None:
    """Replaces the file in one step; only its owner may read it, since it holds a token."""
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("# Written by `stoker up` and `stoker config set`.\n" + text)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror}.", hint="Choose another STOKER_HOME.") from None


def change(path: Path, **values: str) -> None:
    """Sets some keys and keeps the others; an empty value removes its key."""
    merged = read(path) | values
    write(path, {key: value for key, value in merged.items() if value})
