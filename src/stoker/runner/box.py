"""What a runner has to know of the container that it is the first process of: whom its job runs as.

The image alone knows its users, so they are looked up here, in its own lists and by nothing but these: our libraries
are not the image's, and what else it may ask for users belongs to others.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.core.errors import UserError
from stoker.runner.place import Place
from stoker.wire.runner import Assignment

LIST_BYTES: Final = 1024 * 1024
_HINT: Final = "Give a number, or another image."


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def settled(assignment: Assignment, place: Place) -> Assignment:
    """With the numbers of its user, who is given the job's directory. Root stays who the runner is."""
    if assignment.box is None:
        return assignment
    account = find_account(assignment.box.user)
    box = assignment.box.model_copy(update={"user": account.name, "home": account.home, "groups": account.groups})
    if account.uid == os.geteuid() and account.gid == os.getegid():
        return assignment.model_copy(update={"box": box})
    os.chown(place.work, account.uid, account.gid)
    return assignment.model_copy(update={"box": box, "uid": account.uid, "gid": account.gid})


def find_account(said: str, etc: Path = Path("/etc")) -> Account:
    """`name`, `uid`, `name:group` or `uid:gid`; nothing is root. A number needs no entry in any list."""
    user, _, group = (said or "0").partition(":")
    # Name, password, uid, gid, comment, home, shell.
    lines = [line for line in _lines(etc / "passwd") if len(line) >= 6 and line[2].isdecimal() and line[3].isdecimal()]
    found = next((line for line in lines if line[0] == user), None)
    if found is None and user.isdecimal():
        found = next((line for line in lines if line[2] == str(int(user))), None)
    if found is None:
        if not user.isdecimal():
            raise UserError(f"There is no user {user} in the image.", hint=_HINT)
        found = [user, "", user, "0", "", "/"]
    gid = _gid(group, etc) if group else int(found[3])
    # As engines do: with a group that was asked for, only that one.
    more = () if group else (gid for gid, members in _members(etc) if found[0] in members)
    return Account(int(found[2]), gid, tuple(dict.fromkeys((gid, *more))), found[0], found[5] or "/")


def _gid(said: str, etc: Path) -> int:
    for line in _lines(etc / "group"):
        if len(line) >= 3 and line[0] == said and line[2].isdecimal():
            return int(line[2])
    if not said.isdecimal():
        raise UserError(f"There is no group {said} in the image.", hint=_HINT)
    return int(said)


def _members(etc: Path) -> Iterator[tuple[int, list[str]]]:
    for line in _lines(etc / "group"):
        if len(line) >= 4 and line[2].isdecimal():
            yield int(line[2]), line[3].split(",")


def _lines(path: Path) -> list[list[str]]:
    with suppress(OSError), open(path, "rb") as file:
        return [line.split(":") for line in file.read(LIST_BYTES).decode(errors="replace").splitlines()]
    return []
