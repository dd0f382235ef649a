"""What swarm tasks printed, byte for byte."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from stoker.core.errors import NotFound
from stoker.core.ids import TaskId
from stoker.server.api.task import TaskRef
from stoker.server.auth import Member
from stoker.server.parameter import Ctx
from stoker.store import task_list
from stoker.store.output import PIECE_BYTES
from stoker.wire.runner import Header

router = APIRouter(prefix="/projects/{project}/tasks/{task}/logs", tags=["tasks"])

SHORT: Final = "SELECT stdout, stderr FROM task_output WHERE task_id = $1 AND attempt = $2"
_BYTES: Final = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


@router.get("", response_class=Response, responses=_BYTES)  # type: ignore[arg-type]
async def task_log(
    context: Ctx,
    access: Member,
    task: TaskRef,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The latest unless it is said.")] = None,
    stream: Annotated[Literal["stdout", "stderr"], Query(description="Which of the two.")] = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**62, description="Of the first byte that is wanted.")] = 0,
    limit: Annotated[int, Query(ge=1, le=PIECE_BYTES, description="How many bytes at most.")] = PIECE_BYTES,
) -> Response:
    """From `offset` on. `Stoker-Next-Offset` says where to go on, `Stoker-Log-Complete` whether nothing more comes."""
    id = TaskId(task)
    async with context.database.connection() as connection:
        if await task_list.get(connection, access.project_id, id) is None:
            raise NotFound(f"There is no task {task} in project {access.project}.")
        attempts = {row["attempt"]: row for row in await task_list.history(connection, id)}
        number = attempt or max(attempts, default=0)
        short = await connection.fetchrow(SHORT, id, number)
    if attempt is not None and attempt not in attempts:
        raise NotFound(f"Task {task} had no attempt {attempt}.", hint="GET …/history lists those it had.")
    kept = await context.outputs.read(id, number, stream, offset, limit) if number else None
    if kept is None:
        kept = (short[stream] if short else b"")[offset : offset + limit]
    over = number not in attempts or attempts[number]["outcome"] is not None
    complete = over and len(kept) < limit
    headers: dict[str, str] = {Header.NEXT: str(offset + len(kept)), Header.COMPLETE: "true" if complete else "false"}
    return Response(kept, media_type="application/octet-stream", headers=headers)
