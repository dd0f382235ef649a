"""What would happen, and why something does not."""

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.gang import Gang
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.job_facts import S as J
from stoker.core.limits import MOST_JOBS_SHOWN
from stoker.core.market import Wish, appraise
from stoker.core.need import Need
from stoker.core.placement import Plan as CorePlan
from stoker.core.run_facts import S
from stoker.core.schedule import next_after
from stoker.core.why import MAX_REASONS, WhyCode
from stoker.core.why import Why as CoreWhy
from stoker.engine.outlook import Scene, look, why_of
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.fleet import check_fleets
from stoker.server.parameter import Ctx, RunRef, find_run
from stoker.server.reach import check_reach
from stoker.server.revision import comparison, refusal
from stoker.server.sentence import HELD, sentence
from stoker.server.volume import check_volumes, policy_with
from stoker.store import instance, run_list
from stoker.store.run_list import Listed, ListedJob
from stoker.wire.configuration import TaskConfiguration, complete, to_json, to_policy
from stoker.wire.container import needs_permission, without_secrets
from stoker.wire.group import first_request, to_groups
from stoker.wire.plan import Action, Place, Plan, PlanRequest
from stoker.wire.revision import Comparison
from stoker.wire.run import Expected, OfferReason, Reason, Why
from stoker.wire.time import moment, moment_or_none

NOTHING = Comparison((), ())

MOST_NAMED: Final = 3

SOON: Final = "as soon as something changes"

router = APIRouter(prefix="/projects/{project}/runs", tags=["runs"])


@router.post("/plan", response_model=Plan)
async def plan_run(context: Ctx, access: Member, body: PlanRequest) -> Response:
    """What would happen if this were submitted now: where its jobs would go, or why they would wait."""
    configuration = complete(body.configuration)
    await check_reach(context, access, [configuration])
    policy = policy_with(configuration, await check_volumes(context, access, [configuration]))
    gang = _gang(context, access, configuration)
    async with context.database.connection() as connection:
        await check_fleets(connection, access, [configuration])
        current = None
        if configuration.name is not None:
            current = await run_list.latest(connection, access.project_id, configuration.name)
        now = context.engine.clock.now()
        found, gang, seen = await look(
            connection,
            context.engine.merchant,
            context.rooms,
            now,
            besides=gang,
            fleets=policy.fleets,
            privileged=needs_permission(configuration),
            volumes=policy.volumes,
        )
        mine = {job for job, _ in gang.jobs}
        names = await instance.names(connection, {one.instance_id for one in found.assignments if one.job_id in mine})
    told = _told(configuration, access, current, gang, found, names)
    if told.why is not None:
        told = told.model_copy(update={"why": told.why.model_copy(update=against(gang, seen, now))})
    return answered(told)


