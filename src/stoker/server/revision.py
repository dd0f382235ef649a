"""A run that is changed in place: compared with what it was asked to be, and committed if it is as it was seen."""

import asyncio
import json
from typing import Final

from stoker.core.errors import Conflict
from stoker.core.revision import revised
from stoker.core.run_facts import Revised, S
from stoker.engine.change import Change, of_run
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.parameter import may_change
from stoker.store import run as run_store
from stoker.store.idempotency import Claim
from stoker.store.run_list import Listed
from stoker.store.run_spec import RunSpec
from stoker.wire.configuration import TaskConfiguration, restored, stored, to_policy
from stoker.wire.revision import Comparison, compared
from stoker.wire.run import Expected

WHAT_TO_DO: Final = "Stop it first (stoker stop {name}), or choose another name."
CHANGED: Final = "The run of this name is not the one that was seen any more."


def comparison(current: Listed, configuration: TaskConfiguration) -> Comparison:
    """With what it was asked to be; a run that nobody described cannot be changed."""
    if current.configuration is None:
        return Comparison((), ("type",))
    return compared(restored(current.configuration), configuration)


def ends(current: Listed) -> bool:
    """It is over, or nearly: only a schedule goes on behind a round that ends."""
    return current.finished or (current.state is S.TERMINATING and current.schedule is None)


def refusal(current: Listed, difference: Comparison) -> str:
    """Why it cannot be changed; empty when it can."""
    if ends(current):
        return f"a run named {current.name} is {current.state}"
    if difference.refused:
        keys = ", ".join(difference.refused)
        return f"a run named {current.name} is {current.state}, and what differs cannot change while it lives: {keys}"
    return ""


async def revise(
    context: Context,
    access: Access,
    current: Listed,
    configuration: TaskConfiguration,
    expected: Expected,
    claim: Claim | None,
) -> None:
    """Refused when it may not change, or is another than the one that was seen; of two at once, one wins."""
    may_change(access, current, "change")
    difference = comparison(current, configuration)
    if why := refusal(current, difference):
        raise Conflict(f"{why[:1].upper()}{why[1:]}.", hint=WHAT_TO_DO.format(name=current.name), code="name_taken")
    if not difference.changes:
        return
    async with context.database.connection() as connection:
        run = await run_store.get(connection, current.id)
    hold_too = any(one.key == "hold" for one in difference.changes)
    policy = revised(run.policy, to_policy(configuration), hold_too=hold_too)
    event = Revised(policy, expected.version, difference.note, by=access.user)
    spec = RunSpec(run.id, run.project_id, run.name, current.user, configuration.type, stored(configuration))
    if claim is not None:
        claim = claim._replace(answer=json.dumps([str(run.id)]))
    change = Change(facts=(of_run(run.id, event),), revised=(spec,), claim=claim, strict=True)
    try:
        await asyncio.shield(context.engine.commit(change))
    except Conflict as error:
        if error.code != "stale":
            raise
        raise Conflict(CHANGED, hint="Look at the plan again.", code="changed") from None
