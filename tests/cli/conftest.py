"""`stoker` as people call it: a process of its own, with a home of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.fake import TOKEN, Fake

ROOT = Path(__file__).resolve().parents[2]
Stoker = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake().serving() as serving:
        yield serving


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Nothing of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "STOKER_HOME": str(tmp_path / "stoker"), "TERM": "xterm"}


@pytest.fixture
def connected(environ: dict[str, str], fake: Fake) -> dict[str, str]:
    return {**environ, "STOKER_URL": fake.url, "STOKER_TOKEN": TOKEN}


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
