"""Bodies that are read by pydantic itself, without the detour by which FastAPI would read them twice; and their place
in the description of the API."""

from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from stoker.core.errors import UserError
from stoker.wire.model import Invalid
from stoker.wire.problem import problems_of
from stoker.wire.task import NewGraph, NewTask
from stoker.wire.worker import ClaimRequest, Heartbeat, WorkerReport

MODELS: Final[tuple[type[BaseModel], ...]] = (NewTask, NewGraph, ClaimRequest, WorkerReport, Heartbeat)
_REFERENCE: Final = "#/components/schemas/{model}"

M = TypeVar("M", bound=BaseModel)


def parsed(model: type[M], text: bytes | str, *, line: int | None = None) -> M:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise refusal(error, model, line) from None


def refusal(error: ValidationError, model: type[BaseModel], line: int | None = None) -> UserError:
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        where = "" if line is None else f"Line {line} of the body"
        return UserError(f"{where or 'The body'} is not JSON.", code="bad_json")
    problems = problems_of(found, model)
    if line is not None:
        problems = [one.model_copy(update={"line": line}) for one in problems]
    return Invalid(problems)


async def body_of(request: Request, model: type[M]) -> M:
    return parsed(model, await request.body())


def described(*models: type[BaseModel], also: dict[str, Any] | None = None) -> dict[str, Any]:
    """For `openapi_extra` of a route that reads its body so."""
    references = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}, **(also or {})}}}


def schemas() -> dict[str, Any]:
    """The components that those references name."""
    _, found = models_json_schema([(model, "validation") for model in MODELS], ref_template=_REFERENCE)
    defined: dict[str, Any] = found["$defs"]
    return defined
