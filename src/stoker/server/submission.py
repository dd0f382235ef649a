"""From configurations to runs that are accepted: checked, named, committed together, and answered as they were born."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from stoker.core.errors import Conflict
from stoker.core.family import found
from stoker.core.ids import RunId
from stoker.core.limits import MOST_JOBS_SHOWN
from stoker.core.run_facts import Run as RunRecord
from stoker.engine.change import Change, RunBirth
from stoker.server import view
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.fleet import check_fleets
from stoker.server.idempotency import claim_of, made_before
from stoker.server.name import name_of
from stoker.server.parameter import find_run
from stoker.server.reach import check_reach
from stoker.server.revision import CHANGED, revise
from stoker.server.volume import Named, check_volumes, policy_with
from stoker.store import run_list
from stoker.store.idempotency import Claim
from stoker.store.run_spec import RunSpec
from stoker.wire.configuration import TaskConfiguration, complete, stored
from stoker.wire.group import first_request, to_groups
from stoker.wire.model import Invalid, Problem
from stoker.wire.run import Expected, Run, Submit

TRIES: Final = 5
"""To find a name that nobody has."""


@dataclass(slots=True)
class Accepted:
    runs: list[Run]
    before: bool = False
    """They were accepted before, under the same key."""
    revised: bool = False
    """It was there, and was changed in place."""


class Submission:
    """One request of one caller."""

    def __init__(self, context: Context, access: Access, body: Submit, key: str | None) -> None:
        self._context, self._access, self._body = context, access, body
        self._configurations = [complete(one) for one in body.all]
        self._claim = claim_of(access.caller, f"runs of {access.project_id}", key, body) if key else None
        self._dice = random.SystemRandom()
        self._volumes: Named = {}
        _check_names(self._configurations)

    async def accepted(self) -> Accepted:
        before = await self._before()
        if before is not None:
            return before
        try:
            return await self._revised() or Accepted(await self._made())
        except Conflict:
            # The same request may have been faster by a moment: then what stands in the way is what it made.
            before = await self._before()
            if before is None:
                raise
            return before

    async def _revised(self) -> Accepted | None:
        """Where it is the unfinished run that was seen, that one is changed; None where it is not."""
        expected, (configuration, *_) = self._body.expected, self._configurations
        if expected is None or configuration.name is None:
            return None
        async with self._context.database.connection() as connection:
            latest = await run_list.latest(connection, self._access.project_id, configuration.name)
        if latest is None or latest.finished:
            return None
        self._check_expected(latest)
        await revise(self._context, self._access, latest, configuration, expected, self._claim)
        return Accepted(await as_they_are(self._context, self._access, [latest.id]), revised=True)

    async def _before(self) -> Accepted | None:
        found = None if self._claim is None else await made_before(self._context, self._claim)
        return None if found is None else Accepted(await as_they_are(self._context, self._access, found), before=True)

    async def _made(self) -> list[Run]:
        await self._check_state()
        for _ in range(TRIES - 1):
            try:
                return await self._commit(self._births())
            except Conflict as conflict:
                if conflict.code != "name_taken" or all(one.name for one in self._configurations):
                    raise
                # Of those names that we made ourselves: the next ones will be others.
                await self._check_state()
        return await self._commit(self._births())

    async def _check_state(self) -> None:
        if any(one.fleets for one in self._configurations):
            async with self._context.database.connection() as connection:
                await check_fleets(connection, self._access, self._configurations)
        self._volumes = await check_volumes(self._context, self._access, self._configurations)
        await check_reach(self._context, self._access, self._configurations)
        names = [one.name for one in self._configurations if one.name]
        if not names:
            return
        async with self._context.database.connection() as connection:
            if self._body.expected is not None:
                self._check_expected(await run_list.latest(connection, self._access.project_id, names[0]))
            taken = await run_list.standing(connection, self._access.project_id, names)
        if taken is not None:
            raise Conflict(
                f"A run named {taken} is not finished yet.",
                hint=f"Stop it (stoker stop {taken}), or choose another name.",
                code="name_taken",
            )

    def _check_expected(self, latest: run_list.Listed | None) -> None:
        expected: Expected | None = self._body.expected
        if expected is not None and (latest is None or (latest.id, latest.version) != (expected.id, expected.version)):
            raise Conflict(
                CHANGED,
                hint="Look at the plan again.",
                code="changed",
            )

    def _births(self) -> list[RunBirth]:
        engine, access = self._context.engine, self._access
        births = []
        for one in self._configurations:
            id = RunId(engine.new_id())
            policy = policy_with(one, self._volumes)
            run = found(id, access.project_id, one.name or name_of(self._dice), policy, engine.clock.now())
            births.append(birth_of(run, one, access))
        return births

    async def _commit(self, births: Sequence[RunBirth]) -> list[Run]:
        return await committed(self._context, self._access, births, self._claim)


async def committed(context: Context, access: Access, births: Sequence[RunBirth], claim: Claim | None) -> list[Run]:
    """The runs as they were born."""
    ids: list[UUID] = [birth.run.id for birth in births]
    if claim is not None:
        claim = claim._replace(answer=json.dumps(list(map(str, ids))))
    with context.runs.expected(ids) as born:
        # Shielded: a client that goes away while it is being accepted finds it accepted.
        await asyncio.shield(context.engine.commit(Change(runs=tuple(births), claim=claim)))
    if len(born.runs) < len(ids):
        # It was committed by a try whose answer was lost.
        return await as_they_are(context, access, ids)
    return [
        view.run_of(
            view.listed_of(born.runs[birth.run.id], birth.spec),
            access,
            map(view.listed_job_of, born.jobs.get(birth.run.id, ())[:MOST_JOBS_SHOWN]),
        )
        for birth in births
        if birth.spec is not None
    ]


async def as_they_are(context: Context, access: Access, ids: Sequence[Any]) -> list[Run]:
    async with context.database.connection() as connection:
        return [view.run_of(await find_run(connection, access, str(id)), access) for id in ids]


def birth_of(run: RunRecord, configuration: TaskConfiguration, access: Access) -> RunBirth:
    spec = RunSpec(run.id, access.project_id, run.name, access.user, configuration.type, stored(configuration))
    return RunBirth(run, first_request(configuration), spec, to_groups(configuration))


def _check_names(configurations: Sequence[TaskConfiguration]) -> None:
    twice = [name for name, times in Counter(one.name for one in configurations).items() if name and times > 1]
    if twice:
        raise Invalid([Problem(key="configurations", message=f"{twice[0]} is given as a name more than once")])
