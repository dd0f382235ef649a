"""Runs of many jobs on the command line: one line that counts, unfolded on demand, and done again where it failed."""

import json

import pytest

from stoker.cli.count import counted
from tests.cli.conftest import Real, Stoker
from tests.cli.fake import Fake, run

pytestmark = pytest.mark.xdist_group("cli")

COUNTS = {
    "total": 100,
    "done": 37,
    "running": 10,
    "failed": 2,
    "starting": 0,
    "waiting": 51,
    "retrying": 0,
    "stopped": 0,
}
TASK = b"""
type: task
name: sweep
replicas: 4
max_parallel: 1
commands:
  - echo part $STOKER_REPLICA of $STOKER_REPLICAS_NUM
  - '[ $STOKER_REPLICA != 2 ] || [ -e "$FLAG" ]'
env: {FLAG: %s}
"""


def test_an_array_is_one_line_with_counts(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("sweep", status="RUNNING", finished_at=None, counts=COUNTS, status_message="slow"), run("one"))
    said = stoker("ps", "-a").stdout.decode().splitlines()
    assert said[1].endswith("37/100 done, 10 running, 51 waiting, 2 failed; slow")
    assert "done" not in said[2]
    assert counted(run("old")) == "", "a server that is older than we are does not count"


def test_an_array_on_the_command_line(real: Real, shared_directory: object) -> None:
    flag = f"{shared_directory}/sweep.flag"
    assert real("apply", "-y", "-d", "-f", "-", stdin=TASK % flag.encode()).returncode == 0
    assert real("wait", "sweep").returncode == 1
    shown = real("get", "sweep").stdout.decode()
    assert "2/4 done, 1 failed, 1 stopped" in shown
    line = next(one for one in real("ps", "-a").stdout.decode().splitlines() if one.startswith("sweep"))
    assert "2/4 done, 1 failed, 1 stopped" in line
    unfolded = real("ps", "-a", "--replicas").stdout.decode().splitlines()
    mine = [one.split()[:2] for one in unfolded if one.startswith("sweep/")]
    assert mine == [["sweep/0", "DONE"], ["sweep/1", "DONE"], ["sweep/2", "FAILED"], ["sweep/3", "TERMINATED"]]
    listed = json.loads(real("ps", "-a", "--replicas", "--json").stdout)
    assert [len(one["jobs"]) for one in listed if one["name"] == "sweep"] == [4]
    assert real("logs", "sweep").stdout == b"part 0 of 4\n"
    assert real("logs", "sweep", "--replica", "2", "--node", "0").stdout == b"part 2 of 4\n"
    with open(flag, "w"):
        pass
    told = real("retry", "sweep")
    assert told.stdout.startswith(b"sweep  ") and b"2 jobs of it are done again" in told.stdout
    assert real("wait", "sweep").returncode == 0
    assert real("logs", "sweep").stdout == b"part 2 of 4\n", "its first replica is not number 0"
    again = real("retry", "sweep")
    assert again.returncode == 1 and b"nothing to retry" in again.stderr


def test_more_nodes_than_machines_are_refused_before_anything_is_asked(real: Real) -> None:
    told = real("apply", "-f", "-", stdin=b"type: task\nnodes: 2\ncommands: [x]\n")
    assert told.returncode == 1
    assert b"nodes: a replica needs 2 whole instances of one fleet" in told.stderr
