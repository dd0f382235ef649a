"""What reaches the person: results on stdout, everything said beside them on stderr, colours only on a terminal."""

import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO

import click

COLOURS: Final = {
    "RUNNING": "green",
    "DONE": "green",
    "IDLE": "green",
    "BUSY": "green",
    "PENDING": "yellow",
    "SUBMITTED": "yellow",
    "PROVISIONING": "yellow",
    "PULLING": "yellow",
    "TERMINATING": "yellow",
    "FAILED": "red",
    "ABORTED": "red",
    "TERMINATED": "bright_black",
}
"""Of a state, whatever it is the state of."""
GAP: Final = "  "
LEAST_LAST: Final = 16
"""Columns that the last one of a table needs to be worth showing; so do names, the first one."""
LEAST_FIRST: Final = 12


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None, *, bold: bool = False) -> str:
    if not colour and not bold:
        return text
    return click.style(text, fg=colour or None, bold=bold or None) if coloured(stream or sys.stdout) else text


def out(text: str = "", *, nl: bool = True) -> None:
    # Click would take colours away again where it sees no terminal, which is decided here already.
    click.echo(text, nl=nl, color=True)


def note(text: str) -> None:
    """Something said beside the result."""
    click.echo(text, err=True, color=True)


def complain(sentence: str, hint: str = "") -> None:
    note(f"{paint('Error:', 'red', sys.stderr, bold=True)} {sentence}")
    if hint:
        note(f"  {hint}")


def show_json(value: object) -> None:
    out(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_list(items: Iterable[Any]) -> None:
    """A list that may be long, written as it comes."""
    first = True
    for item in items:
        out(("[\n" if first else ",\n") + json.dumps(item, ensure_ascii=False), nl=False)
        first = False
    out("[]" if first else "\n]")


@contextmanager
def progress(what: str) -> Iterator[Callable[[], None]]:
    """A line on stderr that shows how long something takes already; only on a terminal, and gone afterwards."""
    live, began = sys.stderr.isatty(), time.monotonic()

    def step() -> None:
        if live:
            click.echo(f"\r{what}… {time.monotonic() - began:.1f}s\x1b[K", nl=False, err=True, color=True)

    try:
        yield step
    finally:
        if live:
            click.echo("\r\x1b[K", nl=False, err=True, color=True)


def state(text: str) -> str:
    return paint(text, COLOURS.get(text.upper(), ""))


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    spare: Sequence[str] = (),
    stream: TextIO | None = None,
) -> str:
    """Columns as wide as their longest cell, and on a terminal no wider than that."""
    shown = [[plain(value) for value in row] for row in rows]
    widths = [max(width(row[column]) for row in (list(headers), *shown)) for column in range(len(headers))]
    empty = [name for column, name in enumerate(headers) if column and not any(row[column] for row in shown)]
    columns_ = Columns(headers, widths, spare=(*empty, *spare), stream=stream)
    return "\n".join([columns_.header(), *map(columns_.row, shown)])


class Columns:
    """A table, line by line. Where the terminal is too narrow the columns of `spare` are left out one after the other,
    then the last is cut where the line ends, and then the first."""

    def __init__(
        self,
        headers: Sequence[str],
        widths: Sequence[int],
        *,
        spare: Sequence[str] = (),
        least: int = LEAST_LAST,
        stream: TextIO | None = None,
    ) -> None:
        self._headers, self._least, self._to = list(headers), least, stream or sys.stdout
        self._widths = [max(len(name), least) for name, least in zip(headers, widths, strict=True)]
        self._kept = list(range(len(headers)))
        self._room = columns(self._to) if self._to.isatty() else 0
        for name in dict.fromkeys(spare):
            if self._over(cut=True) > 0:
                self._kept.remove(self._headers.index(name))

    def header(self) -> str:
        return self._line(self._headers, lambda cell: paint(cell, "", self._to, bold=True))

    def row(self, cells: Sequence[object]) -> str:
        shown = [plain(cell) for cell in cells]
        for column in self._kept[:-1]:
            self._widths[column] = max(self._widths[column], width(shown[column]))
        return self._line(shown, lambda cell: paint(cell, COLOURS.get(cell, ""), self._to))

    def _over(self, *, cut: bool = False) -> int:
        """By how much a line is too wide; with `cut` the last column counts as what is worth showing of it."""
        if not self._room:
            return 0
        *others, last = (self._widths[column] for column in self._kept)
        return sum(others) + (min(last, self._least) if cut else last) + len(GAP) * len(others) - self._room

    def _line(self, cells: Sequence[str], dress: Callable[[str], str]) -> str:
        widths = {column: self._widths[column] for column in self._kept}
        over = self._over()
        for column, least in ((self._kept[-1], self._least), (self._kept[0], LEAST_FIRST)):
            narrower = max(min(least, widths[column]), widths[column] - max(0, over))
            over -= widths[column] - narrower
            widths[column] = narrower
        parts = []
        for column, most in widths.items():
            cell = cells[column]
            fitting = _cut(cell, most) if self._room and width(cell) > most else cell
            parts.append(dress(fitting) + " " * (most - width(fitting)))
        return GAP.join(parts).rstrip()


def plain(value: object) -> str:
    """One line, and nothing in it that a terminal would obey: names and messages come from other people."""
    text = "" if value is None else " ".join(str(value).split())
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)


def _cut(text: str, most: int) -> str:
    while text and width(text) > most - 1:
        text = text[:-1]
    return text + "…"


def width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def columns(stream: TextIO) -> int:
    """How wide the terminal is; one that does not say is taken for 80."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def wrapped(text: str, most: int, lines: int) -> list[str]:
    """As lines of at most so many columns, broken between words; what does not fit into them ends with `…`."""
    done, line = [], ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if width(joined) > most and line:
            done.append(line)
            joined = word
        line = joined
    done = [each if width(each) <= most else _cut(each, most) for each in (*done, line)]
    return done if len(done) <= lines else [*done[: lines - 1], _cut(f"{done[lines - 1]} {done[lines]}", most)]


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """One thing in lines of `name  value`; what it does not have is left out."""
    told = [(name, plain(value)) for name, value in rows if value not in (None, "", [], {})]
    widest = max((len(name) for name, _ in told), default=0)
    return "\n".join(
        f"{paint(name, '', bold=True)}{' ' * (widest - len(name))}{GAP}{state(text)}" for name, text in told
    )
