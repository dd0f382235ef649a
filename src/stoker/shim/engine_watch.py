"""Listens to the engine: which containers ended, and whether the engine is there at all.

The engine says what happens as it happens, but only while somebody listens. So whenever we begin to listen, and now and
then besides, everybody is told to look for himself; and containers of ours that belong to no task are removed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import structlog

from stoker.core.errors import Conflict, NotFound, StokerError, Unavailable
from stoker.shim.container import HOME_LABEL, TASK_LABEL
from stoker.shim.engine import Engine, filters
from stoker.shim.limits import ENGINE_AGAIN_S, ENGINE_LOOK_S

_SAYS_END: Final = ("die", "destroy", "oom")

log = structlog.get_logger()


class EngineWatch:
    def __init__(self, engine: Engine, home_id: str) -> None:
        self._engine, self._home_id = engine, home_id
        self._followed: dict[UUID, Callable[[], None]] = {}
        self.version = ""
        """Nothing: it does not answer."""
        self.seen = False
        """It has answered before."""
        self.changed: Callable[[], object] = lambda: None
        """The engine came or went."""
        self.wanted: Callable[[UUID], bool] = lambda id: True
        """Whether a task may have a container."""

    def follow(self, id: UUID, ask: Callable[[], None]) -> None:
        self._followed[id] = ask

    def forget(self, id: UUID) -> None:
        self._followed.pop(id, None)

    async def look(self) -> None:
        """Whether it is there. Before anybody may ask."""
        try:
            version = await self._engine.version()
        except StokerError:
            version = ""
        if version != self.version:
            log.info("container engine", socket=str(self._engine.socket), version=version or "does not answer")
            self.version = version
            self.seen = self.seen or bool(version)
            self.changed()

    async def run(self) -> None:
        while True:
            await self.look()
            if self.version:
                with suppress(StokerError):
                    await self._listen()
            await asyncio.sleep(ENGINE_AGAIN_S)

    async def _listen(self) -> None:
        """Until it hangs up."""
        params = {"filters": filters(type="container", label=f"{HOME_LABEL}={self._home_id}", event=_SAYS_END)}
        lines = self._engine.lines("GET", "/events", params=params)
        coming: asyncio.Future[dict[str, Any]] | None = None
        try:
            while True:
                # Before we look: what happens while we look is heard as well.
                coming = coming or asyncio.ensure_future(_next(lines.__anext__))
                await self._look_at_all()
                while True:
                    done, _ = await asyncio.wait((coming,), timeout=ENGINE_LOOK_S)
                    if not done:
                        break
                    line = coming.result()
                    coming = asyncio.ensure_future(_next(lines.__anext__))
                    self._heard(line)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait((coming,))
            await lines.aclose()  # type: ignore[attr-defined]

    def _heard(self, line: dict[str, Any]) -> None:
        attributes = (line.get("Actor") or {}).get("Attributes") or {}
        with suppress(ValueError):
            if (ask := self._followed.get(UUID(str(attributes.get(TASK_LABEL))))) is not None:
                ask()

    async def _look_at_all(self) -> None:
        params = {"all": "1", "filters": filters(label=f"{HOME_LABEL}={self._home_id}")}
        found = await self._engine.ask("GET", "/containers/json", params=params)
        for ask in list(self._followed.values()):
            ask()
        for one in found:
            with suppress(ValueError):
                if not self.wanted(UUID(str(one["Labels"].get(TASK_LABEL)))):
                    await self._remove(one["Id"])

    async def _remove(self, id: str) -> None:
        log.warning("a container of no task is removed", container=id)
        with suppress(NotFound, Conflict):
            await self._engine.ask("DELETE", f"/containers/{id}", params={"force": "1", "v": "1"})


async def _next(line: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    try:
        return await line()
    except StopAsyncIteration:
        raise Unavailable("The container engine has hung up.", code="engine_away") from None
