"""Sends more than fits into memory: JSON lines, written to a file first and then sent in one request.

The file is what makes it safe to try again: a server that starts just now, or a connection that breaks in the middle,
costs a second sending and nothing else, since the key tells the server that it is the same request.
"""

import json
import time
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from stoker.client.client import Client, Json, Reply, Unreachable, error_of
from stoker.core.errors import Unavailable, UserError
from stoker.core.limits import MOST_GRAPH_BYTES, MOST_TASKS_IN_A_GRAPH

IN_MEMORY_BYTES: Final = 4 * 1024 * 1024
ANSWER_S: Final = 300.0
"""A million tasks are stored in one transaction, which is answered when it is done."""
PATIENCE_S: Final = 15.0
PAUSE_S: Final = 0.5


def post_lines(client: Client, path: str, lines: Iterable[bytes], *, key: str) -> Json | None:
    """What the server answered; None when there was no line, and so nothing to ask."""
    with SpooledTemporaryFile(max_size=IN_MEMORY_BYTES) as file:
        count = 0
        for line in lines:
            file.write(line)
            file.write(b"\n")
            count += 1
            if count > MOST_TASKS_IN_A_GRAPH:
                raise UserError(f"These are more than {MOST_TASKS_IN_A_GRAPH:,} tasks.", hint="Send them in parts.")
        size = file.tell()
        if size > MOST_GRAPH_BYTES:
            raise UserError(f"These tasks are {size / 2**30:.1f} GB of text.", hint="Send them in parts.")
        return _Sender(client).upload(path, file, size, key) if count else None


def line(task: Json) -> bytes:
    return json.dumps(task, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


class _Sender(Client):
    """A connection of its own for one large request."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.url, client.token, client.project)

    def upload(self, path: str, file: IO[bytes], size: int, key: str) -> Json:
        """A server that goes away meanwhile is tried again, but not one that never was there."""
        connection = self._connect(ANSWER_S)
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            file.seek(0)
            try:
                reply = self._once(connection, path, file, size, key)
                if reply.status < 300:
                    told: Json = reply.json()
                    return told
                raise error_of(reply)
            except Unavailable as error:
                # A server that took too long may be at it still, and would be asked to do it twice at once.
                pause_s = PAUSE_S if isinstance(error, Unreachable) else error.retry_after_s
                if error.code == "timeout" or time.monotonic() + pause_s > give_up_at:
                    raise
                time.sleep(pause_s)

    def _once(self, connection: HTTPConnection, path: str, file: IO[bytes], size: int, key: str) -> Reply:
        headers = {"Accept": "application/json", "Content-Type": "application/x-ndjson", "Content-Length": str(size)}
        headers |= {"Idempotency-Key": key} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        try:
            _opened(connection)
            response = _answered(connection, self._prefix + path, file, headers)
            body = response.read()
        except TimeoutError:
            raise Unreachable("The server took too long to take the tasks.", code="timeout") from None
        except (OSError, HTTPException) as error:
            raise Unreachable(f"The server at {self.url} broke off: {error}.", hint="Is it running?") from None
        finally:
            connection.close()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def _opened(connection: HTTPConnection) -> None:
    """Anew, when it was closed after an earlier try."""
    if connection.sock is None:
        connection.connect()
    connection.sock.settimeout(ANSWER_S)


def _answered(connection: HTTPConnection, target: str, file: IO[bytes], headers: dict[str, str]) -> HTTPResponse:
    try:
        connection.request("POST", target, body=file, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses the tenth line does not read the others; what it said before is there to be read.
        return connection.getresponse()
    return connection.getresponse()
