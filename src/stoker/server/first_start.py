"""The first start: an admin, a project, and a token by which the clients of this home are known."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from stoker.core.ids import ProjectId
from stoker.server.auth import new_secret
from stoker.store import project, token, user
from stoker.store.database import Connection, Database
from stoker.store.token import NewToken, hash_of

ADMIN: Final = "admin"
PROJECT: Final = "main"
LOCK: Final = 0x66697273
_KEYS: Final = ("url", "token", "project")


async def found(database: Database, secret: str, now: float, new_id: Callable[[], UUID]) -> bool:
    """Makes the first user, who is admin, their token and the first project; False when there are users already."""
    async with database.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        if await user.count(tx) > 0:
            return False
        admin = user.User(new_id(), ADMIN, True, now)
        main = project.Project(ProjectId(new_id()), PROJECT, now)
        await user.insert(tx, admin)
        await project.insert(tx, main)
        await project.set_member(tx, main.id, admin.id, "admin", now)
        await _insert(tx, admin.id, secret, now, new_id)
    return True


async def opens(database: Database, secret: str, now: float) -> bool:
    async with database.connection() as connection:
        known = await token.find(connection, hash_of(secret))
    return known is not None and (known.expires_at is None or known.expires_at > now)


async def renew(database: Database, secret: str, now: float, new_id: Callable[[], UUID]) -> None:
    """A token for an admin again, where that of the home was lost.

    Only for the embedded database: whoever owns the home owns all that is in it.
    """
    async with database.transaction() as tx:
        await _insert(tx, await user.first_admin(tx), secret, now, new_id)


async def _insert(tx: Connection, user_id: UUID, secret: str, now: float, new_id: Callable[[], UUID]) -> None:
    await token.insert(tx, NewToken(new_id(), user_id, None, "home", hash_of(secret), now, None))


class Keyring:
    """HOME/config.yml, from which the clients of this home know where the server is and who they are.

    One `key: "value"` a line, only for its owner. A secret is written here before it is valid: a crash in between
    leaves one that opens nothing and is found and used at the next start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = _read(path)
        self.secret = self._values.get("token") or new_secret()

    @property
    def project(self) -> str:
        """In which the clients of this home work, unless they say otherwise."""
        return self._values.get("project") or PROJECT

    @property
    def foreign(self) -> bool:
        """It names a server on another machine: somebody put that there."""
        host = urlsplit(self._values.get("url", "")).hostname
        return host is not None and host != "localhost" and not host.startswith("127.") and host != "::1"

    def write(self, url: str) -> None:
        wanted = {**self._values, "url": url, "token": self.secret}
        wanted.setdefault("project", PROJECT)
        if wanted == self._values:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("# Written by `stoker up` and `stoker config set`.\n")
            file.writelines(f"{key}: {json.dumps(value)}\n" for key, value in wanted.items())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        self._values = wanted

    def replace(self) -> None:
        """Another secret: the old one opens nothing here."""
        self.secret = new_secret()


def _read(path: Path) -> Mapping[str, str]:
    values = {}
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key in _KEYS:
                value = value.strip()
                with suppress(ValueError):
                    values[key] = str(json.loads(value)) if value.startswith('"') else value
    return values
