"""A page of the guide as a test reads it: files to write, and commands with what they print.

A fence with `yaml file=NAME` is a file. A fence with `console` has commands after `$ ` (a line that ends in a backslash
goes on) and below each what it prints: `…` stands for anything within a line, and for any lines where it stands alone.
A command succeeds, unless it says `# exit code N` at its end.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\bfile=(\S+)")
EXIT = re.compile(r"\s+# exit code (\d+)$")
ANYTHING = "…"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    text: str

    def with_(self, old: str, new: str) -> "File":
        return replace(self, text=self.text.replace(old, new))


@dataclass(frozen=True, slots=True)
class Command:
    line: str
    exit_code: int
    printed: tuple[str, ...]

    def with_(self, old: str, new: str) -> "Command":
        printed = tuple(line.replace(old, new) for line in self.printed)
        return replace(self, line=self.line.replace(old, new), printed=printed)


def steps(page: Path) -> list[File | Command]:
    return list(_steps(page.read_text(encoding="utf-8")))


def _steps(text: str) -> Iterator[File | Command]:
    for language, said, body in FENCE.findall(text):
        if name := FILE.search(said):
            yield File(name.group(1), body)
        elif language == "console":
            yield from _commands(body)


def _commands(body: str) -> Iterator[Command]:
    joined = body.replace("\\\n", "\\\0")
    for block in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
        line, _, printed = block.partition("\n")
        line = line.replace("\\\0", "\\\n")
        code = EXIT.search(line)
        yield Command(EXIT.sub("", line), int(code.group(1)) if code else 0, tuple(printed.splitlines()))


def agrees(expected: tuple[str, ...], printed: str) -> bool:
    """Whether what was printed is what the page shows; how far columns stand apart does not matter."""
    wanted = [" ".join(line.split()) for line in expected if line.strip()]
    got = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    pattern = "".join(r"(?:[^\n]*\n)*?" if line == ANYTHING else _pattern(line) + "\n" for line in wanted)
    return re.fullmatch(pattern, "".join(line + "\n" for line in got)) is not None


def _pattern(line: str) -> str:
    return r"[^\n]*".join(re.escape(part) for part in line.split(ANYTHING))
