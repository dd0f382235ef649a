"""Server-sent events, as the server writes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Final

from stoker.client.client import Unreachable

SILENCE_S: Final = 60.0
"""The server says something at least every few seconds, if only a comment."""


@dataclass(frozen=True)
class Said:
    event: str
    id: str
    data: bytes


def events(response: HTTPResponse) -> Iterator[Said]:
    """One after the other until the server closes the stream; a stream that breaks raises `Unreachable`.

    One without data only says how far the stream is.
    """
    event, last_id, data, moved = "message", "", b"", False
    with response:
        while line := _line(response):
            field, _, value = line.rstrip(b"\r\n").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"" and not value and b":" not in line:
                if data or event != "message" or moved:
                    yield Said(event, last_id, data)
                event, data, moved = "message", b"", False
            elif field == b"event":
                event = value.decode()
            elif field == b"id":
                last_id, moved = value.decode(), True
            elif field == b"data":
                data = data + b"\n" + value if data else value


def _line(response: HTTPResponse) -> bytes:
    try:
        return response.readline()
    except (OSError, HTTPException, ValueError) as error:
        # A connection closed while it is read shows as ValueError.
        raise Unreachable(f"The stream broke off: {error}.") from None
