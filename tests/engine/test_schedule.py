"""Who gives launch slots gives them to those that can take them."""

from uuid import uuid4

from stoker.core.ids import ManagedJobId, ProjectId
from stoker.core.managed_job import Submitted, TaskWanted, create
from stoker.engine.change import Change, ManagedBirth, of_managed
from stoker.engine.engine import Engine
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with, eventually
from tests.engine.test_engine import Agents

PROJECT = ProjectId(uuid4())


async def submit(engine: Engine, name: str, priority: int) -> None:
    id = ManagedJobId(engine.new_id())
    aggregate = create(id, PROJECT, name, [TaskWanted("only")], engine.clock.now(), priority)
    specs = {task.id: "{}" for task in aggregate.tasks}
    await engine.commit(
        Change(managed=(ManagedBirth(aggregate, specs),), facts=(of_managed(id, id, Submitted()),)),
    )


async def test_a_job_that_cannot_be_scheduled_by_our_fault_keeps_nobody_else_from_the_slot(database: Databases) -> None:
    async with database() as db, engine_with(db, Agents().performers(), max_launching=1) as engine:
        async with db.transaction() as tx:
            await tx.execute("ALTER TABLE managed_job ADD CHECK (name <> 'sick' OR state IN ('INACTIVE', 'WAITING'))")
        await submit(engine, "sick", 90)
        await submit(engine, "sound", 10)
        sound = "SELECT state NOT IN ('INACTIVE', 'WAITING') FROM managed_job WHERE name = 'sound'"
        await eventually(lambda: ask(db, sound), "the slot is given to the other one", deadline_s=5.0)
        assert engine.loops["managed"].bugs > 0
