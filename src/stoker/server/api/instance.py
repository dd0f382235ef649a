"""Instances that a project may use: look, cordon, drain, delete."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.ids import instance_name
from stoker.core.instance_facts import LIVE, CordonAsked, DeleteAsked, Destroyed, DrainAsked, S
from stoker.core.instance_facts import Instance as InstanceRecord
from stoker.core.limits import MOST_DURATION_S, MOST_JOBS_SHOWN
from stoker.core.machine import Event
from stoker.core.phrase import counted
from stoker.core.route import SSH
from stoker.engine.change import Change, of_instance
from stoker.engine.hint import ERRANDS
from stoker.server import view
from stoker.server.auth import Access, Manager, Member
from stoker.server.context import Context
from stoker.server.doors import places_of
from stoker.server.error import answered
from stoker.server.fleet import may_manage
from stoker.server.parameter import Ctx, Cursor, Limit, id_cursor, id_of
from stoker.store import instance as store
from stoker.store import ssh as ssh_store
from stoker.store import volume as volume_store
from stoker.store.database import Connection
from stoker.transport.ssh import fingerprint
from stoker.wire.instance import Drain, HostKey, HostKeys, Instance, InstancePage, Trust
from stoker.wire.name import NAME, is_name

router = APIRouter(prefix="/projects/{project}/instances", tags=["instances"])

InstanceRef = Annotated[str, Path(description="The name or the id of an instance.", examples=["local-9c41ab"])]


@router.get("", response_model=InstancePage)
async def list_instances(
    context: Ctx,
    access: Member,
    finished: Annotated[bool, Query(description="Also those that are gone.")] = False,
    fleet: Annotated[str | None, Query(pattern=NAME, description="Only of the fleet of this name.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    after, now = id_cursor(cursor) or UUID(int=0), context.engine.clock.now()
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, after, finished, limit + 1, fleet)
        told = await _told(connection, found)
    items = tuple(view.instance_of(one, now, told=told) for one in found[:limit])
    return answered(InstancePage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.get("/{instance}", response_model=Instance)
async def get_instance(context: Ctx, access: Member, instance: InstanceRef) -> Response:
    """With the jobs of this project that are on it."""
    return answered(await _shown(context, access, instance))


@router.post("/{instance}/cordon", response_model=Instance)
async def cordon_instance(context: Ctx, access: Manager, instance: InstanceRef) -> Response:
    """No new jobs are placed on it; those that are there stay."""
    return await _asked(context, access, instance, "cordon", CordonAsked(True, by=access.user))


@router.post("/{instance}/uncordon", response_model=Instance)
async def uncordon_instance(context: Ctx, access: Manager, instance: InstanceRef) -> Response:
    """It takes jobs again; a drain that has not come to its end is called off."""
    return await _asked(context, access, instance, "uncordon", CordonAsked(False, by=access.user))


@router.post("/{instance}/drain", response_model=Instance)
async def drain_instance(context: Ctx, access: Manager, instance: InstanceRef, body: Drain | None = None) -> Response:
    """No new jobs; it goes when the last one has ended, and at the deadline in any case; the last word counts."""
    async with context.database.connection() as connection:
        one = (await find_instance(connection, access, instance)).instance
    await _check_home(context, one)
    within_s = (body or Drain()).deadline
    at = context.engine.clock.now() + (MOST_DURATION_S if within_s is None else within_s)
    return await _asked(context, access, instance, "drain", DrainAsked(at, by=access.user))


@router.delete("/{instance}", response_model=Instance)
async def delete_instance(
    context: Ctx,
    access: Manager,
    instance: InstanceRef,
    force: Annotated[
        bool,
        Query(description="Interrupt what runs on it. Of a host out of reach that is leaving: take it for gone."),
    ] = False,
) -> Response:
    """Destroys the machine; of a host of the user's, what we run there. Refused while jobs are on it, unless forced."""
    async with context.database.connection() as connection:
        one = (await find_instance(connection, access, instance)).instance
    # A machine may run its first job before it was heard to be up.
    if one.state in (S.PROVISIONING, S.BUSY) and one.blocks.held and not force:
        raise Conflict(
            f"{counted(len(one.blocks.held), 'job')} on {instance_name(one.backend, one.id)}.",
            hint="Drain it, or interrupt them with --force.",
            code="busy",
        )
    if not force:
        await _check_home(context, one)
    event: Event = DeleteAsked(force, by=access.user)
    if force and one.owned and one.state is S.TERMINATING and await _out_of_reach(context, one):
        # Nobody can look any more; whoever forces it says that nothing of ours is left there.
        event = Destroyed(by=access.user)
    return await _asked(context, access, instance, "delete", event)


