"""What people do to runs besides ending them: triggers by hand, pauses, holds, and changed files."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

from stoker.core.commitment import Moved
from stoker.core.ids import RunId
from stoker.core.machine import Event
from stoker.core.policy import Policy
from stoker.core.run_facts import (
    FINISHED,
    HoldAsked,
    PauseAsked,
    ReleaseAsked,
    ResumeAsked,
    Revised,
    S,
    TriggerAsked,
)
from stoker.engine.change import Change, of_run
from tests.sim.managed import ManagedPeople

IS_UNFINISHED = "state NOT IN ('TERMINATED', 'FAILED', 'DONE')"
SCHEDULED = f"SELECT id, state AS moment FROM run WHERE policy ? 'schedule' AND {IS_UNFINISHED} ORDER BY id"
UNFINISHED = f"SELECT id, state AS moment FROM run WHERE {IS_UNFINISHED} ORDER BY id"


class Steering(ManagedPeople):
    async def trigger(self) -> None:
        """Somebody does not wait for the clock, or does not want it for a while."""
        if (row := await self.world.pick_moment(SCHEDULED)) is not None:
            await self._steer(row["id"])

    async def hold(self) -> None:
        if (row := await self.world.pick_moment(UNFINISHED)) is not None:
            await self._hold(row["id"])

    async def revise(self) -> None:
        if (row := await self.world.pick_moment(UNFINISHED)) is not None:
            await self._revise(row["id"])

    def notice(self, moved: Moved) -> None:
        """People steer what has just changed: a schedule in each of its moments, and what has begun in part."""
        super().notice(moved)
        before, after = moved.before, moved.after
        if moved.kind != "run" or before is None or after.state in FINISHED or before.state is after.state:
            return
        if after.policy.schedule is not None:
            self.perhaps(8, self._steer, after.id)
        if after.policy.hold or (after.tally.submitted and after.state is not S.SUBMITTED):
            self.perhaps(8, self._hold, after.id)

    async def _steer(self, run: UUID) -> None:
        dice = self.world.dice
        match dice.choice(("trigger", "trigger", "pause", "revise")):
            case "trigger":
                await self._say(run, TriggerAsked(by="ann"))
            case "pause":
                await self._say(run, PauseAsked(by="ann"))
                await self.world.pause(0.1, dice.choice((1.0, 10.0, 90.0)))
                if dice.random() < 0.4:
                    await self._say(run, TriggerAsked(by="bob"))
                await self._say(run, ResumeAsked(by="bob"))
            case "revise":
                await self._revise(run)

    async def _hold(self, run: UUID) -> None:
        await self._say(run, HoldAsked(by="ann"))
        await self.world.pause(0.5, self.world.dice.choice((5.0, 60.0)))
        await self._say(run, ReleaseAsked(by="ann"))

    async def _revise(self, run: UUID) -> None:
        """A changed file is applied; whoever has seen an older version is refused, and is told so."""
        row = await self.world.pick_row("SELECT version, policy FROM run WHERE id = $1", run)
        dice, policy = self.world.dice, Policy.from_json(json.loads(row["policy"]))
        changes: dict[str, Any] = {
            "priority": dice.choice((5, 50, 95)),
            "max_duration_s": None if policy.service else dice.choice((None, 20.0, 90.0)),
            "start_timeout_s": dice.choice((None, 60.0, 300.0)),
            "stop_duration_s": dice.choice((0.0, 5.0, 20.0)),
        }
        if policy.schedule is not None:
            changes["schedule"] = replace(policy.schedule, lines=(dice.choice(("* * * * *", "*/2 * * * *")),))
        await self._say(run, Revised(replace(policy, **changes), row["version"], "revised", by="ann"))

    async def _say(self, run: UUID, event: Event) -> None:
        await self.world.ask(Change(facts=(of_run(RunId(run), event),)))
