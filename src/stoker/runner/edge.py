"""The HTTP edge of an agent: who may come in, what a body may be, and how every error leaves.

No answer carries a stack trace, a secret or the value that was wrong, and each that is not 2xx is an `ErrorBody`.
"""

import hmac
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import BaseModel, ValidationError

from stoker.core.errors import Broken, Conflict, NotFound, StokerError, Unavailable, UserError
from stoker.wire.model import ErrorBody, ErrorDetail, body_of

M = TypeVar("M", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Failed = Callable[[str, BaseException], None]

_STATUS: Final[tuple[tuple[type[StokerError], int], ...]] = (
    (NotFound, 404),
    (Conflict, 409),
    (UserError, 422),
    (Unavailable, 503),
    (Broken, 500),
)
"""The first class that fits."""


def guard(token: str, heard: Callable[[web.Request], None], failed: Failed) -> Middleware:
    """Lets in who has the token, tells `heard` of him, and turns what goes wrong into an answer.

    What nobody foresaw is told to `failed` with all that is known, and to the caller with nothing but that it happened.
    """
    wanted = f"Bearer {token}".encode()

    @web.middleware
    async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, wanted):
                return refusal(401, "unauthorized", "The token of this task is missing or wrong.")
            heard(request)
            if request.transport is not None:
                # An answer is finished when the kernel has all of it, so that an agent that leaves takes none with it.
                request.transport.set_write_buffer_limits(high=0)
            return await handler(request)
        except web.HTTPException as error:
            return _of_http(error)
        except ValidationError as error:
            return refusal(422, "validation", sentence_of(error))
        except StokerError as error:
            return answer_of(error)
        except OSError as error:
            return answer_of(Unavailable(f"The disk of the agent does not take it: {error.strerror}.", code="disk"))
        except Exception as error:  # noqa: BLE001
            failed(f"{request.method} {request.path}", error)
            return refusal(500, "broken", "The agent made a mistake; its own log says which.")

    return edge


async def read_body(request: web.Request, model: type[M]) -> M:
    return model.model_validate_json(await request.read())


def read_query(request: web.Request, model: type[M]) -> M:
    return model.model_validate_strings(dict(request.query))


def say(model: BaseModel, status: int = 200) -> web.Response:
    return web.Response(status=status, body=model.model_dump_json().encode(), content_type="application/json")


def answer_of(error: StokerError) -> web.Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = say(body_of(error), status)
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return response


def refusal(status: int, code: str, sentence: str) -> web.Response:
    response = say(ErrorBody(error=ErrorDetail(code=code, message=sentence)), status)
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def sentence_of(error: ValidationError) -> str:
    """The first thing that is wrong, by its name; never its value, which may be secret."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    where = ".".join(map(str, first["loc"])) or "body"
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return f"{where}: {first['msg']}{more}."


def _of_http(error: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses: unknown paths, wrong methods, bodies that are too large."""
    code = HTTPStatus(error.status).phrase.lower().replace(" ", "_")
    response = refusal(error.status, code, f"{HTTPStatus(error.status).description or error.reason}.")
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
