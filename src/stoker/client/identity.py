"""Private keys that a fleet's file names: read here, where they are, and sent with it to be kept sealed."""

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.client.client import Json
from stoker.client.configuration import Written
from stoker.core.errors import UserError
from stoker.core.limits import MOST_KEY_CHARS

CONFIG = "ssh_config"
KEY = "identity_file"
OPENSSH = b"openssh-key-v1\0"
WITHOUT = (
    "Make one without (ssh-keygen -t ed25519 -N '' -f ~/.ssh/stoker), or leave identity_file out: then it is the "
    "project's, which `stoker project key` prints."
)


def keys_of(configuration: Json, written: Written, directory: Path) -> dict[str, str]:
    """By the names that the file has for them. One that is not here may be known to the server from before."""
    keys: dict[str, str] = {}
    for path, name in _named(configuration.get(CONFIG), (CONFIG,)):
        if name in keys:
            continue
        try:
            private = (directory / Path(name).expanduser()).read_text(encoding="ascii")
        except FileNotFoundError:
            continue
        except RuntimeError:
            raise written.refuse(path, f"{name} is in the home of nobody here", "Name the private key.") from None
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is no text"
            raise written.refuse(path, f"{name} cannot be read: {said}", "Name the private key.") from None
        keys[name] = _checked(private, name, path, written)
    return keys


def _checked(private: str, name: str, path: tuple[str | int, ...], written: Written) -> str:
    if "PRIVATE KEY" not in private or len(private) > MOST_KEY_CHARS:
        private_name = name.removesuffix(".pub")
        hint = f"Did you mean {private_name}?" if private_name != name else "Name a file that ssh-keygen has made."
        refused: UserError = written.refuse(path, f"{name} is no private key", hint)
        raise refused
    if _locked(private):
        raise written.refuse(path, f"{name} has a passphrase, and the server has nobody to ask for it", WITHOUT)
    return private


def _locked(private: str) -> bool:
    """By what is written in the open: in the old format a line, in the new one the name of the cipher."""
    if "ENCRYPTED" in private:
        return True
    inside = "".join(line for line in private.splitlines() if not line.startswith("-----"))
    try:
        return OPENSSH in (start := b64decode(inside[:64])) and not start.startswith(OPENSSH + b"\0\0\0\4none")
    except ValueError:
        return False


def _named(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Wherever one may stand; what is wrong there is the server's to say."""
    match value:
        case dict():
            for key, inner in value.items():
                if key == KEY and isinstance(inner, str):
                    yield (*path, key), inner
                elif key in ("hosts", "proxy_jump"):
                    yield from _named(inner, (*path, key))
        case list():
            for number, inner in enumerate(value):
                yield from _named(inner, (*path, number))
