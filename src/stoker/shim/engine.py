"""A container engine behind its unix socket: a request with its answer, or a stream of what happens.

The API is Docker's, which Podman speaks too. What the engine says of an error is kept in its own words: people know
them. An engine that does not answer is `Unavailable`, and whoever asked may ask again.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from stoker.core.errors import Broken, Conflict, NotFound, StokerError, Unavailable

VERSION: Final = "v1.41"
SOCKETS: Final = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")
AWAY: Final = "engine_away"
"""The code of an `Unavailable` that says: nobody listens there, or it hangs."""
CONNECT_S: Final = 5.0
ANSWER_S: Final = 120.0
"""It does a lot at once when many containers begin; a hung one is found out by looking."""
LINE_BYTES: Final = 4 * 1024 * 1024

Params = Mapping[str, str | int]


def find_socket(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where an engine listens, or would: what `DOCKER_HOST` says counts, as for every other client."""
    if (said := environ.get("DOCKER_HOST", "")).startswith("unix://"):
        return Path(said.removeprefix("unix://"))
    return next((path for path in map(Path, SOCKETS) if path.is_socket()), None)


def filters(**wanted: str | Sequence[str]) -> str:
    """As the engine's lists take them."""
    return json.dumps({name: [value] if isinstance(value, str) else list(value) for name, value in wanted.items()})


class Engine:
    """One session, made late: most hosts' shims are started before anybody knows of containers."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def version(self) -> str:
        said = await self.ask("GET", "/version", within_s=CONNECT_S)
        return str(said.get("Version") or "unknown")

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Params | None = None,
        within_s: float = ANSWER_S,
    ) -> Any:
        """What it answers, read as JSON where it is."""
        async with self._request(method, path, body, params, {}, within_s) as response:
            content = await response.read()
        return json.loads(content) if response.content_type == "application/json" and content else content

    async def lines(
        self, method: str, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """One JSON object a line, as they come, until the engine ends it. However long that takes."""
        async with self._request(method, path, None, params, headers or {}, None) as response:
            while line := await response.content.readline():
                if line.strip():
                    yield json.loads(line)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: Params | None,
        headers: Mapping[str, str],
        within_s: float | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=within_s, connect=CONNECT_S)
        try:
            async with self._opened().request(
                method, f"http://engine/{VERSION}{path}", json=body, params=params, headers=headers, timeout=timeout
            ) as response:
                if response.status >= 400:
                    raise _error(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"The container engine at {self.socket} does not answer: {said}.", code=AWAY) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # As many as there are: each pull holds one as long as it takes.
            connector = aiohttp.UnixConnector(str(self.socket), limit=0)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES)
        return self._session


def _error(status: int, content: bytes) -> StokerError:
    try:
        said = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        said = content.decode(errors="replace").strip() or f"status {status}"
    sentence = f"The container engine says: {said.strip().rstrip('.')}."
    match status:
        case 404:
            return NotFound(sentence, code="engine")
        case 409:
            return Conflict(sentence, code="engine")
        case _:
            return Broken(sentence, code="engine")


def in_path(name: str) -> str:
    """A name as it stands in a path: those of images have slashes."""
    return quote(name, safe="")
