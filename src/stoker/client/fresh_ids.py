"""Ids of tasks that a script chooses: in the order in which they are made, which is then the order of lists."""

import time
from collections.abc import Iterator
from random import Random, SystemRandom

from stoker.core.ids import uuid7


def fresh_ids() -> Iterator[str]:
    """One moment for all of them, then a random number, then a count, then another random number."""
    # Of the system, so that two processes that were one a moment ago do not throw the same.
    dice = Random(SystemRandom().getrandbits(64))
    began, mark, count = time.time(), dice.getrandbits(12) << 64, 0
    while True:
        yield str(uuid7(began, mark | count << 30 | dice.getrandbits(30)))
        count += 1
