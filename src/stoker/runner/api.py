"""What a runner answers over HTTP. Nothing is decided here; `Life` is told, and asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from aiohttp import WSCloseCode, web

from stoker.core.errors import StokerError
from stoker.runner.edge import Failed, guard, read_body, read_query, say
from stoker.runner.life import Life
from stoker.runner.limits import BODY_BYTES, CODE_BYTES, SEND_S
from stoker.runner.metrics import measure
from stoker.runner.place import Place
from stoker.runner.spool import Spool
from stoker.runner.version import VERSION
from stoker.wire.frame import decode, encode
from stoker.wire.model import ErrorBody
from stoker.wire.openapi import Body, Route, document
from stoker.wire.runner import (
    LONGEST_WAIT_S,
    PULL_BYTES,
    Assignment,
    Deadline,
    FromOffset,
    Header,
    Health,
    Heard,
    JobOrder,
    Metrics,
    Pull,
    Stop,
)

_FRAMES: Final = "application/octet-stream"
_CHUNK_BYTES: Final = 256 * 1024
_HEARTBEAT_S: Final = 20.0


def _errors(*statuses: int) -> dict[int, Body]:
    return dict.fromkeys((401, 500, *statuses), ErrorBody)


ROUTES: Final = (
    Route("GET", "/healthz", "How it is", None, {200: Health, **_errors()}),
    Route("POST", "/job", "Take a job", JobOrder, {200: Health, **_errors(409, 413, 422, 503)}),
    Route("PUT", "/code", "Take its code", "application/octet-stream", {200: Health, **_errors(409, 413, 422, 503)}),
    Route("POST", "/run", "Start it", None, {202: Health, **_errors(409)}),
    Route(
        "GET",
        "/pull",
        "Frames of its log; what lies before the offset may be forgotten",
        None,
        {200: _FRAMES, **_errors(409, 422, 503)},
        query=Pull,
        headers=tuple(Header),
    ),
    Route(
        "GET",
        "/own",
        "Frames of the runner's own log",
        None,
        {200: _FRAMES, **_errors(409, 422, 503)},
        query=Pull,
        headers=(Header.NEXT, Header.END, Header.COMPLETE),
    ),
    Route("POST", "/stop", "Stop it", Stop, {202: Health, **_errors(409, 413, 422)}),
    Route("POST", "/deadline", "When it will be ended", Deadline, {202: Health, **_errors(409, 413, 422)}),
    Route("POST", "/heard", "The server is there", Heard, {202: Health, **_errors(413, 422)}),
    Route("GET", "/metrics", "What its processes use", None, {200: Metrics, **_errors()}),
    Route(
        "GET",
        "/live",
        "Frames as they come, by WebSocket",
        None,
        {101: None, **_errors(400, 409, 422, 503)},
        query=FromOffset,
    ),
)


def openapi() -> dict[str, Any]:
    return document("Stoker runner", ROUTES, VERSION)


class Api:
    """The routes of one runner."""

    def __init__(self, life: Life, place: Place, assignment: Assignment) -> None:
        self._life, self._place, self._assignment = life, place, assignment
        self._uploading = asyncio.Lock()

    def application(self, failed: Failed) -> web.Application:
        edge = guard(self._assignment.token, self._heard, failed)
        app = web.Application(middlewares=[edge], client_max_size=BODY_BYTES)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, getattr(self, route.path[1:]))
        return app

    def _heard(self, request: web.Request) -> None:
        """Whoever has the token speaks for the server, except the shim: it says itself how long ago that was."""
        if request.path != "/heard":
            self._life.limits.heard()

    async def heard(self, request: web.Request) -> web.Response:
        self._life.limits.heard((await read_body(request, Heard)).ago_s)
        return say(self._life.health, 202)

    async def deadline(self, request: web.Request) -> web.Response:
        self._life.set_deadline(await read_body(request, Deadline))
        return say(self._life.health, 202)

    async def healthz(self, request: web.Request) -> web.Response:
        return say(self._life.health)

    async def job(self, request: web.Request) -> web.Response:
        order = await read_body(request, JobOrder)
        await self._life.submit(order)
        if order.start:
            self._life.run()
        return say(self._life.health)

    async def code(self, request: web.Request) -> web.Response:
        async with self._uploading:
            if self._life.check_code():
                try:
                    await self._receive(request)
                    await self._life.unpack()
                finally:
                    self._place.code.unlink(missing_ok=True)
        return say(self._life.health)

    async def _receive(self, request: web.Request) -> None:
        size = request.content_length or 0
        if size > CODE_BYTES:
            raise web.HTTPRequestEntityTooLarge(CODE_BYTES, size)
        with await asyncio.to_thread(open, self._place.code, "wb") as file:
            # It may also come without having said how long it is.
            async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
                if file.tell() + len(chunk) > CODE_BYTES:
                    raise web.HTTPRequestEntityTooLarge(CODE_BYTES, CODE_BYTES + 1)
                await asyncio.to_thread(file.write, chunk)

    async def run(self, request: web.Request) -> web.Response:
        self._life.run()
        return say(self._life.health, 202)

    async def stop(self, request: web.Request) -> web.Response:
        self._life.stop(await read_body(request, Stop))
        return say(self._life.health, 202)

    async def metrics(self, request: web.Request) -> web.Response:
        return say(await asyncio.to_thread(measure, self._assignment.cgroups, self._assignment.gpu_ids))

    async def pull(self, request: web.Request) -> web.Response:
        asked = read_query(request, Pull)
        await self._life.acknowledge(asked.offset)
        response = await self._frames(self._life.spool, asked)
        health = self._life.health.model_dump(mode="json")
        response.headers[Header.HEALTH] = json.dumps(health, separators=(",", ":"))
        self._life.log_pulled(asked.offset)
        return response

    async def own(self, request: web.Request) -> web.Response:
        query = read_query(request, Pull)
        await self._life.speak()
        response = await self._frames(self._life.own.spool, query)
        self._life.own_pulled(int(response.headers[Header.NEXT]))
        return response

    async def _frames(self, spool: Spool, asked: Pull) -> web.Response:
        # The end and whether it is the last are taken together, after the data: an answer never says `complete`
        # of a log that grew behind its back.
        silence_s = self._assignment.stop_after_s or 3 * LONGEST_WAIT_S
        await spool.grown(asked.offset, min(asked.wait_s, silence_s / 3))
        data = await spool.read(asked.offset, asked.limit)
        headers: dict[str, str] = {
            Header.NEXT: str(asked.offset + len(data)),
            Header.END: str(spool.end),
            Header.COMPLETE: "true" if spool.complete else "false",
        }
        return web.Response(body=data, headers=headers, content_type=_FRAMES)

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        offset = read_query(request, FromOffset).offset
        await self._life.spool.read(offset, 1)
        with self._life.reader(offset) as reached:
            socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S)
            await socket.prepare(request)
            # Nothing is expected from him but his leave, which only a read can notice.
            gone = asyncio.create_task(_until_closed(socket))
            sending = asyncio.create_task(self._send(socket, offset, reached))
            try:
                await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Both end before the last word is said: a socket that is read by two is closed under our hands.
                gone.cancel()
                sending.cancel()
                _, told = await asyncio.gather(gone, sending, return_exceptions=True)
                code, word = told if isinstance(told, tuple) else (WSCloseCode.GOING_AWAY, "")
                await socket.close(code=code, message=word.encode())
        return socket

    async def _send(
        self, socket: web.WebSocketResponse, offset: int, reached: Callable[[int], None]
    ) -> tuple[WSCloseCode, str]:
        """Everything from `offset` on, until there is no more; says with which words to close."""
        spool = self._life.spool
        while True:
            await spool.grown(offset, LONGEST_WAIT_S)
            complete = spool.complete
            try:
                data = await spool.read(offset, PULL_BYTES)
            except StokerError as error:
                return WSCloseCode.INTERNAL_ERROR, error.code
            for frame in decode(data):
                async with asyncio.timeout(SEND_S):
                    await socket.send_bytes(encode(frame))
            offset += len(data)
            reached(offset)
            if complete and offset == spool.end:
                return WSCloseCode.OK, "complete"


async def _until_closed(socket: web.WebSocketResponse) -> None:
    async for _ in socket:
        pass
