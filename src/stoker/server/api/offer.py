"""What could be had: machines that could be launched, beside those that are there."""

from collections.abc import Mapping
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.ids import FleetId
from stoker.core.limits import MOST_ITEMS
from stoker.core.market import Appraisal, Candidate, Wish, appraise, candidates
from stoker.core.need import Need
from stoker.engine.outlook import scene
from stoker.server import view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.fleet import check_fleets
from stoker.server.parameter import Ctx, Limit
from stoker.store import fleet as fleet_store
from stoker.wire import offer as wire
from stoker.wire.configuration import complete, to_policy
from stoker.wire.group import first_request, to_groups

router = APIRouter(prefix="/projects/{project}/offers", tags=["offers"])


@router.get("", response_model=wire.OfferList)
async def list_offers(context: Ctx, access: Member, limit: Limit = 50) -> Response:
    """All machines that could be launched, cheapest first, and why others could not."""
    return answered(await _told(context, access, Wish((), project_id=access.project_id), limit))


@router.post("", response_model=wire.OfferList)
async def offers_for(context: Ctx, access: Member, body: wire.OfferRequest, limit: Limit = 50) -> Response:
    """Those that would do for this configuration, and what stands against the others."""
    configuration = complete(body.configuration)
    policy, need = to_policy(configuration), Need(first_request(configuration), to_groups(configuration))
    wish = Wish(
        tuple(dict.fromkeys(need.of(node) for node in range(policy.nodes))), policy.nodes > 1, access.project_id
    )
    async with context.database.connection() as connection:
        await check_fleets(connection, access, [configuration])
    return answered(await _told(context, access, wish, limit, policy.fleets))


async def _told(
    context: Context, access: Access, wish: Wish, limit: int, may_use: tuple[str, ...] | None = None
) -> wire.OfferList:
    now = context.engine.clock.now()
    async with context.database.connection() as connection:
        seen, usable = await scene(connection, context.engine.merchant, context.rooms, now, may_use, access.project_id)
        fleets = await fleet_store.page(connection, access.project_id, now, UUID(int=0), MOST_ITEMS)
    names = {fleet.id: fleet.name for fleet in fleets}
    wish = wish._replace(fleets=usable.fleets)
    # What fits comes first: who asks for fifty wants those that they can have.
    found = sorted(appraise(seen.offers, seen.fleets, wish, now), key=lambda one: bool(one.against))
    there = sorted(candidates(seen.rooms, wish), key=lambda one: bool(one.against))
    return wire.OfferList(
        items=tuple(_offer(one, names) for one in found[:limit]),
        more=max(0, len(found) - limit),
        fitting=sum(not one.against for one in found),
        instances=tuple(map(_candidate, there[:limit])),
        more_instances=max(0, len(there) - limit),
    )


def _offer(one: Appraisal, names: Mapping[FleetId, str]) -> wire.Offer:
    offer = one.offer
    return wire.Offer(
        backend=offer.backend,
        name=offer.name,
        location=offer.location,
        resources=view.resources_of(offer.capacity),
        blocks=offer.blocks,
        spot=offer.spot,
        price=offer.price,
        available=offer.available,
        penalty=one.penalty,
        fleets=tuple(names[id] for id in one.fleets if id in names),
        fits=not one.against,
        sentence=one.against,
    )


def _candidate(one: Candidate) -> wire.Candidate:
    return wire.Candidate(
        instance=one.room.id, name=one.room.name or str(one.room.id), fits=not one.against, sentence=one.against
    )
