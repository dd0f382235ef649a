"""The Python that runs here: its program, its loader, and the part of its standard library that agents may need."""

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.bundle import elf
from stoker.bundle.part import Part, module
from stoker.bundle.tree import LOADER, PYTHON
from stoker.core.errors import Unavailable

_NO_MODULES: Final = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "lib-dynload"}
    # For people, for windows on a screen, for making and testing Python itself.
    | {"antigravity", "bdb", "cProfile", "cmd", "code", "codeop", "cgi", "cgitb", "doctest", "ensurepip", "idlelib"}
    | {"lib2to3", "pdb", "profile", "pstats", "pyclbr", "pydoc", "pydoc_data", "site", "sitecustomize", "tabnanny"}
    | {"test", "this", "tkinter", "trace", "turtle", "turtledemo", "unittest", "usercustomize", "venv", "zipapp"}
    | {"__phello__", "__hello__", "_pyrepl", "compileall", "distutils", "modulefinder", "webbrowser", "wsgiref"}
    # What needs libraries that nothing else needs, or speaks what we do not.
    | {"aifc", "chunk", "crypt", "curses", "dbm", "ftplib", "imaplib", "mailbox", "mailcap", "msilib", "nntplib"}
    | {"poplib", "rlcompleter", "shelve", "smtpd", "smtplib", "sndhdr", "sqlite3", "sunau", "telnetlib", "uu", "wave"}
    | {"xmlrpc"}
)
_NO_EXTENSIONS: Final = frozenset(
    {"_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw", "_multibytecodec"}
    | {"_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_lsprof", "_remote_debugging", "_sqlite3", "_tkinter"}
    | {"audioop", "nis", "ossaudiodev", "readline", "spwd", "_statistics"}
)
_TESTS: Final = ("_test", "_xxtest", "xxlimited", "_xxsubinterp", "_interp")


@dataclass(frozen=True)
class Installed:
    program: Path
    loader: Path
    library: Path
    """The directory of its standard library."""

    @property
    def where(self) -> str:
        """Where the program looks for its standard library, seen from the root."""
        return f"{sys.platlibdir}/{self.library.name}"

    def parts(self) -> Iterator[Part]:
        """Without the shared libraries that they need."""
        yield Part(PYTHON, self.program, program=True)
        yield Part(LOADER, self.loader, program=True)
        for top in sorted(self.library.iterdir()):
            if top.name.partition(".")[0] in _NO_MODULES or top.name.startswith("config-"):
                continue
            for source in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
                if source.suffix == ".py" and "__pycache__" not in source.parts and "tests" not in source.parts:
                    yield module(f"{self.where}/{source.relative_to(self.library)}", source)

    def extensions(self) -> Iterator[Part]:
        """One whose libraries are not here works for nobody here, and is left out by whoever asks."""
        directories = [Path(place) for place in sys.path if Path(place).name == "lib-dynload"]
        for source in sorted(source for directory in directories for source in directory.glob("*.so")):
            name = source.name.partition(".")[0]
            if name not in _NO_EXTENSIONS and not name.startswith(_TESTS):
                yield Part(f"{self.where}/lib-dynload/{source.name}", source)


def find() -> Installed:
    """The interpreter behind this one: of a virtual environment, the one that it was made from."""
    candidates = [Path(str(getattr(sys, "_base_executable", sys.executable))), Path("/proc/self/exe")]
    for program in candidates:
        try:
            resolved = program.resolve(strict=True)
            loader = elf.interpreter(resolved.read_bytes())
        except (OSError, elf.NotElf):
            # A script around the real one, for example.
            continue
        if loader:
            return Installed(resolved, Path(loader), Path(sysconfig.get_path("stdlib")).resolve())
    raise Unavailable(
        f"No bundle of the agents can be made of {sys.executable}: it is not a program with a loader of its own.",
        hint="Install Stoker into a virtual environment of another Python 3.11 or newer.",
        code="bundle",
    )
