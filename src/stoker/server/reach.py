"""Whether the fleets could ever bring together what is asked for: refused at once where none could, by its limit."""

from collections.abc import Sequence
from typing import Final

from stoker.core.fleet import largest_below
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.store import fleet
from stoker.wire.configuration import TaskConfiguration
from stoker.wire.group import nodes_of
from stoker.wire.model import Invalid, Problem

HINT: Final = "Ask for fewer nodes, or for a larger fleet."


async def check_reach(context: Context, access: Access, configurations: Sequence[TaskConfiguration]) -> None:
    """Where there is no fleet yet it may wait for one."""
    several = [one for one in configurations if nodes_of(one) > 1]
    if not several:
        return
    async with context.database.connection() as connection:
        reaches = await fleet.reaches(connection, access.project_id)
    for one in several:
        usable = [reach for reach in reaches if one.fleets is None or reach.name in one.fleets]
        if (below := largest_below(nodes_of(one), usable)) is not None:
            where = f"the largest, {below.name}, has" if below.name else "none has"
            message = f"a replica needs {nodes_of(one)} whole instances of one fleet, and {where} at most {below.most}"
            problem = Problem(key="groups" if one.groups else "nodes", message=message, hint=HINT)
            raise Invalid([problem], code="nodes")
