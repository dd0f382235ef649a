"""`stoker` as people call it: a process of its own, with a home of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.fake import TOKEN, Fake

ROOT = Path(__file__).resolve().parents[2]
Stoker = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake().serving() as serving:
        yield serving


def bare_environ() -> dict[str, str]:
    """Nothing of the person who runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STOKER_", "NO_COLOR", "COLUMNS", "LINES"))
    }
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**bare_environ(), "STOKER_HOME": str(tmp_path / "stoker")}


@pytest.fixture
def connected(environ: dict[str, str], fake: Fake) -> dict[str, str]:
    return {**environ, "STOKER_URL": fake.url, "STOKER_TOKEN": TOKEN}


BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the person sits who reads a time."""
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def call(
    env: dict[str, str], *args: str, stdin: bytes = b"", timeout_s: float = 30.0
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*args), env=env, input=stdin, capture_output=True, timeout=timeout_s, cwd=ROOT)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "stoker.cli.main", *args]


@pytest.fixture
def stoker(connected: dict[str, str]) -> Stoker:
    def run(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return call({**connected, **env}, *args, stdin=stdin)

    return run


class Real:
    """A server of its own, started as people start it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**bare_environ(), "STOKER_HOME": str(home)}

    def __call__(
        self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return call({**self.env, **(env or {})}, *args, stdin=stdin, timeout_s=120)

    def up(self) -> None:
        told = self("up", "-d", "--port", "0")
        assert told.returncode == 0, told.stderr.decode()

    @property
    def pid(self) -> int:
        return int((self.home / "server.pid").read_text().split()[0])

    def clear(self) -> None:
        """Nothing of it outlives the test, however that ended."""
        if self("ps").returncode == 0:
            self("stop", "--all", "--abort", "-y")
            names = [run["name"] for run in json.loads(self("ps", "--json").stdout or b"[]")]
            if names:
                self("wait", "--timeout", "20s", *names)
        self("down", "--force")


@pytest.fixture(scope="session")
def real(shared_directory: Path) -> Iterator[Real]:
    """One for all tests that leave it running."""
    server = Real(shared_directory / "cli")
    server.up()
    yield server
    server.clear()


@pytest.fixture
def own(shared_directory: Path) -> Iterator[Real]:
    """One for tests that start and kill it as they like. They share the home, since making a database takes seconds."""
    server = Real(shared_directory / "own")
    yield server
    server.clear()
