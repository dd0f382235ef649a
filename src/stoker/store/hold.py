"""Runs with their jobs and instances, locked for one batch of changes: loaded, or compared with what is remembered."""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import InstanceId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.job_facts import Job
from stoker.core.run_facts import Run
from stoker.store import instance, job, run
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection


class Held(NamedTuple):
    runs: dict[RunId, Run]
    """Those that are free; one that another commit holds is left out."""
    jobs: list[Job]
    """Every latest and every unfinished submission of the runs that are loaded whole."""
    instances: dict[InstanceId, Instance] | None
    """Those asked for, and those that the jobs may give back. None: a run is not whole, so lock them at the end."""
    present: frozenset[UUID]
    """Of the births and of the runs that are not here: those that exist."""


STILL = Part("still", "SELECT still($1, $2, $3, $4) AS so", 4, answer="bool_and(so)", first=True)


def still(bundle: Bundle, runs: Collection[Run], instances: Collection[Instance]) -> None:
    """Locks them before anything of the bundle is written, and fails all of it when one is not as it is given."""
    if runs or instances:
        known = ([one.id for one in runs], [one.version for one in runs])
        bundle.add(STILL, [*known, [one.id for one in instances], [one.version for one in instances]])


async def hold(
    tx: Connection, runs: Collection[RunId], instances: Collection[InstanceId], births: Collection[UUID]
) -> Held:
    row = await tx.fetchrow("SELECT * FROM hold($1, $2, $3)", runs, instances, births)
    assert row is not None
    held = {one.id: one for one in map(run.read, row["runs"])}
    return Held(
        held,
        [job.read(one, held[one["run_id"]].policy) for one in row["jobs"]],
        None if row["instances"] is None else {one.id: one for one in map(instance.read, row["instances"])},
        frozenset(row["present"] or ()),
    )