@router.get("/{run}/why", response_model=Why)
async def why(context: Ctx, access: Member, run: RunRef) -> Response:
    """Why it waits; computed now."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        jobs = await run_list.jobs(connection, found.id, MOST_JOBS_SHOWN, states=[J.SUBMITTED], latest=True)
    if not found.finished and any(job.instance_id is None for job in jobs):
        told = Why(sentence=f"{found.name} is {HELD}.", code="held") if found.held else await _waiting(context, found)
        if told is not None:
            return answered(told)
    next_at = None if found.finished else moment_or_none(found.resume_at or found.trigger_at)
    code = "later" if next_at else "not_waiting"
    return answered(Why(sentence=_not_waiting(found, jobs), code=code, next_at=next_at))


async def _waiting(context: Context, run: Listed) -> Why | None:
    """None when none of its replicas waits for a machine."""
    now = context.engine.clock.now()
    async with context.database.connection() as connection:
        found = await why_of(connection, context.engine.merchant, context.rooms, run.id, now)
    if not found.replicas:
        return None
    replicas = tuple(one.replica for one in found.replicas)
    told = (
        _why(found.why, run.name)
        if found.why is not None
        else _held(run) or Why(sentence=f"{run.name} is being placed at this moment.", code="placing")
    )
    extra = {} if found.gang is None or found.why is None else against(found.gang, found.scene, now)
    next_at = min((one.ready_at for one in found.replicas if one.ready_at is not None), default=None)
    later = found.why is not None and found.why.code is WhyCode.NOT_READY and next_at is not None
    if later and next_at is not None:
        again = f"{run.name} is tried again at {moment(next_at):%H:%M:%S} UTC, after its last try did not go well."
        told = told.model_copy(update={"sentence": again, "code": "later"})
    elif len(replicas) > 1 and found.why is not None:
        said = f"{run.name} waits with {len(replicas)} replicas: {found.why.sentence}."
        told = told.model_copy(update={"sentence": said})
    if later:
        extra = {"next_at": moment_or_none(next_at)}
    return told.model_copy(
        update={
            "replicas": replicas[:MOST_JOBS_SHOWN],
            "replicas_waiting": len(replicas),
            "next": "" if later else SOON,
            **extra,
        }
    )


def against(gang: Gang, seen: Scene, now: float) -> dict[str, Any]:
    """What stands against each offer, and when the first of those that rest is tried again."""
    wish = Wish(tuple(dict.fromkeys(request for _, request in gang.jobs)), gang.whole, gang.project_id, gang.fleets)
    found = appraise(seen.offers, seen.fleets, wish, now)
    told = tuple(
        OfferReason(
            offer=str(one.offer),
            price=one.offer.price,
            penalty=one.penalty,
            sentence=one.against or "would do, but not for all its jobs at once",
        )
        for one in found[:MAX_REASONS]
    )
    next_at = min((one.next_at for one in found if one.next_at is not None), default=None)
    soon = SOON if next_at is None else f"at {moment(next_at):%H:%M:%S} UTC, or {SOON}"
    return {
        "offers": told,
        "more_offers": len(found) - len(told),
        "next_at": moment_or_none(next_at),
        "next": soon,
    }


def _held(run: Listed) -> Why | None:
    """It has no place in the queue, because it has as much as it wants at once."""
    most = json.loads(run.configuration or "{}").get("max_parallel")
    if most is None or not run.tally.starting + run.tally.running:
        return None
    waiting, jobs = run.tally.submitted, run.tally.contributing
    replicas = "1 replica" if most == 1 else f"{most} replicas"
    said = (
        f"{run.name} runs; {waiting} of its {jobs} jobs wait, since max_parallel lets {replicas} on machines at once."
    )
    return Why(sentence=said, code="max_parallel", needs=waiting, has=most, limit="max_parallel")


def _not_waiting(run: Listed, jobs: list[ListedJob]) -> str:
    said = sentence(run)
    if run.finished:
        return f"{run.name} has ended as {run.state}{f': {said}' if said else ''}".rstrip(".") + "."
    if run.state is S.PENDING:
        return f"{run.name} waits: {said}".rstrip(".") + "."
    reserved = any(job.state is J.SUBMITTED and job.instance_id is not None for job in jobs)
    if reserved:
        return f"{run.name} has a machine, which is not up yet{f': {run.trouble}' if run.trouble else '.'}"
    return f"{run.name} has its machine and is {run.state}{f': {said}' if said else ''}".rstrip(".") + "."


def _gang(context: Context, access: Access, configuration: TaskConfiguration) -> Gang:
    """Its first replica."""
    policy, need = to_policy(configuration), Need(first_request(configuration), to_groups(configuration))
    return Gang(
        run_id=RunId(uuid4()),
        replica=0,
        submitted_at=context.engine.clock.now(),
        jobs=tuple((JobId(uuid4()), need.of(node)) for node in range(policy.nodes)),
        whole=policy.nodes > 1,
        priority=policy.priority,
        on_no_capacity=policy.on_no_capacity,
        project_id=access.project_id,
    )


def _told(
    configuration: TaskConfiguration,
    access: Access,
    current: Listed | None,
    gang: Gang,
    plan: CorePlan,
    names: Mapping[InstanceId, str],
) -> Plan:
    places = _places(gang, plan, names)
    left = next((one for one in plan.left if one.run_id == gang.run_id), None)
    name = configuration.name or "it"
    difference = comparison(current, configuration) if current is not None and not current.finished else NOTHING
    if current is not None and not current.finished:
        action, said = _of_unfinished(current, difference)
    elif configuration.schedule is not None:
        action, said = Action.QUEUE, _first_trigger(configuration, gang.submitted_at)
    elif configuration.hold:
        action, said = Action.QUEUE, "It would be held until somebody releases it."
    elif left is None and all(place.instance is not None for place in places):
        action, said = Action.CREATE, f"It would start at once on {_named([place.name for place in places])}."
    elif left is None:
        offers = [place.offer for place in places if place.instance is None]
        new = "A new instance" if len(offers) == 1 else f"{len(offers)} new instances"
        action, said = Action.CREATE, f"{new} would be launched for it: {_named(offers)}."
    elif left.fail_now:
        action, said = Action.FAIL, f"It would fail at once: {left.sentence}."
    else:
        action, said = Action.QUEUE, f"It would wait: {left.sentence}."
    if configuration.replicas > 1:
        said = f"Of its {configuration.replicas} replicas the first is told of. {said}"
    return Plan(
        action=action,
        sentence=said,
        name=configuration.name,
        configuration=without_secrets(to_json(configuration)),
        changes=difference.changes,
        refused=difference.refused,
        places=places,
        why=_why(left, name) if left else None,
        current=view.run_of(current._replace(configuration=None), access) if current else None,
        expected=Expected(id=current.id, version=current.version) if current else None,
    )


def _of_unfinished(current: Listed, difference: Comparison) -> tuple[Action, str]:
    if why := refusal(current, difference):
        return Action.REFUSE, f"It would be refused: {why}."
    if not difference.changes:
        return Action.UNCHANGED, f"{current.name} is {current.state} and is this already."
    return Action.UPDATE, f"{current.name} is {current.state} and would be changed in place."


def _first_trigger(configuration: TaskConfiguration, now: float) -> str:
    schedule = to_policy(configuration).schedule
    at = None if schedule is None else next_after(schedule, now)
    first = "never, as its schedule has no time left" if at is None else f"at {moment(at):%Y-%m-%d %H:%M} UTC"
    return f"It would be started by its schedule, first {first}."


def _named(names: list[str]) -> str:
    """The first few of them, each once."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:MOST_NAMED]) + (f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else "")


def _places(gang: Gang, plan: CorePlan, names: Mapping[InstanceId, str]) -> tuple[Place, ...]:
    ids = {job: node for node, (job, _) in enumerate(gang.jobs)}
    places = [
        Place(
            replica=0,
            node=ids[one.job_id],
            instance=one.instance_id,
            name=names.get(one.instance_id, ""),
            blocks=len(one.blocks),
        )
        for one in plan.assignments
        if one.job_id in ids
    ]
    for launch in plan.launches:
        places += [
            Place(replica=0, node=ids[job], offer=str(launch.offer), blocks=len(blocks))
            for job, blocks in launch.jobs
            if job in ids
        ]
    return tuple(places)


def _why(why: CoreWhy, name: str) -> Why:
    return Why(
        sentence=f"{name} waits: {why.sentence}.",
        code=why.code.value,
        needs=why.needs,
        has=why.has,
        limit=why.limit,
        reasons=tuple(Reason(instance=one.instance_id, name=one.name, sentence=one.sentence) for one in why.reasons),
        more=why.more,
        place=why.place,
        waiting=why.of,
    )
