"""A server for workers that does as a test says: it loses answers, goes away, forgets, takes things back.

It speaks the models of the wire, hands out with the plan of the real one, and remembers all that it was told.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from aiohttp import WSMsgType, web

from stoker.core.fit import Asker, Candidate, Kind, Room, plan_claims
from stoker.wire.worker import (
    Beat,
    Claim,
    ClaimRequest,
    Ended,
    Heartbeat,
    Held,
    NewWorker,
    Registered,
    Sampled,
    Started,
    WorkerReport,
)

Key = tuple[UUID, int]


class FakeServer:
    def __init__(self, lease_s: float = 60.0, heartbeat_s: float = 10.0) -> None:
        self.lease_s, self.heartbeat_s = lease_s, heartbeat_s
        self.url = ""
        self.available: list[dict[str, Any]] = []
        self.held: dict[Key, UUID] = {}
        self.workers: list[NewWorker] = []
        self.ended: dict[Key, Ended] = {}
        self.started: dict[Key, Started] = {}
        self.given_back: list[Key] = []
        self.sampled: list[Sampled] = []
        self.heartbeats: list[Heartbeat] = []
        self.outputs: dict[tuple[UUID, int, str], bytearray] = {}
        self.left: list[UUID] = []
        self.log: list[str] = []
        """The kinds of requests, in their order."""
        self.away = False
        self.without_sockets = False
        self.forgotten: set[UUID] = set()
        self.taken_away: set[Key] = set()
        self.cancelled: set[Key] = set()
        self.generous = 0
        """So many more than fit are handed out with each claim."""
        self.lose_answers = 0
        """Of so many reports: what they say is taken, and the answer is lost."""
        self._sockets: dict[UUID, web.WebSocketResponse] = {}
        self._woken = asyncio.Event()
        self._polls: dict[UUID, int] = {}

    def add(self, command: Any, *, attempt: int = 1, grace_s: float = 10.0, wants: Any = None, **detail: Any) -> Key:
        id = uuid4()
        self.available.append(
            {
                "id": str(id),
                "attempt": attempt,
                "command": command,
                "requested_resources": {"cpus": 1} if wants is None else wants,
                "max_termination_time": grace_s,
                "detail": detail,
            }
        )
        self._woken.set()
        return id, attempt

    async def cancel(self, key: Key) -> None:
        self.cancelled.add(key)
        worker = self.held[key]
        if worker in self._sockets:
            await self._sockets[worker].send_str(Beat(cancelled=(_held(key),)).model_dump_json())

    def output(self, key: Key, stream: str = "stdout") -> bytes:
        return bytes(self.outputs.get((*key, stream), b""))

    def cut_sockets(self) -> None:
        for socket in self._sockets.values():
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    def give(self, worker: UUID, claim: Claim) -> list[dict[str, Any]]:
        room = claim.room.to_room()
        kinds = {
            place: Kind((one["requested_resources"], *one["detail"].get("alternatives", ())))
            for place, one in enumerate(self.available)
        }
        candidates = [Candidate(place, place) for place in kinds]
        total = next(one.total for one in self.workers if one.id == worker).to_room()
        (given,) = plan_claims(
            [Asker(total, room, claim.most + self.generous, claim.ahead + self.generous)], candidates, kinds
        )
        taken = [self.available[one.task] for one in given]
        self.available = [one for one in self.available if one not in taken]
        for one in taken:
            self.held[UUID(one["id"]), one["attempt"]] = worker
        return taken

    async def register(self, request: web.Request) -> web.Response:
        body = NewWorker.model_validate_json(await request.read())
        self.workers.append(body)
        return _json(
            Registered(id=body.id, token=f"stw_{body.id}", lease_s=self.lease_s, heartbeat_s=self.heartbeat_s), 201
        )

    async def claim(self, request: web.Request) -> web.Response:
        worker = self.speaker(request)
        body = ClaimRequest.model_validate_json(await request.read())
        self._polls[worker] = body.number
        deadline = asyncio.get_running_loop().time() + body.wait_s
        while not (tasks := self.give(worker, body)):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0 or self._polls[worker] != body.number or self.away:
                break
            self._woken.clear()
            try:
                await asyncio.wait_for(self._woken.wait(), min(left_s, 0.5))
            except TimeoutError:
                continue
        return web.json_response({"tasks": tasks})

    async def report(self, request: web.Request) -> web.Response:
        worker = self.speaker(request)
        body = WorkerReport.model_validate_json(await request.read())
        refused = []
        for one in (*body.ended, *body.given_back):
            key = (one.id, one.attempt)
            if self.held.get(key) != worker or key in self.taken_away:
                refused.append({"id": str(one.id), "attempt": one.attempt, "state": "available"})
                continue
            del self.held[key]
            if isinstance(one, Ended):
                assert key not in self.ended, "it ended twice"
                self.ended[key] = one
            else:
                self.given_back.append(key)
        self.started |= {(one.id, one.attempt): one for one in body.started}
        self.sampled += body.sampled
        tasks = []
        if body.claim is not None:
            self._polls[worker] = body.claim.number
            self._woken.set()
            tasks = self.give(worker, body.claim)
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"refused": refused, "tasks": tasks})

    async def heartbeat(self, request: web.Request) -> web.Response:
        return _json(self.beat(self.speaker(request), Heartbeat.model_validate_json(await request.read())))

    def beat(self, worker: UUID, body: Heartbeat) -> Beat:
        self.heartbeats.append(body)
        held = {(one.id, one.attempt) for one in body.held}
        gone = [key for key in held if self.held.get(key) != worker or key in self.taken_away]
        cancelled = [key for key in held if key in self.cancelled and key not in gone]
        return Beat(cancelled=tuple(map(_held, cancelled)), gone=tuple(map(_held, gone)), renewed=True)

    async def keep(self, request: web.Request) -> web.Response:
        self.speaker(request)
        key = UUID(request.match_info["task"]), int(request.match_info["attempt"])
        if key not in self.held:
            return _error(404, "It is not in this worker's hands.")
        kept = self.outputs.setdefault((*key, request.match_info["stream"]), bytearray())
        offset, piece = int(request.query["offset"]), await request.read()
        assert len(piece) <= 1024 * 1024
        if offset > len(kept):
            return _error(409, "There is a gap.")
        kept += piece[len(kept) - offset :]
        return web.json_response({"size": len(kept), "full": False})

    async def socket(self, request: web.Request) -> web.StreamResponse:
        worker = self.speaker(request)
        if self.without_sockets:
            return _error(404, "There are no sockets here.")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets[worker] = socket
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.log.append("beat")
                if worker in self.forgotten:
                    await socket.close(code=4404)
                    break
                await socket.send_str(self.beat(worker, Heartbeat.model_validate_json(message.data)).model_dump_json())
        return socket

    async def leave(self, request: web.Request) -> web.Response:
        self.left.append(self.speaker(request))
        return web.Response(status=204)

    def speaker(self, request: web.Request) -> UUID:
        worker = UUID(request.match_info["worker"])
        self.log.append(request.path.rpartition("/")[2])
        if request.headers.get("Authorization") != f"Bearer stw_{worker}":
            raise web.HTTPUnauthorized(text="{}")
        if worker in self.forgotten:
            raise web.HTTPNotFound(text="{}")
        return worker

    @web.middleware
    async def door(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        """Who is away does not answer, not even with an error."""
        if self.away:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        answer: web.StreamResponse = await handler(request)
        return answer


def total(server: FakeServer) -> Room:
    return server.workers[-1].total.to_room()


def _held(key: Key) -> Held:
    return Held(id=key[0], attempt=key[1])


def _json(answer: Any, status: int = 200) -> web.Response:
    return web.Response(text=answer.model_dump_json(), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    body = {"error": {"code": "refused", "message": message}}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json")


@asynccontextmanager
async def serving(lease_s: float = 60.0, heartbeat_s: float = 10.0) -> AsyncIterator[FakeServer]:
    server = FakeServer(lease_s, heartbeat_s)
    application = web.Application(middlewares=[server.door], client_max_size=8 * 1024 * 1024)
    base = "/api/projects/main/workers"
    application.router.add_post(base, server.register)
    for path, handler in (("claim", server.claim), ("report", server.report), ("heartbeat", server.heartbeat)):
        application.router.add_post(f"{base}/{{worker}}/{path}", handler)
    application.router.add_put(f"{base}/{{worker}}/tasks/{{task}}/{{attempt}}/{{stream}}", server.keep)
    application.router.add_get(f"{base}/{{worker}}/socket", server.socket)
    application.router.add_delete(f"{base}/{{worker}}", server.leave)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        server.away = True
        server._woken.set()
        await runner.cleanup()
