"""Whom a job runs as, and what the kernel is asked to hold about this process and its children.

Python has no names for most of these calls. What each of them changes belongs to a thread or is inherited by
children, which the functions say.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_CALLS: Final = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
"""The numbers of setgroups, setresgid and setresuid."""


@dataclass(frozen=True)
class User:
    """Of a job, in numbers: it need not be in the host's list of users."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def name_process(name: str) -> None:
    """As `ps -o comm` and `top` show it; the command line is still the one of the fork server."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def adopt_orphans() -> None:
    """This process becomes the parent of every descendant that loses its own. Not inherited."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def confine(*, for_good: bool = True) -> None:
    """What is started from now on has none of our groups and, for good, cannot become root by a setuid program.

    Inherited by threads and children. Called by a runner that stays root while its job does not.
    """
    os.setgroups([])
    if for_good:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


@contextmanager
def files_of(user: User | None) -> Iterator[None]:
    """In this thread only, files are used with the rights of a user: a link that he laid leads us nowhere."""
    if user is None:
        yield
        return
    libc = _libc()
    libc.setfsgid(user.gid)
    libc.setfsuid(user.uid)
    try:
        # These two report no error; asking for nobody tells who it is now.
        if (libc.setfsuid(-1), libc.setfsgid(-1)) != (user.uid, user.gid):
            raise PermissionError(f"The kernel does not let this process use files as user {user.uid}.")
        yield
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())


def become(user: User) -> None:
    """This thread only, for good: it and what it starts are that user and can never be anybody else.

    The C library would change every thread, so the kernel is asked directly.
    """
    numbers = _CALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(f"jobs cannot have a user of their own on {os.uname().machine}")
    wanted = user.groups or (user.gid,)
    groups, gid, uid = (ctypes.c_uint32 * len(wanted))(*wanted), ctypes.c_uint32(user.gid), ctypes.c_uint32(user.uid)
    for number, arguments in zip(
        numbers, ((ctypes.c_long(len(wanted)), groups), (gid, gid, gid), (uid, uid, uid)), strict=True
    ):
        _checked(_libc().syscall(ctypes.c_long(number), *arguments))


def peer_is_ours(connection: socket.socket) -> bool:
    """Whether the other end of a unix socket is root or the user of this process."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] in (0, os.geteuid())


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    nothing = ctypes.c_ulong(0)
    _checked(_libc().prctl(option, argument, nothing, nothing, nothing))


def _checked(answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
