"""What people do with managed jobs, and when: above all while a task is between two of its states."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from stoker.core.ids import ManagedJobId, ProjectId
from stoker.core.managed_job import Submitted, TaskWanted, create
from stoker.core.managed_task import CancelAsked, ControllerBroke
from stoker.engine.change import Change, ManagedBirth, of_managed

if TYPE_CHECKING:
    from tests.sim.world import World

PROJECT = ProjectId(UUID(int=1))
MANAGED_SPECS = (
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0}, "resources": {"cpu": 4}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0, "nodes": 2, "waiting_instance_s": 60.0}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 30.0, "waiting_runner_s": 30.0}}',
)

MOMENTS = """
SELECT task.id, task.managed_job_id, CASE
    WHEN launched AND task.state <> 'CANCELLING' AND run.id IS NULL THEN 'is being launched'
    WHEN launched AND task.state <> 'CANCELLING' AND run.state NOT IN ('SUBMITTED', 'PROVISIONING', 'RUNNING')
        THEN 'has ended and does not know'
    WHEN task.resume_at IS NOT NULL THEN 'backs off'
    WHEN job.state = 'ALIVE_WAITING' AND NOT launched AND task.state IN ('PENDING', 'RECOVERING') AND NOT EXISTS (
        SELECT FROM managed_task AS before WHERE before.managed_job_id = job.id
        AND before.index = ANY(task.depends_on) AND before.state <> 'SUCCEEDED'
    ) THEN 'waits for a slot'
    ELSE task.state
END AS moment
FROM managed_task AS task JOIN managed_job AS job ON job.id = managed_job_id
LEFT JOIN run ON run.owner_id = task.id AND run.owner_attempt = task.attempt
"""
CANCELLABLE = f"{MOMENTS} WHERE task.state IN ('PENDING', 'STARTING', 'RUNNING', 'RECOVERING') ORDER BY task.id"
QUEUED = "SELECT id, state FROM managed_job WHERE state IN ('INACTIVE', 'WAITING') ORDER BY id"
UNBROKEN = f"{MOMENTS} WHERE controller_error = '' ORDER BY task.id"


class ManagedPeople:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.managed: list[ManagedJobId] = []

    async def submit_managed(self) -> None:
        world, dice = self.world, self.world.dice
        names = [f"t{number}" for number in range(dice.randint(1, self.world.theme.most_tasks))]
        wanted = [
            TaskWanted(
                name,
                tuple(before for before in names[:place] if dice.random() < 0.3) if dice.random() < 0.8 else (),
                has_commands=dice.random() < 0.85,
                max_restarts_on_errors=dice.choice((0, 1, 3)),
                recover_on_exit_codes=frozenset({42}),
            )
            for place, name in enumerate(names)
        ]
        id = ManagedJobId(world.new_id())
        aggregate = create(id, PROJECT, f"managed-{len(self.managed)}", wanted, world.now(), dice.choice((0, 5)))
        specs = {task.id: dice.choice(MANAGED_SPECS) for task in aggregate.tasks}
        self.managed.append(id)
        await world.ask(Change(managed=(ManagedBirth(aggregate, specs),)))
        if dice.random() < 0.95:
            await world.ask(Change(facts=(of_managed(id, id, Submitted()),)))

    async def cancel_managed(self) -> None:
        """One task, or the whole job."""
        if (task := await self._task(CANCELLABLE)) is not None:
            whole = self.world.dice.random() < 0.3
            id = task["managed_job_id"] if whole else task["id"]
            self.world.note(f"cancels {str(id)[-6:]}: a task {task['moment']}")
            await self.world.ask(Change(facts=(of_managed(id, task["managed_job_id"], CancelAsked(by="ann")),)))

    async def break_controller(self) -> None:
        if (task := await self._task(UNBROKEN)) is not None:
            self.world.note(f"controller of {str(task['id'])[-6:]} breaks: it {task['moment']}")
            await self.world.ask(
                Change(facts=(of_managed(task["id"], task["managed_job_id"], ControllerBroke("oops")),))
            )

    async def give_up_the_queue(self) -> None:
        """At the end: what was never submitted, and most of what has not begun, which would only repeat the others."""
        async with self.world.line.turn() as connection:
            queued = await connection.fetch(QUEUED)
        for id, state in queued:
            if state == "INACTIVE" or self.world.dice.random() < 0.8:
                await self.world.ask(Change(facts=(of_managed(id, id, CancelAsked()),)))

    async def _task(self, query: str) -> Any:
        """Moments that last long and those that pass at once are equally likely to be met."""
        async with self.world.line.turn() as connection:
            tasks = await connection.fetch(query)
        if not tasks:
            return None
        moment = self.world.dice.choice(sorted({task["moment"] for task in tasks}))
        return self.world.dice.choice([task for task in tasks if task["moment"] == moment])
