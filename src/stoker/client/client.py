"""The server's HTTP API for programs of people: JSON in, JSON out, errors as ours.

It uses `http.client`, which is a third of the start-up time of the alternatives and is always there. A connection is
kept between requests. When the server has closed it meanwhile, the request is sent once more: every request of ours
may be sent twice, and those that create something carry a key by which the server knows them again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from stoker.client.config import Config
from stoker.core.errors import Broken, Conflict, Gone, NotFound, StokerError, Unavailable, UserError

Json = dict[str, Any]
CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
PATIENCE_S: Final = 15.0
"""How long a server that says `not now` is asked again."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one answer; a page of anything is far smaller."""
PAGE: Final = 100


class Unreachable(Unavailable):
    """Nobody answered, or not to the end."""

    code = "unreachable"


class Denied(UserError):
    """The token is missing, wrong or has expired, or it does not allow this."""

    code = "denied"


class Refused(UserError):
    """The server names what is wrong with what was sent, key by key; the lines of a file it does not know."""

    def __init__(self, sentence: str, *, problems: Sequence[Json], hint: str = "", code: str = "") -> None:
        super().__init__(sentence, hint=hint, code=code)
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            raise Broken("The server's answer is not JSON.", hint="Is there a proxy in between?") from None


class Client:
    """One server, one token, one project. Not for several threads: each makes its own with `again`."""

    def __init__(self, url: str, token: str, project: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no address of a server.", hint="For example: http://127.0.0.1:4400")
        self.url, self.token, self.project = url, token, project
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._kept: HTTPConnection | None = None
        self._trouble = ""
        self.warn: Callable[[str], None] = lambda sentence: None
        """Called with what the server says is wrong with it, once for each sentence."""

    @classmethod
    def of(cls, config: Config) -> "Client":
        if not config.url:
            raise UserError(
                "No server is configured.",
                hint="`stoker up` starts one on this machine; `stoker config set url URL` names another.",
                code="not_configured",
            )
        return cls(config.url, config.token, config.project)

    def again(self) -> "Client":
        """A second connection to the same server."""
        return Client(self.url, self.token, self.project)

    def at(self, *parts: object) -> str:
        """A path below the project."""
        return "/".join(("/api/projects", *(quote(str(part), safe="") for part in (self.project, *parts))))

    def get(self, path: str, query: Mapping[str, object] | None = None, *, answer_s: float = ANSWER_S) -> Any:
        return self.ask("GET", path, query=query, answer_s=answer_s).json()

    def post(self, path: str, body: object = None, *, key: str = "") -> Any:
        return self.ask("POST", path, body=body, key=key).json()

    def items(self, path: str, query: Mapping[str, object] | None = None, *, most: int = 0) -> Iterator[Json]:
        """All pages of a list, one item after the other; `most` of them unless it is zero."""
        asked = dict(query or {})
        had = 0
        while True:
            page = self.get(path, asked | {"limit": min(most - had, PAGE) if most else PAGE})
            yield from page["items"]
            had += len(page["items"])
            if not page.get("next_cursor") or not page["items"] or had == most:
                return
            asked["cursor"] = page["next_cursor"]

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str = "",
        answer_s: float = ANSWER_S,
        patience_s: float = PATIENCE_S,
    ) -> Reply:
        """Sends it until it is answered with something else than `not now`, for a while."""
        headers = {"Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        sent = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            sent = json.dumps(body).encode()
        give_up_at = time.monotonic() + patience_s
        while True:
            with self._sent(method, path, query, sent, headers, answer_s) as response:
                reply = _read(response)
            self._heed(reply.headers.get("stoker-trouble", ""))
            if reply.status < 300:
                return reply
            error = error_of(reply)
            if not isinstance(error, Unavailable) or time.monotonic() + error.retry_after_s > give_up_at:
                raise error
            time.sleep(error.retry_after_s)

    def _heed(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self.warn(trouble)
        self._trouble = trouble

    def stream(self, path: str, query: Mapping[str, object], *, silence_s: float) -> HTTPResponse:
        """An answer that goes on; it has a connection of its own. Closing it is up to the caller."""
        connection = self._connect(silence_s)
        response = self._send(connection, "GET", path, query, None, {"Accept": "text/event-stream"})
        if response.status >= 300:
            with response:
                raise error_of(_read(response))
        return response

    def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        answer_s: float,
    ) -> HTTPResponse:
        if (kept := self._kept) is not None and kept.sock is not None:
            kept.sock.settimeout(answer_s)
            try:
                return self._send(kept, method, path, query, body, headers)
            except Unreachable as error:
                if error.code == "timeout":
                    raise
        self._kept = self._connect(answer_s)
        return self._send(self._kept, method, path, query, body, headers)

    def _connect(self, answer_s: float) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(
                f"The server at {self.url} cannot be reached: {error.strerror or error}.",
                hint="`stoker up` starts one on this machine; `stoker config` shows which one is asked.",
            ) from None
        connection.sock.settimeout(answer_s)
        return connection

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> HTTPResponse:
        said = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(said)}" if said else "")
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, target, body=body, headers={**headers, **own})
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            raise _broken_off(self.url, error) from None
        except (UnicodeError, ValueError) as error:
            connection.close()
            raise UserError(f"The request cannot be written as HTTP: {error}.", hint="Look at the token.") from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(response: HTTPResponse) -> Reply:
    try:
        body = response.read(MOST_BYTES + 1) if response.length is None else response.read()
    except (OSError, HTTPException) as error:
        raise _broken_off("", error) from None
    if len(body) > MOST_BYTES:
        raise Broken("The server's answer has no end.")
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def _broken_off(url: str, error: Exception) -> Unreachable:
    where = f" at {url}" if url else ""
    if isinstance(error, TimeoutError):
        return Unreachable(f"The server{where} took too long to answer.", hint="Its log may say why.", code="timeout")
    return Unreachable(f"The server{where} broke off: {str(error) or type(error).__name__}.", hint="Is it running?")


