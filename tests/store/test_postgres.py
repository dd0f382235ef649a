"""The embedded PostgreSQL: started, killed, adopted, chosen."""

# Nothing else runs in the loop of a test, so looking at files and waiting there holds up nobody.
# ruff: noqa: ASYNC240

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from stoker.core.errors import Conflict, StokerError, Unavailable
from stoker.store import postgres as module
from stoker.store.database import Database
from stoker.store.postgres import Embedded, default_home, external_url, served
from tests.store.conftest import (
    SWIFT,
    alive,
    asked,
    remember,
    remembered,
    running,
    serving,
    wait_until,
)


async def test_by_default_what_is_committed_is_on_disk(home: Path) -> None:
    server = await Embedded.start(home)
    try:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert await asked(server, f"SHOW {name}") == "on"
    finally:
        await server.stop()


async def test_stop_and_start_again(home: Path) -> None:
    async with running(home) as server:
        await remember(server)
    assert not alive(server.pid)
    await server.stop()
    async with running(home) as again:
        assert await remembered(again) == 42
        assert again.pid != server.pid


async def test_a_killed_postmaster_comes_back_with_what_was_committed(home: Path) -> None:
    """Its busy backends outlive it for a moment and hold the shared memory."""
    async with running(home) as server:
        await remember(server)
        busy = await asyncpg.connect(server.url)
        sleeping = asyncio.create_task(busy.execute("SELECT pg_sleep(600)"))
        os.kill(server.pid, signal.SIGKILL)
        await server.revive()
        assert await remembered(server) == 42
        with pytest.raises((asyncpg.PostgresError, ConnectionError)):
            await sleeping
        busy.terminate()
        os.kill(server.pid, signal.SIGKILL)
    async with running(home) as again:
        assert await remembered(again) == 42


async def test_reviving_what_lives_changes_nothing(home: Path) -> None:
    async with running(home) as server:
        before = server.pid, server.url
        await server.revive()
        assert (server.pid, server.url) == before


async def test_the_postgres_of_a_killed_server_is_adopted(
    home: Path, server_process: Callable[[], subprocess.Popen[str]]
) -> None:
    """`kill -9` of the server: clients of its PostgreSQL notice nothing, and the next server takes it over."""
    process = server_process()
    pid = serving(process)
    process.kill()
    process.wait()
    assert alive(pid)
    async with running(home) as server:
        assert server.pid == pid
        await remember(server)
    wait_until(lambda: not alive(pid), "the adopted PostgreSQL stops")


async def test_other_options_are_not_adopted(home: Path, server_process: Callable[[], subprocess.Popen[str]]) -> None:
    process = server_process()
    pid = serving(process)
    process.kill()
    process.wait()
    async with running(home, max_connections="20") as server:
        assert server.pid != pid and not alive(pid)
        assert await asked(server, "SHOW max_connections") == "20"


async def test_a_second_server_is_told_who_is_there(
    home: Path, server_process: Callable[[], subprocess.Popen[str]]
) -> None:
    process = server_process()
    pid = serving(process)
    with pytest.raises(Conflict, match=f"process {process.pid},") as refused:
        await Embedded.start(home)
    assert "STOKER_HOME" in refused.value.hint and alive(pid)
    process.kill()
    process.wait()
    async with running(home):
        pass


async def test_a_cancelled_start_leaves_nothing_behind(home: Path) -> None:
    task = asyncio.create_task(Embedded.start(home, settings=SWIFT))
    while not list(home.glob("postgres/new-*")):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with running(home) as server:
        await remember(server)


async def test_dying_at_start_says_why(home: Path) -> None:
    with pytest.raises(Unavailable, match="shared_buffers") as failed:
        await Embedded.start(home, settings={"shared_buffers": "nonsense"})
    assert failed.value.code == "postgres_failed" and str(home / "postgres.log") in failed.value.hint
    async with running(home):
        pass


async def test_without_the_password_nobody_connects(home: Path) -> None:
    async with running(home) as server:
        password = urlsplit(server.url).password
        assert password
        for url in (server.url.replace(password, "guess"), server.url.replace(f":{password}", "")):
            with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError)):
                await asyncpg.connect(url, password=None if "guess" in url else "")


async def test_the_log_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(home):
        pass
    monkeypatch.setattr(module, "LOG_BYTES", 100)
    async with running(home):
        pass
    assert (home / "postgres.log.1").stat().st_size > 100
    assert (home / "postgres.log").read_text().count("starting PostgreSQL") == 1


async def test_two_homes_at_once(home: Path) -> None:
    home.mkdir(mode=0o711)
    async with running(home / "a") as one, running(home / "b") as two:
        await remember(one)
        with pytest.raises(asyncpg.UndefinedTableError):
            await remembered(two)


def test_the_home_depends_on_who_asks() -> None:
    assert default_home({"STOKER_HOME": "/srv/stoker", "HOME": "/home/ada"}, 1000) == Path("/srv/stoker")
    assert default_home({"HOME": "/home/ada"}, 1000) == Path("/home/ada/.stoker")
    assert default_home({"HOME": "/root"}, 0) == Path("/var/lib/stoker")


def test_a_shared_database_is_chosen_by_its_url() -> None:
    assert external_url({}) is None
    assert external_url({"STOKER_DATABASE_URL": " "}) is None
    assert external_url({"STOKER_DATABASE_URL": "postgresql://h/d"}) == "postgresql://h/d"
    with pytest.raises(StokerError, match="only database"):
        external_url({"STOKER_DATABASE_URL": "sqlite:///stoker.db"})


async def test_the_chosen_one_is_served(home: Path) -> None:
    async with served({"STOKER_DATABASE_URL": "postgresql://h/d"}, home) as url:
        assert url == "postgresql://h/d" and not home.exists()
    async with served({}, home) as url, await Database.connect(url) as db, db.transaction() as tx:
        assert await tx.fetchval("SELECT 1") == 1
