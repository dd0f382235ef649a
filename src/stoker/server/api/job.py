"""Jobs of a run, every submission of each."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from stoker.core.errors import NotFound, UserError
from stoker.core.job_facts import S
from stoker.server import view
from stoker.server.auth import Member
from stoker.server.error import answered
from stoker.server.parameter import Ctx, Cursor, Limit, RunRef, find_run
from stoker.store import run_list
from stoker.wire.job import Job, JobPage

router = APIRouter(prefix="/projects/{project}/runs/{run}/jobs", tags=["jobs"])


@router.get("", response_model=JobPage)
async def list_jobs(
    context: Ctx,
    access: Member,
    run: RunRef,
    status: Annotated[list[S] | None, Query(description="Only these.")] = None,
    latest: Annotated[bool, Query(description="Of each job only the latest submission.")] = False,
    replica: Annotated[int | None, Query(ge=0, le=1_000_000, description="Only of this replica.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """By replica, node and submission."""
    after = _after(cursor)
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        jobs = await run_list.jobs(
            connection, found.id, limit + 1, after, states=status or (), latest=latest, replica=replica
        )
    last = jobs[:limit][-1] if len(jobs) > limit else None
    following = f"{last.replica}-{last.node}-{last.attempt}" if last else None
    return answered(JobPage(items=tuple(map(view.job_of, jobs[:limit])), next_cursor=following))


@router.get("/{job}", response_model=Job)
async def get_job(
    context: Ctx, access: Member, run: RunRef, job: Annotated[UUID, Path(description="The id of a job.")]
) -> Response:
    async with context.database.connection() as connection:
        found = await find_run(connection, access, run)
        one = await run_list.job(connection, found.id, job)
    if one is None:
        raise NotFound(f"{found.name} has no job {job}.")
    return answered(view.job_of(one))


def _after(cursor: str | None) -> tuple[int, int, int]:
    if cursor is None:
        return -1, -1, -1
    parts = cursor.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        raise UserError("This is no cursor of this list.", hint="Send `next_cursor` of the page before, unchanged.")
    replica, node, attempt = map(int, parts)
    return replica, node, attempt
