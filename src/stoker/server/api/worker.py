"""Workers of the swarm: they register with a member's token, and speak with their own."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.responses import Response

from stoker.core.errors import NotFound, StokerError, UserError
from stoker.core.fit import Asker
from stoker.core.graph import Held
from stoker.core.ids import TaskId, WorkerId
from stoker.engine.swarm import Heard, Word
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx, Cursor, Limit, id_cursor
from stoker.server.raw_body import body_of, described
from stoker.server.worker_token import Own, OwnOrManager, Speaker, WorkerRef, is_own, token_of
from stoker.store import worker as store
from stoker.store.claim import Ask
from stoker.store.database import Record
from stoker.store.report import End
from stoker.store.sample import Sample
from stoker.store.worker import Profile
from stoker.wire import worker as wire
from stoker.wire.time import moment, moment_or_none

router = APIRouter(prefix="/projects/{project}/workers", tags=["workers"])

BEATS: Final = 6
"""Heartbeats in a lease."""


@router.post("", response_model=wire.Registered, status_code=201)
async def register_worker(context: Ctx, access: Member, body: wire.NewWorker) -> Response:
    now = context.engine.clock.now()
    profile = Profile(
        body.name,
        json.dumps(body.total.amounts),
        body.total.gpus,
        body.group,
        json.dumps(body.labels),
        body.version,
        None if body.time_limit is None else now + body.time_limit,
    )
    await context.engine.swarm.register(WorkerId(body.id), access.project_id, profile)
    lease_s = context.engine.swarm.lease_s
    return answered(
        wire.Registered(
            id=body.id,
            token=token_of(context.secret, access.project, body.id),
            lease_s=lease_s,
            heartbeat_s=lease_s / BEATS,
        ),
        201,
    )


@router.get("", response_model=wire.WorkerPage)
async def list_workers(
    context: Ctx,
    access: Member,
    all: Annotated[bool, Query(description="Also those that left or were lost.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Newest first."""
    before = id_cursor(cursor)
    async with context.database.connection() as connection:
        found = await store.page(connection, access.project_id, before, limit + 1, all=all)
    items = tuple(map(_shown, found[:limit]))
    return answered(wire.WorkerPage(items=items, next_cursor=str(items[-1].id) if len(found) > limit else None))


@router.get("/{worker}", response_model=wire.Worker)
async def get_worker(context: Ctx, access: Member, worker: WorkerRef) -> Response:
    return answered(_shown(await _found(context, access, worker)))


@router.delete("/{worker}", status_code=204)
async def remove_worker(context: Ctx, access: OwnOrManager, worker: WorkerRef) -> Response:
    """By the worker itself: it ends in good order, and what it still holds it did not begin. By a manager, who knows
    that it is gone: what it holds is lost and moves on now, not when its lease is over."""
    if isinstance(access, Access):
        await _found(context, access, worker)
    await context.engine.swarm.leave(WorkerId(worker), lost=isinstance(access, Access))
    return Response(status_code=204)


@router.post("/{worker}/claim", response_model=wire.Claimed, openapi_extra=described(wire.ClaimRequest))
async def claim(context: Ctx, own: Own, request: Request) -> Response:
    """As many tasks as fit. Where there is none, waits for the first."""
    body = await body_of(request, wire.ClaimRequest)
    ask = await _ask(context, own, body)
    said = asyncio.ensure_future(context.engine.muster.say(Word(own.id, ask=ask), body.wait_s))
    if body.wait_s:
        # Nobody must get a task who is not there any more.
        gone = asyncio.ensure_future(_disconnected(request))
        stopping = asyncio.ensure_future(context.stopping.wait())
        await asyncio.wait((said, gone, stopping), return_when=asyncio.FIRST_COMPLETED)
        for other in (gone, stopping):
            other.cancel()
        if not said.done():
            said.cancel()
            return _json('{"tasks":[]}')
    heard = _known(own, await said)
    return _json(f'{{"tasks":[{_works(heard)}]}}')


@router.post("/{worker}/report", response_model=wire.Reported, openapi_extra=described(wire.WorkerReport))
async def report(context: Ctx, own: Own, request: Request) -> Response:
    """Everything that became of its tasks, and, in the same transaction, a claim of the next ones."""
    body = await body_of(request, wire.WorkerReport)
    now = context.engine.clock.now()
    word = Word(
        own.id,
        ends=[_end(one, now) for one in body.ended],
        unstarted=[_held(one) for one in body.given_back],
        started=[(_held(one), now - one.ago_s) for one in body.started],
        samples=[sample for one in body.sampled for sample in _samples(one, now)],
        ask=None if body.claim is None else await _ask(context, own, body.claim),
    )
    heard = _known(own, await context.engine.muster.say(word))
    refused = [
        {"id": str(held.task), "attempt": held.attempt, "state": state and state.value} for held, state in heard.refused
    ]
    return _json(f'{{"refused":{json.dumps(refused)},"tasks":[{_works(heard)}]}}')


@router.post("/{worker}/heartbeat", response_model=wire.Beat, openapi_extra=described(wire.Heartbeat))
async def heartbeat(context: Ctx, own: Own, request: Request) -> Response:
    """Renews the lease: for workers to which no socket can be kept open."""
    return answered(await _beat(context, own.id, await body_of(request, wire.Heartbeat)))


