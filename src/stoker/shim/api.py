"""The shim's HTTP edge: one table of routes, which is also its OpenAPI document. It decides nothing."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog
from aiohttp import web
from pydantic import ConfigDict

from stoker.core.errors import UserError
from stoker.runner.edge import guard, read_body, read_query, say
from stoker.runner.version import VERSION
from stoker.shim.limits import BODY_BYTES
from stoker.shim.shim import Shim
from stoker.wire.model import Answer, ErrorBody
from stoker.wire.openapi import Body, Route, document
from stoker.wire.runner import Header
from stoker.wire.shim import (
    Changes,
    ChangesQuery,
    Health,
    HostInfo,
    Leave,
    Left,
    LogQuery,
    RemoveQuery,
    TaskInfo,
    TaskList,
    TaskOrder,
    Terminate,
    TerminateQuery,
    VolumeInfo,
    VolumeList,
    VolumeOrder,
)

FRAMES = "application/octet-stream"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger()


def _answers(*errors: int, **good: Body) -> dict[int, Body]:
    """`ok_200=Health`: what is answered, and which errors besides a wrong token."""
    answers: dict[int, Body] = {int(name.rpartition("_")[2]): body for name, body in good.items()}
    return answers | dict.fromkeys((401, *errors), ErrorBody)


class Document(Answer):
    """An OpenAPI document, as far as it matters here."""

    model_config = ConfigDict(extra="allow")
    openapi: str
    paths: dict[str, object]


HEADERS = (Header.NEXT, Header.END, Header.COMPLETE)
ROUTES = {
    "health": Route("GET", "/healthz", "The shim lives", answers=_answers(ok_200=Health)),
    "host": Route("GET", "/host", "What the host has", answers=_answers(ok_200=HostInfo)),
    "submit": Route(
        "POST", "/tasks", "Start a task", TaskOrder, _answers(409, 413, 422, 503, new_201=TaskInfo, known_200=TaskInfo)
    ),
    "tasks": Route("GET", "/tasks", "Every task", answers=_answers(ok_200=TaskList)),
    "task": Route("GET", "/tasks/{id}", "One task", answers=_answers(404, 422, ok_200=TaskInfo)),
    "terminate": Route(
        "POST",
        "/tasks/{id}/terminate",
        "End a task",
        Terminate,
        _answers(404, 409, 413, 422, 503, ok_202=TaskInfo),
        TerminateQuery,
    ),
    "remove": Route(
        "DELETE",
        "/tasks/{id}",
        "Forget a task that has ended",
        None,
        _answers(409, 422, 503, ok_204=None),
        RemoveQuery,
    ),
    "log": Route(
        "GET",
        "/tasks/{id}/log",
        "Frames of its log, from the disk",
        None,
        _answers(404, 422, 503, ok_200=FRAMES),
        LogQuery,
        HEADERS,
    ),
    "make_volume": Route(
        "POST", "/volumes", "Make a volume", VolumeOrder, _answers(409, 413, 422, 503, ok_200=VolumeInfo)
    ),
    "volumes": Route("GET", "/volumes", "Every volume", answers=_answers(ok_200=VolumeList)),
    "remove_volume": Route(
        "DELETE", "/volumes/{id}", "Remove a volume with all that is in it", None, _answers(409, 422, 503, ok_204=None),
        RemoveQuery,
    ),
    "changes": Route(
        "GET", "/changes", "What changed since", None, _answers(422, ok_200=Changes), ChangesQuery
    ),
    "leave": Route("POST", "/leave", "End the shim", Leave, _answers(409, 413, 422, ok_202=Left)),
    "openapi": Route("GET", "/openapi.json", "This document", answers=_answers(ok_200=Document)),
}  # fmt: skip


def openapi() -> dict[str, object]:
    return document("Stoker shim", list(ROUTES.values()), VERSION)


class Api:
    """Each handler is named like its route."""

    def __init__(self, shim: Shim, host: Callable[[], HostInfo], token: str) -> None:
        self._shim, self._host, self._token = shim, host, token

    def _heard(self, request: web.Request) -> None:
        self._shim.heard()

    def application(self) -> web.Application:
        application = web.Application(
            client_max_size=BODY_BYTES, middlewares=[guard(self._token, self._heard, _failed)]
        )
        for name, route in ROUTES.items():
            handler: Handler = getattr(self, name)
            application.router.add_route(route.method, route.path, handler)
        return application

    async def health(self, request: web.Request) -> web.Response:
        return say(Health(version=VERSION, boot=self._shim.boot, tasks=len(self._shim.tasks())))

    async def host(self, request: web.Request) -> web.Response:
        return say(self._host())

    async def submit(self, request: web.Request) -> web.Response:
        info, fresh = await self._shim.submit(await read_body(request, TaskOrder))
        return say(info, 201 if fresh else 200)

    async def tasks(self, request: web.Request) -> web.Response:
        return say(TaskList(tasks=tuple(self._shim.tasks())))

    async def task(self, request: web.Request) -> web.Response:
        return say(self._shim.task(_id(request)))

    async def terminate(self, request: web.Request) -> web.Response:
        wait_s = read_query(request, TerminateQuery).wait_s
        return say(await self._shim.terminate(_id(request), await read_body(request, Terminate), wait_s), 202)

    async def remove(self, request: web.Request) -> web.Response:
        await self._shim.remove(_id(request), read_query(request, RemoveQuery).fence)
        return web.Response(status=204)

    async def log(self, request: web.Request) -> web.Response:
        query = read_query(request, LogQuery)
        piece = await self._shim.log(_id(request), query.offset, query.limit, own=query.own)
        headers: dict[str, str] = {
            Header.NEXT: str(piece.next_offset),
            Header.END: str(piece.end),
            Header.COMPLETE: "true" if piece.complete else "false",
        }
        return web.Response(body=piece.frames, content_type=FRAMES, headers=headers)

    async def make_volume(self, request: web.Request) -> web.Response:
        return say(await self._shim.make_volume(await read_body(request, VolumeOrder)))

    async def volumes(self, request: web.Request) -> web.Response:
        return say(VolumeList(volumes=await self._shim.volumes()))

    async def remove_volume(self, request: web.Request) -> web.Response:
        await self._shim.remove_volume(_id(request), read_query(request, RemoveQuery).fence)
        return web.Response(status=204)

    async def changes(self, request: web.Request) -> web.Response:
        query = read_query(request, ChangesQuery)
        return say(await self._shim.changes(query.cursor, query.wait_s))

    async def leave(self, request: web.Request) -> web.Response:
        order = await read_body(request, Leave)
        return say(Left(terminated=await self._shim.leave(force=order.force, for_good=order.for_good)), 202)

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(openapi())


def _failed(what: str, error: BaseException) -> None:
    log.error("request failed", request=what, exc_info=error)


def _id(request: web.Request) -> UUID:
    given = request.match_info["id"]
    try:
        id = UUID(given)
    except ValueError:
        raise UserError("The id of a task is a UUID.", code="validation") from None
    if str(id) != given.lower():
        raise UserError("The id of a task is a UUID with its four dashes.", code="validation")
    return id
