"""`stoker retry`: what a finished run did not get done, done again by a new one (docs/decisions/0025)."""

from dataclasses import replace

from stoker.core.errors import Conflict
from stoker.core.family import found
from stoker.core.ids import RunId
from stoker.core.run_facts import S
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.idempotency import claim_of, made_before
from stoker.server.parameter import find_run, may_change
from stoker.server.submission import Accepted, as_they_are, birth_of, committed
from stoker.server.volume import check_volumes, policy_with
from stoker.store import run as run_store
from stoker.store import run_list
from stoker.store.run_list import Listed
from stoker.wire.configuration import restored
from stoker.wire.run import Expected


class Again:
    """One request of one caller."""

    def __init__(self, context: Context, access: Access, ref: str, key: str | None) -> None:
        self._context, self._access, self._ref, self._key = context, access, ref, key

    async def accepted(self) -> Accepted:
        access, claim = self._access, None
        async with self._context.database.connection() as connection:
            old = await find_run(connection, access, self._ref)
        may_change(access, old, "retry")
        if self._key is not None:
            # Asked for again, the name means the run that was made then: the key goes with how it was called.
            asked = Expected(id=access.project_id, version=0)
            claim = claim_of(access.caller, f"retry of {self._ref} in {access.project_id}", self._key, asked)
            if (before := await made_before(self._context, claim)) is not None:
                return Accepted(await as_they_are(self._context, access, before), before=True)
        undone = await self._undone(old)
        async with self._context.database.connection() as connection:
            again = (await run_store.get(connection, old.id)).policy.again(undone, str(old.id))
        engine = self._context.engine
        # What is shown of it is what it does: it has no schedule, and an applied file brings it none by the way.
        once = restored(old.configuration or "{}").model_copy(update={"schedule": None})
        # A volume of its may have been made anew meanwhile, under the same name.
        volumes = policy_with(once, await check_volumes(self._context, access, [once])).volumes
        again = replace(again, volumes=volumes)
        run = found(RunId(engine.new_id()), access.project_id, old.name, again, engine.clock.now())
        birth = birth_of(run, once, access)
        try:
            return Accepted(await committed(self._context, access, [birth], claim))
        except Conflict:
            # The same request may have been faster by a moment.
            before = None if claim is None else await made_before(self._context, claim)
            if before is None:
                raise
            return Accepted(await as_they_are(self._context, access, before), before=True)

    async def _undone(self, old: Listed) -> list[int]:
        if not old.finished:
            raise Conflict(
                f"{old.name} is {old.state}: only a finished run can be retried.",
                hint=f"Wait for its end (stoker wait {old.name}), or stop it.",
                code="not_finished",
            )
        async with self._context.database.connection() as connection:
            undone = [] if old.state is S.DONE else await run_list.undone(connection, old.id)
        if not undone or old.configuration is None:
            what = "nothing of it ever ran" if old.state is not S.DONE else "all of it got done"
            raise Conflict(
                f"There is nothing to retry in {old.name}: {what}.",
                hint="`stoker apply` runs the whole of it once more.",
                code="nothing_to_retry",
            )
        return undone