@router.put("/{worker}/tasks/{task}/{attempt}/{stream}", response_model=wire.Kept)
async def keep_output(
    context: Ctx,
    own: Own,
    request: Request,
    task: Annotated[UUID, Path(description="The id of a task in its hands.")],
    attempt: Annotated[int, Path(ge=1, le=2**31 - 1)],
    stream: Literal["stdout", "stderr"],
    offset: Annotated[int, Query(ge=0, le=2**62, description="Of the first byte that is sent.")] = 0,
) -> Response:
    """What a task printed. Bytes that are kept already are skipped; a gap is refused, and says where to go on."""
    async with context.database.connection() as connection:
        if not await store.holds(connection, own.id, Held(TaskId(task), attempt)):
            raise NotFound(f"Task {task} is not in this worker's hands, or not in attempt {attempt}.")
    size = await context.outputs.append(task, attempt, stream, offset, await request.body())
    return answered(wire.Kept(size=size, full=size >= context.outputs.most_bytes))


@router.websocket("/{worker}/socket")
async def socket(websocket: WebSocket, project: str, worker: UUID) -> None:
    """Heartbeats up; their answers, and cancellations as they come, down."""
    context: Context = websocket.app.state.context
    scheme, _, token = websocket.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not is_own(context.secret, project, worker, token.strip()):
        await websocket.close(4401, "This is not the token of this worker.")
        return
    await websocket.accept()
    id = WorkerId(worker)
    with context.sockets.open(id) as line:
        up = asyncio.ensure_future(_up(websocket, context, id))
        down = asyncio.ensure_future(_down(websocket, line.unsent))
        stopping = asyncio.ensure_future(context.stopping.wait())
        done, _ = await asyncio.wait((up, down, stopping), return_when=asyncio.FIRST_COMPLETED)
        for one in (up, down, stopping):
            one.cancel()
        await asyncio.gather(up, down, stopping, return_exceptions=True)
        if stopping in done:
            await websocket.close(1012, "The server stops.")


async def _up(websocket: WebSocket, context: Context, id: WorkerId) -> None:
    try:
        while True:
            text = await websocket.receive_text()
            beat = await _beat(context, id, wire.Heartbeat.model_validate_json(text))
            await websocket.send_text(beat.model_dump_json())
    except WebSocketDisconnect:
        return
    except ValidationError:
        await websocket.close(4422, "This is no heartbeat.")
    except NotFound as error:
        await websocket.close(4404, error.sentence[:100])
    except StokerError as error:
        await websocket.close(1013, error.sentence[:100])


async def _down(websocket: WebSocket, unsent: "asyncio.Queue[list[Held]]") -> None:
    while True:
        helds = await unsent.get()
        cancelled = tuple(wire.Held(id=held.task, attempt=held.attempt) for held in helds)
        await websocket.send_text(wire.Beat(cancelled=cancelled).model_dump_json())


async def _beat(context: Context, id: WorkerId, body: wire.Heartbeat) -> wire.Beat:
    beat = await context.engine.swarm.heartbeat(id, [_held(one) for one in body.held], body.number)
    return wire.Beat(
        cancelled=tuple(wire.Held(id=held.task, attempt=held.attempt) for held in beat.unwanted),
        gone=tuple(wire.Held(id=held.task, attempt=held.attempt) for held in beat.gone),
        renewed=True,
    )


async def _ask(context: Context, own: Speaker, claim: wire.Claim) -> Ask:
    known = await context.rosters.of(own.id)
    return Ask(
        own.id,
        claim.number,
        Asker(known.total, claim.room.to_room(), claim.most, claim.ahead, known.group),
        claim.time_left,
    )


def _known(own: Speaker, heard: Heard) -> Heard:
    if not heard.known:
        raise store.unknown(own.id)
    return heard


def _works(heard: Heard) -> str:
    return ",".join([work.to_json() for work in heard.works])


def _held(one: wire.Held) -> Held:
    return Held(TaskId(one.id), one.attempt)


def _end(one: wire.Ended, now: float) -> End:
    ended = now - one.ago_s
    return End(
        _held(one),
        one.exit_status,
        one.stopped,
        None if one.ran_s is None else ended - one.ran_s,
        ended,
        one.cpu_s,
        one.memory_bytes,
        one.message,
        one.result,
        _bytes(one.stdout),
        _bytes(one.stderr),
    )


def _bytes(text: str | None) -> bytes:
    try:
        return b64decode(text, validate=True) if text else b""
    except ValueError:
        raise UserError("The output of a task is not base64.") from None


def _samples(one: wire.Sampled, now: float) -> Iterable[Sample]:
    seen = {"memory": one.memory_bytes, "cpu": one.cpus, "gpu": one.gpu}
    return [Sample(_held(one), name, now - one.ago_s, value) for name, value in seen.items() if value is not None]


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _found(context: Context, access: Access, worker: UUID) -> Record:
    async with context.database.connection() as connection:
        found = await store.get(connection, WorkerId(worker))
    if found is None or found["project_id"] != access.project_id:
        raise NotFound(f"There is no worker {worker} in project {access.project}.", hint="`stoker workers` lists them.")
    return found


def _shown(row: Record) -> wire.Worker:
    state = wire.WorkerState.LEFT if row["left_at"] else wire.WorkerState.LOST if row["lost_at"] else None
    fields: dict[str, Any] = {"gpus": len(row["gpus"]), "group": row["group_name"], "labels": json.loads(row["labels"])}
    return wire.Worker(
        id=row["id"],
        name=row["name"],
        state=state or wire.WorkerState.ACTIVE,
        total=json.loads(row["total"]),
        running=row["running"],
        version=row["version"],
        created_at=moment(row["created_at"]),
        seen_at=moment(row["seen_at"]),
        ends_at=moment_or_none(row["ends_at"]),
        **fields,
    )
