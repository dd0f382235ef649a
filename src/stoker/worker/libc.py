"""What Python does not wrap of the C library: `prctl`, and signals as a file that can be read."""

import ctypes
import os
import signal
from collections.abc import Iterable
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
_MASK_BYTES: Final = 128


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def signal_file(numbers: Iterable[int]) -> int:
    """A descriptor that is readable when one of these came. They must be blocked; what is started must unblock them."""
    blocked = frozenset(numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    mask = sum(1 << (number - 1) for number in blocked).to_bytes(_MASK_BYTES, "little")
    return _checked(_libc().signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
