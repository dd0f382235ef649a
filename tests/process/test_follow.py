"""A log that somebody follows from its last lines on, while the server is killed and comes back."""

import subprocess
import sys
from functools import partial

import pytest

from tests.process.crowd import Yard, numbers
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("stand")


def test_a_follower_of_the_last_lines_loses_nothing_and_repeats_nothing_when_the_server_is_killed(
    stand: Stand, yard: Yard
) -> None:
    """What is written while the server is away is shown when it is back."""
    last = 0
    script = []
    for part in range(4):
        script += [f"seq {last + 1} {last + 1000}", yard.gate(f"part-{part}")]
        last += 1000
    stand.submit("watched", yard.note("watched"), *script)
    until(lambda: stand.written("watched") == numbers(1, 1000), "the first part is written")
    until(lambda: stand.log("watched") == numbers(1, 1000), "the server has it")
    command = [sys.executable, "-m", "stoker.cli.main", "logs", "-f", "--tail", "10", "watched"]
    # Without a buffer of ours: `communicate` would not see what a `readline` left in it.
    reader = subprocess.Popen(command, env=stand.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"991\n"
        for part in range(2):
            stand.kill_server()
            yard.open(f"part-{part}")
            stand.start()
            until(partial(has_grown, stand, 1000 * (part + 2)), "the next part is written")
        yard.open("part-2")
        yard.open("part-3")
        told, said = reader.communicate(timeout=60)
    finally:
        reader.kill()
        reader.wait()
    assert told == numbers(992, last)
    assert reader.returncode == 0
    assert said.count(b"trying again") == said.count(b"is back") >= 1


def has_grown(stand: Stand, lines: int) -> bool:
    return stand.log("watched").endswith(b"\n%d\n" % lines)
