"""What the commands of swarm tasks note on disk themselves, to be compared with what the server tells of them.

Each attempt appends a line when it begins and one when it ends. All lines are in one file, and a short write to a file
that is opened for appending is whole and in its turn: their order is the order in which things happened, on whichever
worker. While an attempt lives it holds a lock of its task, which the kernel takes back however it dies; an attempt that
finds the lock taken notes that it runs beside another one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SCRIPT: Final = r"""
exec 9>>"$1/locks/$STOKER_TASK_ID"
flock -n 9 || echo "beside $STOKER_TASK_ID $STOKER_ATTEMPT" >>"$1/lines"
echo "begin $STOKER_TASK_ID $STOKER_ATTEMPT" >>"$1/lines"
[ "$2" = 0 ] || sleep "$2"
[ "$4" = - ] || until [ -e "$4" ]; do sleep 0.02; done
code=0
[ "$STOKER_ATTEMPT" -gt "$3" ] || code=7
echo "end $STOKER_TASK_ID $STOKER_ATTEMPT $code" >>"$1/lines"
exit $code
"""
FAILED: Final = 7
"""The exit status of an attempt that was told to fail."""
ALWAYS: Final = 1_000_000

Attempt = tuple[str, int]


@dataclass
class Notes:
    """By attempt: its place in the order of all lines, and what it exited with."""

    begun: dict[Attempt, int] = field(default_factory=dict)
    ended: dict[Attempt, int] = field(default_factory=dict)
    codes: dict[Attempt, int] = field(default_factory=dict)
    beside: set[Attempt] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)
    """Lines that say again what was said before."""

    def attempts(self) -> dict[str, list[int]]:
        """Of each task those that began, in the order in which they did."""
        found: dict[str, list[int]] = defaultdict(list)
        for (task, attempt), _ in sorted(self.begun.items(), key=lambda item: item[1]):
            found[task].append(attempt)
        return dict(found)

    def successes(self) -> dict[str, list[int]]:
        """Of each task where those that did it are in the order of lines."""
        found: dict[str, list[int]] = defaultdict(list)
        for one, code in self.codes.items():
            if code == 0:
                found[one[0]].append(self.ended[one])
        return dict(found)


class Trail:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "locks").mkdir(parents=True)
        (directory / "note.sh").write_text(SCRIPT)
        (directory / "lines").touch()

    def command(self, *, lasts_s: float = 0, fails: int = 0, gate: Path | None = None) -> list[str]:
        """Of its attempts the first `fails` fail; none ends before the gate exists."""
        script, told = str(self.directory / "note.sh"), str(gate or "-")
        return ["sh", script, str(self.directory), f"{lasts_s:g}", str(fails), told]

    def ends(self) -> int:
        """How many attempts have come to an end so far."""
        return (self.directory / "lines").read_bytes().count(b"end ")

    def notes(self) -> Notes:
        notes = Notes()
        for place, line in enumerate((self.directory / "lines").read_text().splitlines()):
            what, task, attempt, *code = line.split(" ")
            one = task, int(attempt)
            match what:
                case "beside":
                    notes.beside.add(one)
                    continue
                case "begin":
                    known = notes.begun
                case _:
                    known = notes.ended
                    notes.codes[one] = int(code[0])
            if known.setdefault(one, place) != place:
                notes.twice.append(line)
        return notes


def assert_in_order(notes: Notes, dependencies: Mapping[str, Iterable[str]]) -> None:
    """Nothing began before everything that it waits for had succeeded."""
    done = {task: min(places) for task, places in notes.successes().items()}
    for (task, attempt), place in notes.begun.items():
        for source in dependencies.get(task, ()):
            assert source in done, f"{task} began in attempt {attempt}, and {source} never succeeded"
            assert done[source] < place, f"{task} began in attempt {attempt} before {source} had succeeded"
