"""What placement would do now, for people who ask: nothing is changed, and nobody waits for the answer."""

from collections import Counter
from collections.abc import Container, Sequence

from stoker.core.gang import Gang
from stoker.core.ids import RunId
from stoker.core.limits import MOST_GANGS
from stoker.core.placement import Plan, plan
from stoker.engine.placement import WAITING, Merchant, _gang, _left, _room
from stoker.store import instance as instance_store
from stoker.store.database import Connection


async def look(
    tx: Connection, merchant: Merchant, now: float, *, besides: Sequence[Gang] = (), detail: Container[RunId] = ()
) -> Plan:
    """The plan of the next pass; `besides` are gangs that do not exist yet, `detail` names runs to be told more of."""
    gangs = [*map(_gang, await tx.fetch(WAITING, MOST_GANGS)), *besides]
    seen = await instance_store.unfinished(tx)
    market = merchant.market(now)
    nodes = Counter(one.instance.fleet_id for one in seen)
    fleets = [_left(fleet, nodes[fleet.fleet_id]) for fleet in market.fleets]
    return plan(gangs, map(_room, seen), market.offers, fleets, now=now, detail=detail)
