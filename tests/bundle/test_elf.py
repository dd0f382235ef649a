"""Reading and trimming ELF files, on one that was made by hand and on those of this machine."""

import struct
import sys
from pathlib import Path

import pytest

from stoker.bundle import elf

HEADER = 64
PROGRAM = 56
NEEDED, RPATH, RUNPATH, NULL = 1, 15, 29, 0


def made(*entries: int, behind: bytes = b"names for debuggers") -> bytes:
    """A library with one loaded segment, a dynamic section with these tags, and something behind all that."""
    section = b"".join(struct.pack("<qQ", tag, 7) for tag in (*entries, NULL))
    at = HEADER + 2 * PROGRAM
    end = at + len(section)
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, end, end, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, at, at, at, len(section), len(section), 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, HEADER, end, 0, HEADER, PROGRAM, 2, 64, 1, 0)
    return header + loaded + dynamic + section + behind


def tags(data: bytes) -> list[int]:
    at = HEADER + 2 * PROGRAM
    return [tag for tag, _ in struct.iter_unpack("<qQ", data[at:])]


def test_search_paths_go_and_what_is_needed_stays() -> None:
    """A Python built by hand looks for its library where it was built, before it looks where we say."""
    lean = elf.lean(made(NEEDED, RUNPATH, NEEDED, RPATH))
    assert tags(lean) == [NEEDED, NEEDED, NULL, NULL, NULL]


def test_what_no_loader_reads_is_cut_off() -> None:
    data = made(NEEDED, behind=b"x" * 10_000)
    lean = elf.lean(data)
    assert len(lean) == len(data) - 10_000
    sections_at, count, names = *struct.unpack_from("<Q", lean, 40), *struct.unpack_from("<HH", lean, 60)
    assert (sections_at, count, names) == (0, 0, 0), "or tools would look for sections that are not there"
    assert elf.lean(lean) == lean


def test_the_loader_of_a_program_is_read_from_it() -> None:
    program = Path(str(getattr(sys, "_base_executable", sys.executable))).resolve()
    assert Path(elf.interpreter(program.read_bytes())).is_file()
    assert elf.interpreter(made(NEEDED)) == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), made(NEEDED)[:100], made(NEEDED)[:60]],
    ids=["nothing", "a script", "four bytes", "of 32 bits", "cut in its table", "cut in its head"],
)
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(elf.NotElf):
        elf.interpreter(data)
    with pytest.raises(elf.NotElf):
        elf.lean(data)
