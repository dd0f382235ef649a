"""HTTP to the server: the routes of a worker, with errors as ours. A worker only dials out."""

from typing import Any, Final, TypeVar
from urllib.parse import quote
from uuid import UUID

import aiohttp
from pydantic import BaseModel, ValidationError

from stoker.core.errors import Conflict, StokerError, Unavailable, UserError
from stoker.wire.model import ErrorBody
from stoker.wire.worker import (
    Beat,
    Claimed,
    ClaimRequest,
    Heartbeat,
    Kept,
    NewWorker,
    Registered,
    Reported,
    WorkerReport,
)
from stoker.worker.limits import POLL_S
from stoker.worker.settings import Settings

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0
"""Beyond the time for which the server was asked to wait."""

A = TypeVar("A", bound=BaseModel)


class Unknown(StokerError):
    """The server does not know this worker, or not any more: what it holds is not its own."""

    code = "worker_unknown"


class Line:
    """One server. `own` is the worker's own token, once it has one."""

    def __init__(self, settings: Settings) -> None:
        url = settings.url if "://" in settings.url else f"http://{settings.url}"
        self._workers = f"{url.rstrip('/')}/api/projects/{quote(settings.project, safe='')}/workers"
        self._token = settings.token
        self._own: dict[str, str] = {}
        self._base = ""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=32))

    async def close(self) -> None:
        await self._session.close()

    async def register(self, worker: NewWorker) -> Registered:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        answer = await self._ask(Registered, "POST", self._workers, worker.model_dump_json(), headers)
        self._own = {"Authorization": f"Bearer {answer.token}"}
        self._base = f"{self._workers}/{answer.id}"
        return answer

    async def report(self, report: WorkerReport) -> Reported:
        body = report.model_dump_json(exclude_defaults=True)
        return await self._own_ask(Reported, "POST", "/report", body)

    async def claim(self, request: ClaimRequest) -> Claimed:
        return await self._own_ask(Claimed, "POST", "/claim", request.model_dump_json(exclude_defaults=True), POLL_S)

    async def heartbeat(self, heartbeat: Heartbeat) -> Beat:
        return await self._own_ask(Beat, "POST", "/heartbeat", heartbeat.model_dump_json())

    async def keep(self, task: UUID, attempt: int, stream: str, offset: int, piece: bytes) -> Kept:
        """A piece of an output. Raises UserError when it is not wanted."""
        address = f"{self._base}/tasks/{task}/{attempt}/{stream}?offset={offset}"
        headers = {**self._own, "Content-Type": "application/octet-stream"}
        return await self._ask(Kept, "PUT", address, piece, headers)

    async def leave(self) -> None:
        await self._raw("DELETE", self._base, None, self._own)

    def socket(self) -> Any:
        """A WebSocket, as a context manager."""
        return self._session.ws_connect(f"{self._base}/socket", headers=self._own, heartbeat=None, max_msg_size=0)

    async def _own_ask(self, answer: type[A], method: str, path: str, body: str, wait_s: float = 0.0) -> A:
        headers = {**self._own, "Content-Type": "application/json"}
        try:
            return await self._ask(answer, method, self._base + path, body, headers, wait_s)
        except UserError as error:
            if error.code in ("401", "404"):
                raise Unknown(error.sentence) from None
            raise

    async def _ask(
        self,
        answer: type[A],
        method: str,
        address: str,
        body: str | bytes | None,
        headers: dict[str, str],
        wait_s: float = 0.0,
    ) -> A:
        if "Content-Type" not in headers and body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        content = await self._raw(method, address, body, headers, wait_s)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise Unavailable(f"The server answered with something else: {error}.") from None

    async def _raw(
        self, method: str, address: str, body: str | bytes | None, headers: dict[str, str], wait_s: float = 0.0
    ) -> bytes:
        data = body.encode() if isinstance(body, str) else body
        timeout = aiohttp.ClientTimeout(total=ANSWER_S + wait_s, sock_connect=CONNECT_S)
        try:
            async with self._session.request(method, address, data=data, headers=headers, timeout=timeout) as response:
                content = await response.read()
                if response.status >= 300:
                    raise _error(response.status, content)
                return content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"The server does not answer: {said}.", code="unreachable") from None


def _error(status: int, content: bytes) -> StokerError:
    try:
        detail = ErrorBody.model_validate_json(content).error
        sentence, hint = detail.message, detail.hint
    except ValidationError:
        sentence, hint = f"The server answered {status}.", ""
    if status >= 500 or status == 429 or (status < 400):
        return Unavailable(sentence, hint=hint)
    if status == 409:
        return Conflict(sentence, hint=hint)
    return UserError(sentence, hint=hint, code=str(status))
