"""Runs for the campaign over hosts: what each does in each try is planned, so that what became of it can be judged.

Some are processes and some are in containers, some need two hosts, some fail on purpose, once or always, some are tried
again, some are loud, some are stopped by their user.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.api.conftest import Json
from tests.hosts.quay import SHARED
from tests.process.trail import Attempt

SCRIPT = r"""
exec 2>/dev/null
umask 0
me=$STOKER_RUN_NAME.$STOKER_NODE_RANK try=$STOKER_SUBMISSION said=0
exec 9>>"$TRAIL/locks/$me"
flock -n 9 || echo "beside $me $try" >>"$TRAIL/lines"
echo "begin $me $try" >>"$TRAIL/lines"
over() {
  trap '' TERM
  echo "over $me $try $1 $said"
  echo "end $me $try $1" >>"$TRAIL/lines"
  exit "$1"
}
trap 'over 143' TERM
while [ "$said" -lt "$COUNT" ]; do
  echo "$me $try $((said += 1)) $PAD"
  sleep "$PAUSE" 9>&- || :
done
set -- $CODES
while [ "$#" -gt 1 ] && [ "$try" -gt 1 ]; do shift; try=$((try - 1)); done
code=$1 try=$STOKER_SUBMISSION
[ "$STOKER_NODE_RANK" = $((STOKER_NODES_NUM - 1)) ] || code=0
over "$code"
"""
"""While it lives it holds a lock of its job, on whichever host, which the kernel takes back however it dies. What a
shell says of a program that a signal ended is not planned, and not printed."""
STOPPED = 143
PAUSE_S = 0.1
RETRIED = ("interruption", "error")


@dataclass(frozen=True)
class Planned:
    name: str
    container: bool = False
    nodes: int = 1
    codes: tuple[int, ...] = (0,)
    """What its tries exit with, the last of them for all that follow; of several nodes the last one does."""
    most: int = 1
    """So many tries it may have."""
    lines: int = 10
    pad: int = 10
    stop_after_s: float | None = None
    """Its user stops it so long after it was accepted."""

    def code(self, node: int, attempt: int) -> int:
        return self.codes[min(attempt, len(self.codes)) - 1] if node == self.nodes - 1 else 0

    def job(self, node: int) -> str:
        """As the trail has it."""
        return f"{self.name}.{node}"

    def text(self, one: Attempt, lines: int | None = None) -> bytes:
        """What it prints before its last line."""
        said = range(1, (self.lines if lines is None else lines) + 1)
        return "".join(f"{one[0]} {one[1]} {number} {'x' * self.pad}\n" for number in said).encode()

    def configuration(self) -> Json:
        env = {
            "TRAIL": SHARED, "COUNT": str(self.lines), "PAUSE": f"{PAUSE_S:g}", "PAD": "x" * self.pad,
            "CODES": " ".join(map(str, self.codes)),
        }  # fmt: skip
        told: Json = {"type": "task", "name": self.name, "commands": [SCRIPT], "env": env, "nodes": self.nodes}
        # Longer than any link is cut: whoever is stopped comes to say that it was.
        told |= {"stop_duration": "2m"}
        if self.container:
            told |= {"image": "busybox"}
        if self.most > 1:
            told |= {"retry": {"on_events": list(RETRIED), "max_attempts": self.most}}
        return told


ENDS = (((0,), 1), ((0,), 4), ((7,), 1), ((7, 0), 4), ((0,), 1), ((0,), 4), ((9,), 2), ((0,), 1))
"""What tries exit with, and how many there may be."""
NODES_EVERY, STOPPED_EVERY = 11, 7


def plans(count: int, dice: random.Random, longest_s: float) -> Iterator[Planned]:
    """So many, of which the longest last `longest_s`; the first dozen has some of each kind."""
    for number in range(count):
        lasts_s = longest_s * dice.choices((0.02, dice.uniform(0.1, 0.3), dice.uniform(0.3, 1)), (20, 50, 30))[0]
        codes, most = ENDS[number % len(ENDS)] if number < len(ENDS) else dice.choice(ENDS)
        yield Planned(
            f"run-{number}",
            container=dice.random() < 0.5,
            nodes=2 if number % NODES_EVERY == 4 else 1,
            codes=codes,
            most=most,
            lines=max(1, round(lasts_s / PAUSE_S)),
            pad=dice.choice((10, 10, 100, 4000)),
            stop_after_s=dice.uniform(0, lasts_s) if number % STOPPED_EVERY == 5 else None,
        )
