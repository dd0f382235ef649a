"""Migrations: applied once and in order, however many servers start at once."""

import asyncio
from pathlib import Path

import pytest

from stoker.core.errors import Broken, UserError
from stoker.store.migration import migrate, written
from tests.conftest import Databases


def write(directory: Path, **files: str) -> None:
    directory.mkdir(exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('m')}.sql").write_text(sql)


async def test_applied_in_order_and_once(empty_database: Databases, tmp_path: Path) -> None:
    write(tmp_path, m0001_thing="CREATE TABLE thing (n int); INSERT INTO thing VALUES (1);")
    async with empty_database() as db:
        assert await migrate(db, tmp_path) == ["thing"]
        write(
            tmp_path, m0002_more="INSERT INTO thing SELECT n + 1 FROM thing", m0003_last="ALTER TABLE thing ADD m int"
        )
        assert await migrate(db, tmp_path) == ["more", "last"]
        assert await migrate(db, tmp_path) == []
        async with db.connection() as connection:
            assert [row["n"] for row in await connection.fetch("SELECT n, m FROM thing ORDER BY n")] == [1, 2]
            recorded = await connection.fetch("SELECT number, name, length(checksum) FROM migration ORDER BY number")
        assert [tuple(row) for row in recorded] == [(1, "thing", 64), (2, "more", 64), (3, "last", 64)]


async def test_two_servers_at_once(empty_database: Databases, tmp_path: Path) -> None:
    """A deployment starts all its replicas together; each migration is applied by one of them."""
    for number in range(1, 8):
        write(tmp_path, **{f"m{number:04}_step": f"CREATE TABLE step_{number} (n int); SELECT pg_sleep(0.01);"})
    async with empty_database() as db:
        applied = await asyncio.gather(*(migrate(db, tmp_path) for _ in range(3)))
    assert sum(map(len, applied)) == 7


async def test_a_failing_migration_leaves_nothing(empty_database: Databases, tmp_path: Path) -> None:
    write(tmp_path, m0001_fine="CREATE TABLE fine (n int)", m0002_bad="CREATE TABLE half (n int); SELECT nonsense;")
    async with empty_database() as db:
        with pytest.raises(Broken, match="0002_bad"):
            await migrate(db, tmp_path)
        async with db.connection() as connection:
            tables = await connection.fetch(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname IN ('fine', 'half')"
            )
            assert [row["relname"] for row in tables] == ["fine"]
        write(tmp_path, m0002_bad="CREATE TABLE half (n int)")
        assert await migrate(db, tmp_path) == ["bad"]


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_migration_may_not_end_its_transaction(empty_database: Databases, tmp_path: Path, ending: str) -> None:
    write(tmp_path, m0001_sly=f"CREATE TABLE sly (n int); {ending};")
    async with empty_database() as db:
        with pytest.raises(Broken, match="ends its transaction"):
            await migrate(db, tmp_path)


async def test_a_changed_migration_is_noticed(empty_database: Databases, tmp_path: Path) -> None:
    write(tmp_path, m0001_thing="CREATE TABLE thing (n int)")
    async with empty_database() as db:
        await migrate(db, tmp_path)
        write(tmp_path, m0001_thing="CREATE TABLE thing (n bigint)")
        with pytest.raises(UserError, match="changed after") as refused:
            await migrate(db, tmp_path)
    assert refused.value.code == "database_changed" and refused.value.hint


async def test_an_old_stoker_refuses_a_newer_database(empty_database: Databases, tmp_path: Path) -> None:
    """Somebody rolled the program back, and the tables cannot follow."""
    old, new = tmp_path / "old", tmp_path / "new"
    write(old, m0001_thing="SELECT 1")
    write(new, m0001_thing="SELECT 1", m0002_more="SELECT 2")
    async with empty_database() as db:
        await migrate(db, new)
        with pytest.raises(UserError, match="0002_more") as refused:
            await migrate(db, old)
    assert refused.value.code == "database_newer"


async def test_a_hole_in_the_database_is_noticed(empty_database: Databases, tmp_path: Path) -> None:
    write(tmp_path, m0001_thing="SELECT 1", m0002_more="SELECT 2")
    async with empty_database() as db:
        await migrate(db, tmp_path)
        async with db.connection() as connection:
            await connection.execute("DELETE FROM migration WHERE number = 1")
        with pytest.raises(UserError) as refused:
            await migrate(db, tmp_path)
    assert refused.value.code == "database_gap"


def test_files_are_numbered_without_gaps(tmp_path: Path) -> None:
    write(tmp_path, m0001_thing="", m0003_more="")
    with pytest.raises(Broken, match="0002"):
        written(tmp_path)
    write(tmp_path, m0002_twice="", m0002_again="")
    with pytest.raises(Broken, match="0003"):
        written(tmp_path)


def test_a_file_with_another_name_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, mthing="")
    with pytest.raises(Broken, match="thing"):
        written(tmp_path)
