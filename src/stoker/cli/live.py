"""A few lines on stderr that are drawn anew whenever they change, and are gone at the end."""

import sys
from typing import Final

import click

from stoker.cli import screen

MOST_LINES: Final = 4


class Live:
    """For a terminal. `show` wraps between words: on a narrow one a sentence takes several lines, and is all there."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def show(self, text: str) -> None:
        # The last column stays free: some terminals begin a new line as soon as it is written.
        lines = screen.wrapped(text, screen.columns(sys.stderr) - 1, MOST_LINES)
        self._write(self._erased() + "\n".join(lines))
        self._drawn = lines

    def clear(self) -> None:
        if self._drawn:
            self._write(self._erased())
        self._drawn = []

    def _erased(self) -> str:
        """Goes back to the first line and clears from there; a window that became narrower has wrapped them again."""
        columns = screen.columns(sys.stderr)
        rows = sum(max(1, -(-screen.width(line) // columns)) for line in self._drawn)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J"

    def _write(self, text: str) -> None:
        click.echo(text, nl=False, err=True, color=True)