@router.get("/{instance}/keys", response_model=HostKeys)
async def host_keys(context: Ctx, access: Member, instance: InstanceRef) -> Response:
    """The host keys by which it, and the gate before it, are known; and others that they show now."""
    async with context.database.connection() as connection:
        pins = await _pins(connection, access, instance)
    return answered(HostKeys(items=tuple(map(_key_of, pins.items()))))


@router.post("/{instance}/trust", response_model=HostKeys)
async def trust_instance(context: Ctx, access: Manager, instance: InstanceRef, body: Trust) -> Response:
    """Takes the key that a host shows now for its own: it was set up anew, or somebody stands between."""
    async with context.database.transaction() as tx:
        found = await find_instance(tx, access, instance)
        may_manage(access, found.project_id, f"trust the host of instance {instance}")
        pin = (await _pins(tx, access, instance)).get(body.place)
        if pin is None or not pin.offered or fingerprint(pin.offered) != body.fingerprint:
            raise Conflict(
                f"{body.place} does not show the key {body.fingerprint} now.",
                hint=f"`stoker instance trust {instance}` shows what it shows.",
                code="changed",
            )
        await ssh_store.repin(tx, body.place, pin.offered, context.engine.clock.now())
        pins = await _pins(tx, access, instance)
        if found.instance.fleet_id is not None:
            await ssh_store.hurry(tx, found.instance.fleet_id, context.engine.clock.now())
        context.doors.revision += 1
    context.engine.tell(ERRANDS)
    return answered(HostKeys(items=tuple(map(_key_of, pins.items()))))


async def _pins(tx: Connection, access: Access, instance: str) -> dict[str, ssh_store.Pin]:
    found = await find_instance(tx, access, instance)
    host = await ssh_store.get(tx, found.instance.id)
    if host is None:
        name = instance_name(found.instance.backend, found.instance.id)
        raise UserError(f"{name} is not reached by SSH.", hint="Only hosts that a fleet names have host keys.")
    return await ssh_store.pins(tx, places_of(host.route))


def _key_of(pinned: tuple[str, ssh_store.Pin]) -> HostKey:
    place, pin = pinned
    return HostKey(
        place=place, fingerprint=fingerprint(pin.key), offered=fingerprint(pin.offered) if pin.offered else ""
    )


async def _out_of_reach(context: Context, one: InstanceRecord) -> bool:
    if one.unreachable_since is not None:
        return True
    async with context.database.connection() as connection:
        told = (await ssh_store.told(connection, [one.id])).get(one.id)
    return told is not None and bool(told.trouble)


async def _check_home(context: Context, one: InstanceRecord) -> None:
    """It goes with what is in the volumes on it."""
    async with context.database.connection() as connection:
        homes = await volume_store.homes(connection, one.id)
    if (volume := homes.get(one.id)) is not None and one.state in LIVE:
        raise Conflict(
            f"Volume {volume} is on {instance_name(one.backend, one.id)}, and would be lost with it.",
            hint="`stoker instance cordon` keeps jobs away; `stoker volume delete`, or `stoker instance delete "
            "--force`, loses what is in it.",
            code="volumes",
        )


async def _asked(context: Context, access: Access, instance: str, what: str, event: Event) -> Response:
    async with context.database.connection() as connection:
        found = await find_instance(connection, access, instance)
    id = found.instance.id
    may_manage(access, found.project_id, f"{what} instance {instance_name(found.instance.backend, id)}")
    await context.engine.commit(Change(facts=(of_instance(id, event),)))
    return answered(await _shown(context, access, str(id)))


async def _shown(context: Context, access: Access, instance: str) -> Instance:
    async with context.database.connection() as connection:
        found = await find_instance(connection, access, instance)
        jobs = await store.tenants(connection, found.instance, access.project_id, MOST_JOBS_SHOWN)
        told = await _told(connection, [found])
    return view.instance_of(found, context.engine.clock.now(), jobs, told)


async def _told(tx: Connection, found: Sequence[store.Shown]) -> dict[UUID, ssh_store.Told]:
    hosts = [one.instance.id for one in found if one.instance.backend == SSH]
    return await ssh_store.told(tx, hosts) if hosts else {}


async def find_instance(tx: Connection, access: Access, ref: str) -> store.Shown:
    """By name or by id."""
    if id := id_of(ref):
        one = await store.visible(tx, access.project_id, id)
        found = [one] if one else []
    else:
        found = await store.named(tx, access.project_id, ref) if is_name(ref) else []
    if not found:
        raise NotFound(f"There is no instance {ref[:63]}.", hint="`stoker instances` lists them.")
    if len(found) > 1:
        ids = ", ".join(str(one.instance.id) for one in found)
        raise Conflict(f"{ref} is the name of {len(found)} instances.", hint=f"Say which: {ids}.", code="ambiguous")
    return found[0]
