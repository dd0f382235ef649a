"""Which kinds a replica believes to have something to hand out: never too few for long, whatever happens meanwhile."""

import asyncio
from collections.abc import Collection
from typing import Any, cast
from uuid import UUID

import pytest

from stoker.core.fit import Kind
from stoker.core.ids import ProjectId
from stoker.engine import kinds as module
from stoker.engine.kinds import Kinds
from stoker.store import task_kind
from stoker.store.database import Connection
from stoker.store.task_kind import Stored

HERE, THERE = ProjectId(UUID(int=1)), ProjectId(UUID(int=2))
NOBODY = cast(Connection, None)


class Tables:
    """What the database would answer; `gate` holds an answer back."""

    def __init__(self) -> None:
        self.waiting: dict[ProjectId, set[int]] = {HERE: set(), THERE: set()}
        self.project_of: dict[int, ProjectId] = {}
        self.looks = 0
        self.reads: list[set[int]] = []
        self.gate: asyncio.Event | None = None

    def add(self, project: ProjectId, *ids: int) -> None:
        self.waiting[project].update(ids)
        self.project_of.update(dict.fromkeys(ids, project))

    async def waiting_kinds(self, conn: Any, project: ProjectId) -> set[int]:
        self.looks += 1
        return set(self.waiting[project])

    async def read(self, conn: Any, ids: Collection[int]) -> dict[int, Stored]:
        self.reads.append(set(ids))
        found = {id: Stored(self.project_of[id], Kind(({},)), 0.0) for id in ids if id in self.project_of}
        if self.gate is not None:
            await self.gate.wait()
        return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    made = Tables()
    monkeypatch.setattr(task_kind, "waiting_kinds", made.waiting_kinds)
    monkeypatch.setattr(task_kind, "read", made.read)
    return made


async def waiting(kinds: Kinds, project: ProjectId = HERE) -> list[int]:
    return sorted(await kinds.waiting(NOBODY, project))


async def test_the_tables_are_looked_at_once_and_then_news_is_enough(tables: Tables) -> None:
    kinds = Kinds()
    tables.add(HERE, 1, 2)
    tables.add(THERE, 7)
    assert await waiting(kinds) == [1, 2]
    kinds.close(HERE, {1})
    assert await waiting(kinds) == [2]
    tables.add(HERE, 3)
    kinds.open({1, 3})
    assert await waiting(kinds) == [1, 2, 3]
    assert tables.looks == 1
    assert tables.reads == [{1, 2}, {3}], "a kind that was read is remembered"
    assert await waiting(kinds, THERE) == [7]


async def test_what_another_replica_opened_is_found_after_forgetting(tables: Tables) -> None:
    kinds = Kinds()
    assert await waiting(kinds) == []
    tables.add(HERE, 1)
    assert await waiting(kinds) == []
    kinds.forget()
    assert await waiting(kinds) == [1]


async def test_a_kind_that_is_opened_while_a_claim_finds_it_empty_stays(tables: Tables) -> None:
    """The claim looked before the commit that opened it, and hears its answer after."""
    kinds = Kinds()
    tables.add(HERE, 1)
    await waiting(kinds)
    kinds.open({1})
    kinds.close(HERE, {1})
    assert await waiting(kinds) == [1]


async def test_a_kind_that_is_opened_while_others_are_read_is_not_forgotten(tables: Tables) -> None:
    kinds = Kinds()
    await waiting(kinds)
    tables.add(HERE, 1, 2)
    kinds.open({1})
    tables.gate = asyncio.Event()
    reading = asyncio.create_task(waiting(kinds))
    while not tables.reads:
        await asyncio.sleep(0)
    kinds.open({2})
    tables.gate.set()
    assert await reading == [1]
    assert await waiting(kinds) == [1, 2]


async def test_a_read_that_fails_forgets_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = Kinds()
    await waiting(kinds)
    tables.add(HERE, 1)
    kinds.open({1})

    async def broken(*args: object) -> dict[int, Stored]:
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(task_kind, "read", broken)
        with pytest.raises(ConnectionError):
            await waiting(kinds)
    assert await waiting(kinds) == [1]


async def test_with_more_kinds_than_are_remembered_none_is_missed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has a key of its own, and there are many: memory is bounded, and everything is found all the same."""
    monkeypatch.setattr(module, "MOST_REMEMBERED", 3)
    kinds = Kinds()
    for id in range(1, 11):
        tables.add(HERE, id)
        kinds.open({id})
        assert await waiting(kinds) == list(range(1, id + 1))
        assert len(kinds._stored) <= max(4, id)
    for id in range(1, 10):
        tables.waiting[HERE].discard(id)
        kinds.close(HERE, {id})
    assert await waiting(kinds) == [10]
    assert len(kinds._stored) == 1
