"""What reaches the person: results on stdout, everything said beside them on stderr, colours only on a terminal."""

import json
import os
import shutil
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


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, stream: TextIO | None = None) -> str:
    """Columns as wide as their longest cell. On a terminal the last one is cut where the line ends."""
    shown = [[plain(value) for value in row] for row in rows]
    widths = [max(_width(row[column]) for row in (list(headers), *shown)) for column in range(len(headers))]
    to = stream or sys.stdout
    if to.isatty():
        room = shutil.get_terminal_size().columns - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
        widths[-1] = max(len(headers[-1]), min(widths[-1], room))
    lines = [_line(headers, widths, lambda cell: paint(cell, "", to, bold=True))]
    lines += [_line(row, widths, lambda cell: paint(cell, COLOURS.get(cell, ""), to)) for row in shown]
    return "\n".join(lines)


def plain(value: object) -> str:
    """One line, and nothing in it that a terminal would obey: names and messages come from other people."""
    text = "" if value is None else " ".join(str(value).split())
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)


def _line(cells: Sequence[str], widths: Sequence[int], dress: Callable[[str], str]) -> str:
    parts = []
    for cell, width in zip(cells, widths, strict=True):
        fitting = cell if _width(cell) <= width else _cut(cell, width)
        parts.append(dress(fitting) + " " * (width - _width(fitting)))
    return GAP.join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    while text and _width(text) > width - 1:
        text = text[:-1]
    return text + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """One thing in lines of `name  value`; what it does not have is left out."""
    told = [(name, plain(value)) for name, value in rows if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in told), default=0)
    return "\n".join(
        f"{paint(name, '', bold=True)}{' ' * (width - len(name))}{GAP}{state(text)}" for name, text in told
    )
