"""HTTP to an agent over a unix socket, here or behind a tunnel: JSON in and out, errors as our own."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from stoker.core.errors import Broken, Conflict, NotFound, StokerError, Unavailable, UserError
from stoker.wire.model import ErrorBody

CONNECT_S = 5.0
ANSWER_S = 30.0
"""Beyond the time for which the call asked the agent to wait."""

A = TypeVar("A", bound=BaseModel)

Connect = Callable[[str, int], aiohttp.BaseConnector]
"""What reaches a socket, by so many connections at once."""


def here(path: str, connections: int) -> aiohttp.BaseConnector:
    """Of this very host."""
    return aiohttp.UnixConnector(path, limit=connections)


class Line:
    """One agent's socket. Sessions are made late and kept: an idle one costs a descriptor at most."""

    def __init__(self, path: str, token: str, *, connections: int = 16, connect: Connect = here) -> None:
        self._path, self._token, self._connections, self._connect = path, token, connections, connect
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, answer: type[A], method: str, path: str, body: BaseModel | None = None, **rest: Any) -> A:
        content, _ = await self.raw(method, path, body, **rest)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            said = f"The agent at {self._path} answered {method} {path} with something else: {error}."
            raise Unavailable(said) from None

    async def raw(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        params: Mapping[str, str | int | float] | None = None,
        wait_s: float = 0.0,
    ) -> tuple[bytes, Mapping[str, str]]:
        timeout = aiohttp.ClientTimeout(total=wait_s + ANSWER_S, connect=CONNECT_S)
        data = None if body is None else body.model_dump_json().encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._opened().request(
                method, f"http://agent{path}", data=data, headers=headers, params=params, timeout=timeout
            ) as response:
                content = await response.read()
                if response.status >= 400:
                    raise _error(response.status, content, self._path)
                return content, response.headers
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            sentence = str(error) or type(error).__name__
            raise Unavailable(f"The agent at {self._path} does not answer: {sentence}.", code="agent_silent") from None

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connect(self._path, self._connections),
                headers={"Authorization": f"Bearer {self._token}"},
                auto_decompress=False,
            )
        return self._session


def _error(status: int, content: bytes, path: str) -> StokerError:
    try:
        detail = ErrorBody.model_validate_json(content).error
    except ValidationError:
        return Unavailable(f"The agent at {path} answered {status}.")
    kind: type[StokerError]
    match status:
        case 404:
            kind = NotFound
        case 409:
            kind = Conflict
        case 401 | 403 | 429 | 503:
            kind = Unavailable
        case _:
            kind = UserError if status < 500 else Broken
    return kind(detail.message, hint=detail.hint, code=detail.code)
