"""The data of a home: made whole or not at all, kept through full disks, refused when it is not ours."""

# Nothing else runs in the loop of a test, so looking at files and waiting there holds up nobody.
# ruff: noqa: ASYNC240

import asyncio
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.core.errors import Unavailable, UserError
from stoker.store.cluster import PORT
from stoker.store.database import ConnectionLost, Database
from stoker.store.postgres import Embedded
from tests.machine import as_root, fill
from tests.store.conftest import (
    NOBODY,
    asked,
    remember,
    remembered,
    running,
    wait_until,
)


async def test_a_first_start_makes_a_private_database(home: Path) -> None:
    async with running(home) as server:
        assert await asked(server, "SELECT datlocale FROM pg_database WHERE datname = 'postgres'") == "C.UTF-8"
        for name, value in {"data_checksums": "on", "listen_addresses": "", "server_encoding": "UTF8"}.items():
            assert await asked(server, f"SHOW {name}") == value
        password = home / "postgres" / "cluster" / "password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        for directory in (home / "postgres", home / "postgres" / "socket", password.parent / "data"):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        rules = await asked(server, "SELECT string_agg(DISTINCT auth_method, ',') FROM pg_hba_file_rules")
        assert rules == "scram-sha-256"
        # Its own session: Ctrl-C in our terminal is not for it.
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


@pytest.mark.parametrize("also_initdb", [False, True])
async def test_a_kill_in_the_middle_of_initdb(
    home: Path, server_process: Callable[[], subprocess.Popen[str]], also_initdb: bool
) -> None:
    process = server_process()
    wait_until(lambda: list(home.glob("postgres/new-*/data/pg_wal")), "initdb is at work")
    process.kill()
    process.wait()
    assert not (home / "postgres" / "cluster").exists()
    if also_initdb:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if f"{home}/postgres/new-".encode() in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)
    async with running(home) as server:
        await remember(server)
    assert not list(home.glob("postgres/new-*"))


async def test_data_of_another_version(home: Path) -> None:
    async with running(home):
        pass
    (home / "postgres" / "cluster" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(UserError, match="PostgreSQL 17") as refused:
        await Embedded.start(home)
    assert refused.value.code == "database_version" and refused.value.hint


async def test_a_pid_that_now_belongs_to_another_program(home: Path) -> None:
    """After a reboot, or in a restarted container, small pids are somebody else's."""
    async with running(home) as server:
        await remember(server)
        other = server._cluster.account.popen(Path("/bin/sleep"), "600", cwd=Path("/"))
        pid_file = server._cluster.data / "postmaster.pid"
        lock_file = server._cluster.socket / f".s.PGSQL.{PORT}.lock"
        left_behind = {
            file: file.read_text().replace(f"{server.pid}\n", f"{other.pid}\n", 1) for file in (pid_file, lock_file)
        }
    try:
        for file, text in left_behind.items():
            file.write_text(text)
            server._cluster.account.own(file)
        async with running(home) as again:
            assert await remembered(again) == 42
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_a_full_disk_at_the_first_start(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(20)
    home = disk / "home"
    with pytest.raises(Unavailable, match="no space left") as failed:
        await Embedded.start(home)
    assert failed.value.code == "disk_full" and failed.value.hint
    assert not list(home.glob("postgres/*/data"))


async def test_a_full_disk_at_a_later_start(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(120)
    async with running(disk / "home") as server:
        await remember(server)
    fill(disk / "ballast")
    with pytest.raises(Unavailable, match="no space left") as failed:
        await Embedded.start(disk / "home")
    assert failed.value.code == "disk_full"
    (disk / "ballast").unlink()
    async with running(disk / "home") as server:
        assert await remembered(server) == 42


async def test_a_disk_that_fills_while_serving(small_disk: Callable[[int], Path]) -> None:
    """PostgreSQL may refuse statements or fall over; with space again everything that was committed is there."""
    disk = small_disk(150)
    async with running(disk / "home") as server, await Database.connect(server.url, pool_size=2) as db:
        async with db.transaction() as tx:
            await tx.execute("CREATE TABLE thing (n int, filling text)")
        fill(disk / "ballast", leave_bytes=2_000_000)
        kept = 0
        with pytest.raises(Unavailable):
            for number in range(100_000):
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO thing SELECT $1, repeat(gen_random_uuid()::text, 3000)", number)
                kept += 1
        (disk / "ballast").unlink()
        await server.revive()
        assert await count_when_back(db) in (kept, kept + 1)


async def count_when_back(db: Database) -> int:
    """A crashed PostgreSQL restarts by itself and refuses connections while it replays its log."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with db.connection() as connection:
                    return int(await connection.fetchval("SELECT count(*) FROM thing"))
            except ConnectionLost:
                await asyncio.sleep(0.05)


async def test_a_home_that_may_not_be_written(shared_directory: Path) -> None:
    """As root the trouble is PostgreSQL's account, which cannot pass a closed directory."""
    closed = shared_directory / "closed"
    closed.mkdir(exist_ok=True)
    closed.chmod(0o700 if os.geteuid() == 0 else 0o500)
    with pytest.raises(UserError) as refused:
        await Embedded.start(closed / "home")
    assert refused.value.code == "permission_denied" and "STOKER_HOME" in refused.value.hint


@as_root
async def test_data_of_another_user_is_not_touched(home: Path) -> None:
    async with running(home):
        pass
    os.chown(home / "postgres", NOBODY, NOBODY)
    with pytest.raises(UserError, match="does not belong") as refused:
        await Embedded.start(home)
    assert refused.value.code == "permission_denied"


async def test_a_deep_home_has_a_short_socket(home: Path) -> None:
    deep = home.joinpath(*["a-rather-long-name-of-a-directory"] * 4)
    home.mkdir(mode=0o711)
    for directory in reversed(deep.relative_to(home).parents[:-1]):
        (home / directory).mkdir(mode=0o711)
    async with running(deep) as server:
        await remember(server)
        socket = Path(parse_qs(urlsplit(server.url).query)["host"][0])
        assert socket.parent == Path("/tmp") and stat.S_IMODE(socket.stat().st_mode) == 0o700
    assert not socket.exists()


async def test_a_home_that_is_a_file(home: Path) -> None:
    home.write_text("")
    for wrong in (home, home / "below"):
        with pytest.raises(UserError, match="is not a directory"):
            await Embedded.start(wrong)
    home.unlink()