def error_of(reply: Reply) -> StokerError:
    """The error that an answer means."""
    code, message, hint, problems = _told(reply)
    status = reply.status
    if status == 401:
        return Denied(
            message or "The server does not know this token.",
            hint=hint or "Set STOKER_TOKEN, or `stoker config set token TOKEN`.",
            code=code,
        )
    if status == 403:
        return Denied(message or "This token does not allow it.", hint=hint, code=code)
    # A proxy says 502 or 504 while the server behind it starts again.
    if status in (429, 502, 503, 504):
        return Unavailable(
            message or "The server cannot answer now.", hint=hint, code=code, retry_after_s=_retry_after(reply)
        )
    if status >= 500:
        return Broken(message or f"The server failed ({status}).", hint=hint or "Its log says why.", code=code)
    if problems and status in (400, 422):
        return Refused(message, problems=problems, hint=hint, code=code)
    kind = {404: NotFound, 409: Conflict, 410: Gone}.get(status, UserError)
    return kind(message or f"The server refused it ({status}).", hint=hint, code=code)


def _told(reply: Reply) -> tuple[str, str, str, list[Json]]:
    try:
        error = json.loads(reply.body)["error"]
        problems = list(error.get("problems", ()))
        others = [_problem(each) for each in problems][1:]
        hint = "\n  ".join(filter(None, (str(error.get("hint", "")), *others)))
        return str(error.get("code", "")), str(error["message"]), hint, problems
    except (ValueError, KeyError, TypeError, AttributeError):
        # A proxy in between has its own way of saying no.
        return "", "", "", []


def _problem(told: Json) -> str:
    return " ".join(filter(None, (f"{told['key']}: {told['message']}.".removeprefix(": "), told.get("hint", ""))))


def _retry_after(reply: Reply) -> float:
    try:
        return max(0.1, float(reply.headers.get("retry-after", "1")))
    except ValueError:
        return 1.0
