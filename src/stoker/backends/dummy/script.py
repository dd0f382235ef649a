"""What a simulated machine makes of a job's commands: how long they take, what they write, how they end. Pure."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_NEXT: Final = re.compile(r"\n|;|&&")
FOREVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Script:
    """`output` with the second in which each line is written."""

    lasts_s: float = 0.0
    exit_code: int = 0
    output: tuple[tuple[float, bytes], ...] = ()


def read(commands: Iterable[str]) -> Script:
    """`sleep N`, `exit N`, `true`, `false` and `echo TEXT`; whatever else there is takes no time and succeeds."""
    at_s, output = 0.0, list[tuple[float, bytes]]()
    for command in (part.strip() for text in commands for part in _NEXT.split(text)):
        word, _, rest = command.partition(" ")
        rest = rest.strip()
        match word:
            case "sleep":
                at_s += _seconds(rest)
                if at_s == FOREVER_S:
                    break
            case "echo":
                output.append((at_s, _echoed(rest)))
            case "false":
                return Script(at_s, 1, tuple(output))
            case "exit":
                return Script(at_s, int(rest) % 256 if rest.isdecimal() else 0, tuple(output))
    return Script(at_s, 0, tuple(output))


def _seconds(text: str) -> float:
    if text == "infinity":
        return FOREVER_S
    found = _SPAN.fullmatch(text)
    return float(found[1]) * _UNITS_S[found[2]] if found else 0.0


def _echoed(text: str) -> bytes:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return " ".join(words).encode() + b"\n"
