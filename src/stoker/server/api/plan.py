"""What would happen, and why something does not."""

from collections.abc import Mapping
from uuid import uuid4

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.gang import Gang
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.job_facts import S as J
from stoker.core.limits import MOST_JOBS_SHOWN
from stoker.core.placement import Plan as CorePlan
from stoker.core.why import Why as CoreWhy
from stoker.engine.outlook import look
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx, RunRef, find_run
from stoker.server.sentence import sentence
from stoker.store import instance, run_list
from stoker.store.run_list import Listed, ListedJob
from stoker.wire.configuration import TaskConfiguration, complete, to_json, to_policy, to_request
from stoker.wire.plan import Action, Place, Plan, PlanRequest
from stoker.wire.run import Expected, Reason, Why

router = APIRouter(prefix="/projects/{project}/runs", tags=["runs"])


@router.post("/plan", response_model=Plan)
async def plan_run(context: Ctx, access: Member, body: PlanRequest) -> Response:
    """What would happen if this were submitted now: where its jobs would go, or why they would wait."""
    configuration = complete(body.configuration)
    gang = _gang(context, access, configuration)
    async with context.database.connection() as connection:
        current = None
        if configuration.name is not None:
            current = await run_list.latest(connection, access.project_id, configuration.name)
        now = context.engine.clock.now()
        found = await look(connection, context.engine.merchant, now, besides=[gang], detail={gang.run_id})
        mine = {job for job, _ in gang.jobs}
        names = await instance.names(connection, {one.instance_id for one in found.assignments if one.job_id in mine})
    return answered(_told(configuration, access, current, gang, found, names))


@router.get("/{run}/why", response_model=Why)
async def why(context: Ctx, access: Member, run: RunRef) -> Response:
    """Why it waits; computed now."""
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        jobs = await run_list.jobs(connection, found.id, MOST_JOBS_SHOWN)
    waiting = [job for job in jobs if job.state is J.SUBMITTED and job.instance_id is None]
    if found.finished or not waiting:
        return answered(Why(sentence=_not_waiting(found, jobs), code="not_waiting"))
    return answered(await _waiting(context, found))


async def _waiting(context: Context, run: Listed) -> Why:
    now = context.engine.clock.now()
    async with context.database.connection() as connection:
        found = await look(connection, context.engine.merchant, now, detail={run.id})
    left = next((one for one in found.left if one.run_id == run.id), None)
    if left is None:
        return Why(sentence=f"{run.name} is being placed at this moment.", code="placing")
    return _why(left, run.name)


def _not_waiting(run: Listed, jobs: list[ListedJob]) -> str:
    said = sentence(run)
    if run.finished:
        return f"{run.name} has ended as {run.state}{f': {said}' if said else ''}".rstrip(".") + "."
    reserved = any(job.state is J.SUBMITTED and job.instance_id is not None for job in jobs)
    if reserved:
        return f"{run.name} has a machine, which is not up yet{f': {run.trouble}' if run.trouble else '.'}"
    return f"{run.name} has its machine and is {run.state}{f': {said}' if said else ''}".rstrip(".") + "."


def _gang(context: Context, access: Access, configuration: TaskConfiguration) -> Gang:
    policy = to_policy(configuration)
    return Gang(
        run_id=RunId(uuid4()),
        replica=0,
        submitted_at=context.engine.clock.now(),
        jobs=((JobId(uuid4()), to_request(configuration)),),
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
    if current is not None and not current.finished:
        action, said = Action.REFUSE, f"It would be refused: a run named {current.name} is {current.state}."
    elif left is None and places and places[0].instance is not None:
        action, said = Action.CREATE, f"It would start at once on {places[0].name}."
    elif left is None:
        action, said = Action.CREATE, f"A new instance would be launched for it: {places[0].offer if places else ''}."
    elif left.fail_now:
        action, said = Action.FAIL, f"It would fail at once: {left.sentence}."
    else:
        action, said = Action.QUEUE, f"It would wait: {left.sentence}."
    return Plan(
        action=action,
        sentence=said,
        name=configuration.name,
        configuration=to_json(configuration),
        places=places,
        why=_why(left, name) if left else None,
        current=view.run_of(current._replace(configuration=None), access) if current else None,
        expected=Expected(id=current.id, version=current.version) if current else None,
    )


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
