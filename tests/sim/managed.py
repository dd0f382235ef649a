"""What people do with managed jobs, and when: above all while a task is between two of its states."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

from stoker.core import managed_task as mt
from stoker.core.commitment import Moved
from stoker.core.ids import ManagedJobId, ProjectId, RunId, derived
from stoker.core.instance_facts import PreemptionNoticed
from stoker.core.machine import Event
from stoker.core.managed_job import S, Submitted, TaskWanted, create
from stoker.core.managed_task import CancelAsked, ControllerBroke
from stoker.core.reason import RunReason
from stoker.core.run_facts import ACTIVE, Broke, StopAsked
from stoker.engine.change import Change, ManagedBirth, of_managed, of_run

if TYPE_CHECKING:
    from tests.sim.world import World

PROJECT = ProjectId(UUID(int=1))
MANAGED_SPECS = (
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0}, "resources": {"cpu": 4}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0, "nodes": 2, "waiting_instance_s": 60.0}}',
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 30.0, "waiting_runner_s": 30.0}}',
    # A part of it runs, and for the rest there is no room.
    '{"policy": {"on_no_capacity": "fail", "stop_duration_s": 5.0, "replicas": 3}, "resources": {"cpu": 4}}',
)

WAITING = """
SELECT id FROM managed_task
WHERE managed_job_id = $1 AND NOT launched AND state IN ('PENDING', 'RECOVERING')
ORDER BY attempt = 0, resume_at NULLS FIRST, id
"""
MACHINES = """
SELECT job.instance_id AS id FROM job JOIN run ON run.id = job.run_id
WHERE run.owner_id = $1 AND job.instance_id IS NOT NULL AND job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
ORDER BY job.id
"""
UNFINISHED = "SELECT id, state FROM managed_job WHERE state <> 'DONE' ORDER BY id"


class ManagedPeople:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.managed: list[ManagedJobId] = []
        world.onlookers.append(self.notice)
        world.impatient = self.impatient

    async def submit_managed(self) -> None:
        world, dice = self.world, self.world.dice
        density = dice.choice((0.1, 0.3, 0.6))
        names = [f"t{number}" for number in range(dice.randint(1, self.world.theme.most_tasks))]
        wanted = [
            TaskWanted(
                name,
                tuple(before for before in names[:place] if dice.random() < density),
                has_commands=dice.random() < 0.85,
                max_restarts_on_errors=dice.choice((0, 0, 1, 3)),
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

    def notice(self, moved: Moved) -> None:
        """What has just changed is what people act on and what breaks, a moment too early or too late."""
        before, after = moved.before, moved.after
        if before is None:
            return
        match moved.kind:
            case "managed_job" if before.state is not after.state and after.state in (S.ALIVE_WAITING, S.ALIVE_BACKOFF):
                self.perhaps(10, self._clear, after.id)
            case "managed_task" if before.phase != after.phase and after.state is not mt.S.PENDING:
                self.perhaps(4 if after.state in mt.ENDED or after.recovering else 1, self._meddle, after.id)
                if after.launched and after.state not in mt.ENDED:
                    self.perhaps(4 if after.recovering else 2, self._preempt, after.id)
            case "run" if before.state is not after.state and after.owner_id and after.state not in ACTIVE:
                self.perhaps(4 if after.exit_code else 2, self._meddle, after.owner_id)

    def perhaps(self, weight: int, act: Callable[[UUID], Coroutine[Any, Any, None]], target: UUID) -> None:
        async def soon() -> None:
            await self.world.pause(0.0, self.world.dice.choice((0.2, 4.0)))
            await act(target)

        if self.world.faults and self.world.dice.random() < weight * self.world.theme.meddling:
            self.world.background(soon())

    def impatient(self, task: UUID) -> None:
        """Its launch takes long."""
        self.perhaps(6, self._meddle, task)

    async def _meddle(self, id: UUID) -> None:
        row = await self.world.pick_row("SELECT managed_job_id, state, attempt FROM managed_task WHERE id = $1", id)
        act = "break" if row["state"] in mt.ENDED else self.world.dice.choice(("cancel", "break", "run"))
        match act:
            case "cancel":
                await self._tell(id, row["managed_job_id"], CancelAsked(by="bob"))
            case "break":
                await self._tell(id, row["managed_job_id"], ControllerBroke("oops"))
            case "run":
                run = RunId(derived(id, row["attempt"]))
                event = self.world.dice.choice((StopAsked(by="bob"), Broke(RunReason.SERVER_ERROR)))
                await self.world.ask(Change(facts=(of_run(run, event),)))

    async def _preempt(self, id: UUID) -> None:
        """One of the machines that its run has, or is about to have."""
        instance = await self.world.pick(MACHINES, id)
        if instance in self.world.provider.machines:
            self.world.count("machine preempted")
            self.world.provider.preempt(instance, 0.0)
        elif instance is not None and instance not in self.world.owned:
            self.world.post_instance(instance, PreemptionNoticed())

    async def _clear(self, id: UUID) -> None:
        """What waits of a job is cancelled, one after the other."""
        async with self.world.line.turn() as connection:
            waiting = await connection.fetch(WAITING, id)
        for row in waiting[: self.world.dice.randint(1, 3)]:
            await self._tell(row["id"], id, CancelAsked(by="eve"))
            await self.world.pause(0.0, 1.0)

    async def _tell(self, id: UUID, job: UUID, event: Event) -> None:
        self.world.note(f"{type(event).__name__} for {str(id)[-6:]}")
        await self.world.ask(Change(facts=(of_managed(mt.ManagedTaskId(id), ManagedJobId(job), event),)))

    async def cancel_managed(self) -> None:
        if self.managed:
            id = self.world.dice.choice(self.managed)
            await self.world.ask(Change(facts=(of_managed(id, id, CancelAsked(by="ann")),)))

    async def give_up_most(self) -> None:
        """What was never submitted, and most of the rest: the calm after the faults needs only a few."""
        async with self.world.line.turn() as connection:
            unfinished = await connection.fetch(UNFINISHED)
        for id, state in unfinished:
            if state == "INACTIVE" or self.world.dice.random() < 0.7:
                await self.world.ask(Change(facts=(of_managed(id, id, CancelAsked()),)))
