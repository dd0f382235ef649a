"""`kill -9` of each part of a whole Stoker while twenty runs are in every state: all reach the right end.

What is looked at afterwards is in `crowd.py`: the outcome of each run, that its commands were started once, its log byte
for byte, and that nothing is left of it.
"""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.process.crowd import Crowd, Yard
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("survival")


def kill(pid: int | None) -> None:
    assert pid is not None, "there is nobody to kill"
    os.kill(pid, signal.SIGKILL)


def test_twenty_runs_reach_their_right_end_after_kill_9_of_the_server(stand: Stand, yard: Yard) -> None:
    """Jobs end while nobody watches, and the runner of one of them dies after that: its result is on disk."""
    crowd = Crowd(stand, yard)
    crowd.gather()
    ids = {name: stand.job(name)["id"] for name in crowd.meanwhile}
    crowd.submit_fresh()
    stand.kill_server()
    for name in crowd.meanwhile:
        yard.open(name)
    for name in crowd.meanwhile:
        until(stand.place(ids[name]).result.exists, f"{name} has ended")
    kill(stand.runner(ids["meanwhile-1"]))
    stand.start()
    crowd.end_rest()
    crowd.judge()
