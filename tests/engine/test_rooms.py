"""What the placer knows of instances is what is there, though it reads only what has changed."""

from uuid import uuid4

import pytest

from stoker.core.ids import ProjectId
from stoker.core.instance_facts import CordonAsked
from stoker.engine.change import Change, of_instance
from stoker.engine.hint import PLACEMENT
from stoker.engine.rooms import Rooms
from stoker.store import host as host_store
from stoker.store import instance as store
from tests.conftest import Databases
from tests.engine.conftest import engine_with
from tests.engine.test_engine import Agents, host


async def test_only_what_changed_is_read_again(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    some = store.some

    async def counted(tx: object, ids: list[object]) -> object:
        read.append(len(ids))
        return await some(tx, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "some", counted)
    generation = 1
    async with database() as db, engine_with(db, Agents().performers(), without=[PLACEMENT]) as engine:
        first, second = host(engine), host(engine)
        await engine.commit(Change(instances=(first, second)))
        rooms = Rooms(lambda: generation)
        async with db.connection() as connection:
            assert {one.instance.id for one in await rooms.look(connection)} == {first.id, second.id}
            read.clear()
            await engine.commit(Change(facts=(of_instance(first.id, CordonAsked()),)))
            assert {one.instance.id: one.instance.cordoned for one in await rooms.look(connection)}[first.id]
            changed = sum(read)
            assert await rooms.look(connection) == (await rooms.look(connection))
            assert sum(read) <= changed + 1, "what is launched meanwhile is read once more"
        async with db.transaction() as tx:
            await host_store.put(tx, second.id, host_store.Host("there", ""), mine := ProjectId(uuid4()))
            serves = {one.instance.id: one.project_id for one in await rooms.look(tx)}
            assert serves[second.id] == mine, "without a change of its row"
            await tx.execute("UPDATE instance SET state = 'TERMINATED', version = version + 1 WHERE id = $1", first.id)
            assert {one.instance.id for one in await rooms.look(tx)} == {second.id}
            # Another server of the database may have other things under the same versions.
            await tx.execute("UPDATE instance SET cordoned = true WHERE id = $1", second.id)
            generation = 2
            assert [one.instance.cordoned for one in await rooms.look(tx)] == [True]
