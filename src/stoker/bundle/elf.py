"""Reads and trims ELF files: programs and libraries of 64 bits, with the least significant byte first."""

import struct
from collections.abc import Iterator
from typing import Final

MAGIC: Final = b"\x7fELF"
_CLASS_64_LITTLE: Final = b"\x02\x01"
_PROGRAMS_AT: Final = 32
_SECTIONS_AT: Final = 40
_PROGRAM_COUNT_AT: Final = 54
_SECTION_COUNT_AT: Final = 60
_PROGRAM: Final = struct.Struct("<IIQQQQQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_PT_DYNAMIC: Final = 2
_PT_INTERP: Final = 3
_DT_NULL: Final = 0
_SEARCH_PATHS: Final = frozenset({15, 29})
"""DT_RPATH and DT_RUNPATH."""


class NotElf(ValueError):
    """No ELF file, or none of the kind that is read here."""


def interpreter(data: bytes) -> str:
    """Which loader the kernel would start it with; empty: none."""
    for kind, offset, size in _segments(data):
        if kind == _PT_INTERP:
            return data[offset : offset + size].rstrip(b"\0").decode()
    return ""


def lean(data: bytes) -> bytes:
    """The same without what no loader reads, and without the places where it would look for libraries.

    Names and lines for debuggers lie behind all that is loaded: of a Python that was built here, they are most of it. A
    search path is one of this machine, and would be followed before the one that is given on the command line.
    """
    table, size = _table(data)
    end = max(table + size, *(offset + length for _, offset, length in _segments(data)))
    trimmed = bytearray(data[:end])
    struct.pack_into("<Q", trimmed, _SECTIONS_AT, 0)
    struct.pack_into("<HH", trimmed, _SECTION_COUNT_AT, 0, 0)
    for kind, offset, size in _segments(data):
        if kind == _PT_DYNAMIC:
            trimmed[offset : offset + size] = _without_search_paths(data[offset : offset + size])
    return bytes(trimmed)


def _without_search_paths(section: bytes) -> bytes:
    kept = [entry for entry in _DYNAMIC.iter_unpack(section) if entry[0] not in _SEARCH_PATHS]
    written = b"".join(_DYNAMIC.pack(*entry) for entry in kept)
    return written + bytes(len(section) - len(written))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, offset and size of each, as they are in the file."""
    at, size = _table(data)
    for kind, _, offset, _, _, length, _, _ in _PROGRAM.iter_unpack(data[at : at + size]):
        yield kind, offset, length


def _table(data: bytes) -> tuple[int, int]:
    """Offset and size of the table of segments."""
    if data[:4] != MAGIC:
        raise NotElf("it is no ELF file")
    if data[4:6] != _CLASS_64_LITTLE:
        raise NotElf("it is made for another kind of processor")
    try:
        (at,) = struct.unpack_from("<Q", data, _PROGRAMS_AT)
        entry, count = struct.unpack_from("<HH", data, _PROGRAM_COUNT_AT)
    except struct.error:
        raise NotElf("it is cut off") from None
    if entry != _PROGRAM.size or not count or at + entry * count > len(data):
        raise NotElf("it is cut off")
    return at, entry * count
