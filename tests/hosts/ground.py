"""A land of hosts for all tests of one process, and a server for each that reaches them by SSH."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from stoker.engine import ssh as engine_ssh
from stoker.engine import watch
from stoker.transport import ssh, tunnel
from tests.conftest import Databases
from tests.hosts.land import Land, land
from tests.hosts.stand import Stand, checkout

Stands = Callable[[], AbstractAsyncContextManager[Stand]]


@pytest.fixture(scope="session")
def shire() -> Iterator[Land]:
    """The land: hosts of one test are there until the last one has ended."""
    with land() as made:
        yield made


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is down is noticed in one second instead of fifteen, and so on: the rules are the same."""
    monkeypatch.setattr(ssh, "KEEPALIVE_S", 0.3)
    monkeypatch.setattr(ssh, "CONNECT_S", 2.0)
    monkeypatch.setattr(tunnel, "LONGEST_DELAY_S", 1.0)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(watch, "LONGEST_RETRY_S", 0.5)
    monkeypatch.setattr(engine_ssh, "TEND_S", 0.5)
    monkeypatch.setattr(engine_ssh, "AGAIN_S", 0.5)


@pytest.fixture
def stand(database: Databases, shire: Land, shared_directory: Path) -> Stands:
    """A server that is started by `serving`, and may be started again; at the end the hosts of the test are off."""

    @asynccontextmanager
    async def open() -> AsyncIterator[Stand]:
        home = Path(tempfile.mkdtemp(prefix="ssh-", dir=shared_directory))
        os.chmod(home, 0o711)
        before = len(shire.hosts)
        try:
            async with database() as db:
                yield Stand(home / "server", db.url, checkout(home), shire.key.read_text())
        finally:
            for host in shire.hosts[before:]:
                host.switch_off()

    return open
