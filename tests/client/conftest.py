"""A fake swarm, and a script's client for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.client.swarm import Client
from tests.client.fake import TOKEN, Swarm


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    with Swarm().serving() as serving:
        yield serving


@pytest.fixture
def client(swarm: Swarm, tmp_path: Path) -> Client:
    return stoker.Client(swarm.url, token=TOKEN, home=tmp_path)
