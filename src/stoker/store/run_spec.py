"""What runs were asked to be: written together with the run, read by performers and people."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.core.errors import NotFound
from stoker.core.ids import RunId
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection

INSERT = Part(
    "run_spec_insert",
    """
INSERT INTO run_spec (run_id, project_id, name, "user", type, configuration)
SELECT run_id, project_id, name, "user", type, configuration FROM unnest($1::run_spec_row[])
RETURNING 1
""",
    1,
)

GET = """
SELECT spec.run_id, spec.project_id, spec.name, spec."user", spec.type, spec.configuration, project.name AS project
FROM run_spec AS spec JOIN project ON project.id = spec.project_id
WHERE spec.run_id = $1
"""


REVISE = Part(
    "run_spec_revise",
    """
UPDATE run_spec SET configuration = new.configuration FROM unnest($1::run_spec_row[]) AS new
WHERE run_spec.run_id = new.run_id
RETURNING 1
""",
    1,
)


class RunSpec(NamedTuple):
    """`configuration` is JSON, as the wire room writes and reads it."""

    run_id: UUID
    project_id: UUID
    name: str
    user: str
    type: str
    configuration: str


class Order(NamedTuple):
    """The same for those who carry it out."""

    spec: RunSpec
    project: str


def insert(bundle: Bundle, specs: Sequence[RunSpec]) -> None:
    bundle.add(INSERT, [specs])


def revise(bundle: Bundle, specs: Sequence[RunSpec]) -> None:
    """Of runs that were changed in place; the rest of each stays."""
    bundle.add(REVISE, [specs], expected=len(specs))


async def get(tx: Connection, run_id: RunId) -> Order:
    row = await tx.fetchrow(GET, run_id)
    if row is None:
        raise NotFound(f"Nothing is known of what run {run_id} was asked to be.")
    *fields, project = row.values()
    return Order(RunSpec(*fields), project)
