"""The dummy backend: what it sells, which machines there are, and what is to happen to them. For admins of the server,
since its machines run jobs of all projects."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from stoker.backends.dummy.kind import Kind
from stoker.backends.dummy.machine import Machine as Record
from stoker.backends.dummy.steering import Steering
from stoker.core.errors import NotFound
from stoker.server import view
from stoker.server.auth import ServerAdmin
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx, NameRef
from stoker.wire.dummy import Behaviour, Disk, DiskBehaviour, DiskList, Machine, MachineList, Offer, OfferList, Preempt
from stoker.wire.time import moment, moment_or_none

router = APIRouter(prefix="/dummy", tags=["dummy"])

MachineRef = Annotated[str, Path(description="The name or the id of a machine.", examples=["dummy-9c41ab"])]
Location = Annotated[str | None, Query(max_length=100, description="Only there.", examples=["here"])]
Spot = Annotated[bool | None, Query(description="Only spot machines, or only those on demand.")]


@router.get("/offers", response_model=OfferList)
async def list_dummy_offers(context: Ctx, caller: ServerAdmin) -> Response:
    steering = _steering(context)
    return answered(OfferList(items=tuple(_offer(kind, steering) for kind in steering.dummy.kinds.values())))


@router.patch("/offers/{name}", response_model=OfferList)
async def change_dummy_offer(
    context: Ctx, caller: ServerAdmin, name: NameRef, body: Behaviour, location: Location = None, spot: Spot = None
) -> Response:
    """Until it is changed again or reset, also after a restart. Answers with the offers that were changed."""
    steering = _steering(context)
    changed = steering.change(name, location, spot, body)
    return answered(OfferList(items=tuple(_offer(kind, steering) for kind in changed)))


@router.delete("/changes", status_code=204)
async def reset_dummy_offers(context: Ctx, caller: ServerAdmin) -> Response:
    """All offers are again what backends.yml says."""
    _steering(context).reset()
    return Response(status_code=204)


@router.get("/machines", response_model=MachineList)
async def list_dummy_machines(context: Ctx, caller: ServerAdmin) -> Response:
    steering = _steering(context)
    return answered(MachineList(items=tuple(_machine(one, steering) for one in steering.dummy.machines.values())))


@router.post("/machines/{machine}/preempt", status_code=204)
async def preempt_dummy_machine(context: Ctx, caller: ServerAdmin, machine: MachineRef, body: Preempt) -> Response:
    """Its provider takes it back: after the notice, or at once and without a word."""
    steering = _steering(context)
    steering.preempt(steering.machine(machine), body.notice)
    return Response(status_code=204)


@router.post("/machines/{machine}/vanish", status_code=204)
async def vanish_dummy_machine(context: Ctx, caller: ServerAdmin, machine: MachineRef) -> Response:
    """It is gone, with everything that ran on it."""
    steering = _steering(context)
    await steering.vanish(steering.machine(machine))
    return Response(status_code=204)


@router.post("/machines/{machine}/hang", status_code=204)
async def hang_dummy_machine(context: Ctx, caller: ServerAdmin, machine: MachineRef) -> Response:
    """Its agent does not answer any more; what it runs goes on."""
    steering = _steering(context)
    await steering.hang(steering.machine(machine), on=True)
    return Response(status_code=204)


@router.post("/machines/{machine}/resume", status_code=204)
async def resume_dummy_machine(context: Ctx, caller: ServerAdmin, machine: MachineRef) -> Response:
    """One that hangs answers again."""
    steering = _steering(context)
    await steering.hang(steering.machine(machine), on=False)
    return Response(status_code=204)


@router.get("/disks", response_model=DiskList)
async def list_dummy_disks(context: Ctx, caller: ServerAdmin) -> Response:
    """Its disks, which are the volumes of kind dummy, and how they behave."""
    return answered(_disks(_steering(context)))


@router.patch("/disks", response_model=DiskList)
async def change_dummy_disks(context: Ctx, caller: ServerAdmin, body: DiskBehaviour) -> Response:
    """Until it is changed again or reset, also after a restart."""
    steering = _steering(context)
    steering.dummy.disks.steer(body)
    return answered(_disks(steering))


def _disks(steering: Steering) -> DiskList:
    disks = steering.dummy.disks
    items = [
        Disk(id=id, name=disks.name(id), status=disks.status(one), machine=disks.machine(one))
        for id, one in disks.disks.items()
    ]
    manner = disks.manner
    behaviour = DiskBehaviour(
        provision_delay=manner.provision_delay_s, detach_delay=manner.detach_delay_s, stuck=manner.stuck,
        refuse=manner.refuse,
    )  # fmt: skip
    return DiskList(behaviour=behaviour, items=tuple(items))


def _steering(context: Context) -> Steering:
    if context.dummy is None:
        raise NotFound("This server has no dummy backend.")
    return context.dummy


def _offer(kind: Kind, steering: Steering) -> Offer:
    return Offer(
        name=kind.key.name,
        location=kind.key.location,
        spot=kind.key.spot,
        resources=view.resources_of(kind.capacity),
        price=kind.price,
        capacity=kind.room,
        machines=steering.dummy.count(kind.key),
        real=kind.real,
        launch_delay=kind.launch_delay_s,
        answer_delay=kind.answer_delay_s,
        destroy_delay=kind.destroy_delay_s,
        preempt_after=kind.preempt_after_s,
        preempt_notice=kind.preempt_notice_s,
        lie=kind.lie,
    )


def _machine(one: Record, steering: Steering) -> Machine:
    return Machine(
        id=one.id,
        name=one.name,
        offer=one.key.name,
        location=one.key.location,
        spot=one.key.spot,
        real=one.real,
        status=steering.status(one),
        ip=one.ip,
        tasks=steering.dummy.tasks(one),
        created_at=moment(one.created_at),
        taken_at=moment_or_none(one.taken_at),
    )
