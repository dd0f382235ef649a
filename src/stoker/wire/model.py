"""What every model that crosses a process border has in common, and how errors cross it."""

from pydantic import BaseModel, ConfigDict, Field

from stoker.core.errors import StokerError


class Model(BaseModel):
    """Frozen; an unknown field is an error, so that a typing mistake is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(Model):
    """What an agent or the server says. A newer one may say more than we know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ErrorDetail(Answer):
    code: str = Field(examples=["not_found"])
    message: str = Field(examples=["There is no run train-1 in project main."])
    hint: str = Field(default="", examples=["`stoker ps -a` lists them all."])


class ErrorBody(Answer):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


def body_of(error: StokerError) -> ErrorBody:
    return ErrorBody(error=ErrorDetail(code=error.code, message=error.sentence, hint=error.hint))
