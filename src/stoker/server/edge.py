"""The outermost layer of HTTP: sizes of bodies, figures, the log of requests, and whatever nobody else caught."""

import time
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.core.limits import MOST_BODY_BYTES, MOST_GRAPH_BYTES
from stoker.server.error import TooLarge, answer_of, unexpected
from stoker.server.metrics import Metrics

log = structlog.get_logger()

TROUBLE: Final = b"stoker-trouble"
"""Told with every answer while the server cannot take changes: whoever only looks would not hear of it otherwise."""
_LINES: Final = b"application/x-ndjson"


class Edge:
    def __init__(self, app: ASGIApp, metrics: Metrics, trouble: Callable[[], str]) -> None:
        self._app, self._metrics, self._trouble = app, metrics, trouble

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, time.perf_counter(), self._trouble)
        try:
            if exchange.announced > exchange.most:
                await answer_of(TooLarge(_too_large(exchange.most)))(scope, receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            id = uuid4().hex[:12]
            log.error("request broke", id=id, method=scope["method"], path=scope["path"], exc_info=error)
            if exchange.status:
                # It has begun: all that is left is to break it off, so that nobody takes it for whole.
                raise
            await unexpected(id)(scope, receive, exchange.send)
        finally:
            self._note(scope, exchange)

    def _note(self, scope: Scope, exchange: "_Exchange") -> None:
        route = getattr(scope.get("route"), "name", "none")
        status, method = exchange.status or 499, scope["method"]
        if method not in _METHODS:
            method = "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(route).observe(exchange.took_s)
        # Never the headers, and never the query: both may carry what is secret.
        say = log.warning if status >= 500 else log.debug
        say("request", method=method, path=scope["path"], status=status, ms=round(exchange.took_s * 1000, 1))


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Exchange:
    """One request and its answer, counted."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, began: float, trouble: Callable[[], str]) -> None:
        self._receive, self._send, self._began, self._trouble = receive, send, began, trouble
        self._bytes = 0
        self.announced, self.most = _announced(scope), _most(scope)
        self.status = 0
        self.took_s = 0.0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self.most:
                raise HTTPException(413, _too_large(self.most))
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.took_s = time.perf_counter() - self._began
            if trouble := self._trouble():
                message["headers"] = [*message["headers"], (TROUBLE, trouble.encode("latin-1", "replace"))]
        await self._send(message)


def _most(scope: Scope) -> int:
    """What is read line by line while it comes may be long."""
    by_lines = scope["path"].endswith("/tasks") and (b"content-type", _LINES) in scope["headers"]
    return MOST_GRAPH_BYTES if by_lines else MOST_BODY_BYTES


def _too_large(most: int) -> str:
    return f"The body has more than {most} bytes."


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
