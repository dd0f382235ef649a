"""Real machines of a server that is not root: several agents of one user on one host, each for one project."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import as_root

NOBODY = 65_534
REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from stoker.backends.base import Handle
from stoker.backends.dummy.backend import Dummy
from stoker.backends.dummy.kind import kinds_of
from stoker.core.sight import Stage
from stoker.runner.proc import has_in_environment, pids
from stoker.server.workshop import MACHINE_VARIABLE, Workshop
from tests.backends.conformance import comes, new_id
from tests.backends.test_dummy import offer, order

async def main(home):
    dummy = Dummy(home, kinds_of([offer(real=True)]), Workshop())
    dummy.open()
    ids = [new_id(), new_id()]
    for id in ids:
        await dummy.launch(order(id))
    ways = [(await comes(dummy, id, Stage.UP)).way for id in ids]
    for id in ids:
        await dummy.destroy(Handle(id))
    await dummy.close()
    marks = [f"{MACHINE_VARIABLE}={id}".encode() for id in ids]
    left = [pid for pid in pids() if any(has_in_environment(pid, mark) for mark in marks)]
    print(json.dumps({
        "ips": [way.ip for way in ways], "one_project": [way.one_project for way in ways], "left": left,
        "on_disk": [path.name for path in (home / "machines").iterdir()],
    }))

asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 60))
"""


@pytest.fixture
def nobodys(shared_directory: Path) -> Iterator[Path]:
    made = shared_directory / "nobody"
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


@as_root
def test_two_machines_without_root_are_apart_and_leave_nothing(nobodys: Path) -> None:
    # To read, and nothing else: the interpreter may be below a directory that only its owner enters.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *reads]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "HOME": str(nobodys)}
    done = subprocess.run(
        [*nobody, sys.executable, "-c", SCRIPT, str(nobodys / "dummy")],
        env=environ, cwd="/", capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"ips": ["127.77.0.1", "127.77.0.2"], "one_project": [True, True], "left": [], "on_disk": []}
