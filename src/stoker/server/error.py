"""Errors as answers: every one has a code, a sentence and a hint, and none a stack trace."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stoker.core.errors import Conflict, Gone, NotFound, StokerError, Unavailable, UserError
from stoker.wire.model import ErrorBody, ErrorDetail, Invalid, body_of
from stoker.wire.problem import problems_of


class Unauthorized(UserError):
    code = "unauthorized"


class Forbidden(UserError):
    code = "forbidden"


class TooLarge(UserError):
    code = "too_large"


_STATUS: Final[tuple[tuple[type[StokerError], int], ...]] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (Gone, 410),
    (TooLarge, 413),
    (Invalid, 422),
    (UserError, 400),
    (Unavailable, 503),
)

Responses = dict[int | str, dict[str, Any]]
"""What a route may answer, for its description."""

ERRORS: Final[Responses] = {
    400: {"model": ErrorBody, "description": "It is not what the route takes, or cannot be done."},
    401: {"model": ErrorBody, "description": "No token, a wrong one, or one that has expired."},
    403: {"model": ErrorBody, "description": "The token's user may not do this."},
    404: {"model": ErrorBody, "description": "There is no such thing, or it belongs to a project that is not yours."},
    409: {"model": ErrorBody, "description": "It is in a state that does not allow it."},
    413: {"model": ErrorBody, "description": "The body is larger than is taken."},
    422: {"model": ErrorBody, "description": "A field is wrong; `problems` names each."},
    429: {"model": ErrorBody, "description": "Too much is waiting; try again after Retry-After."},
    503: {"model": ErrorBody, "description": "Not now; try again after Retry-After."},
}
"""What any route under /api may answer besides its own."""


def status_of(error: StokerError) -> int:
    if error.code in ("overloaded", "too_many_streams"):
        return 429
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def answer_of(error: StokerError) -> Response:
    status = status_of(error)
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return answered(body_of(error), status, headers)


def answered(model: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A model as the answer: without the detour by which FastAPI would look at it once more."""
    return Response(model.model_dump_json(), status, headers, media_type="application/json")


def unexpected(id: str) -> Response:
    """Something broke. What it was is in the server's log, under this id."""
    detail = ErrorDetail(code="internal", message="The server made a mistake.", hint=f"Its log has it under {id}.")
    return answered(ErrorBody(error=detail), 500)


def install(app: FastAPI) -> None:
    app.add_exception_handler(StokerError, _stoker)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


async def _stoker(request: Request, error: Exception) -> Response:
    assert isinstance(error, StokerError)
    if status_of(error) == 500:
        # A bug of ours: the edge logs it and says nothing of it.
        raise error
    return answer_of(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        return answer_of(UserError("The body is not JSON.", code="bad_json"))
    model = _body_model(request)
    # The first step of a path says where it was: body, path or query.
    problems = problems_of([{**one, "loc": one["loc"][1:]} for one in found], model)
    return answer_of(Invalid(problems))


def _body_model(request: Request) -> Any:
    """What the route takes as its body, to know which names are near."""
    field = getattr(request.scope.get("route"), "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    return annotation if hasattr(annotation, "model_fields") else None


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = {
        404: ("not_found", f"There is nothing at {request.url.path[:200]}."),
        405: ("method_not_allowed", f"{request.method} is not for {request.url.path[:200]}."),
        413: ("too_large", str(error.detail)),
    }.get(error.status_code, ("bad_request", str(error.detail)))
    body = ErrorBody(error=ErrorDetail(code=code, message=message))
    return answered(body, error.status_code, error.headers)
