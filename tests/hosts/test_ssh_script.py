"""What is run on hosts, where it can be looked at without one."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.transport import script

SLEEPER = "import sys, time; print('up', flush=True); time.sleep(600)"


def looks_like_a_shim(home: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-c", SLEEPER, "stoker.shim", "--home", str(home)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize(("whose", "starts"), [("ours", False), ("another", True)])
def test_the_number_of_another_shim_is_not_taken_for_ours(tmp_path: Path, whose: str, starts: bool) -> None:
    """Two users of one host have an agent each. It was rebooted, and the second one to come up got the number that the
    first one had before: cron took the first for running, minute after minute."""
    base = tmp_path / "ours"
    (base / "shim").mkdir(parents=True)
    (tmp_path / "start").write_text(script.START.format(base=base, command=f"touch {tmp_path}/started"))
    other = looks_like_a_shim(tmp_path / whose / "shim")
    try:
        (base / "shim" / "pid").write_text(str(other.pid))
        subprocess.run(["sh", tmp_path / "start"], check=True, timeout=30)
        looked = subprocess.run(["sh", "-c", script.LOOK, "look", base], check=True, capture_output=True, timeout=30)
    finally:
        other.kill()
        other.communicate()
    assert ("pid" in script.read(looked.stdout.decode())) is not starts
    deadline = time.monotonic() + 10.0
    while starts and not (tmp_path / "started").exists():
        assert time.monotonic() < deadline, "it was not started"
        time.sleep(0.02)
    assert (tmp_path / "started").exists() is starts
