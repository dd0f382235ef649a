"""What every model that crosses a process border has in common, and how errors cross it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict

from stoker.core.errors import StokerError, UserError


class Model(BaseModel):
    """Frozen; an unknown field is an error, so that a typing mistake is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def without_empty(model: type[BaseModel], said: Mapping[str, Any]) -> dict[str, Any]:
    """A key without a value is not given; of one that there is not, people hear all the same."""
    return {key: value for key, value in said.items() if value is not None or key not in model.model_fields}


class Order(Model):
    """What an agent is told. Taken as it is written, since nobody would see the mistake: a bool is no number, and a
    number no text. Read from JSON; a query, which is all text, with `model_validate_strings`."""

    model_config = ConfigDict(strict=True)


Flag = Annotated[bool, Strict()]
"""`true` or `false`, and neither 1 nor "yes"."""
Whole = Annotated[int, Strict()]
"""A whole number, and neither `true` nor "1"."""


class Answer(Model):
    """What an agent or the server says. A newer one may say more than we know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Problem(Answer):
    """One thing that is wrong with what a person wrote."""

    key: str = Field(examples=["resources.memry"], description="The path of the key; empty for the whole.")
    message: str = Field(examples=["there is no such key here"])
    hint: str = Field(default="", examples=["Did you mean memory?"])
    line: int | None = Field(default=None, examples=[7])

    def __str__(self) -> str:
        where = ": ".join(part for part in (f"line {self.line}" if self.line else "", self.key) if part)
        return f"{where}: {self.message}" if where else self.message


class Invalid(UserError):
    """Refused as a whole; every problem that was found is named."""

    code = "invalid"

    def __init__(self, problems: Sequence[Problem], *, code: str = "") -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first}{more}.", hint=first.hint, code=code)
        self.problems = tuple(problems)


class ErrorDetail(Answer):
    code: str = Field(examples=["not_found"])
    message: str = Field(examples=["There is no run train-1 in project main."])
    hint: str = Field(default="", examples=["`stoker ps -a` lists them all."])
    problems: tuple[Problem, ...] = Field(default=(), description="All that is wrong with what was sent.")


class ErrorBody(Answer):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


def body_of(error: StokerError) -> ErrorBody:
    problems = error.problems if isinstance(error, Invalid) else ()
    return ErrorBody(error=ErrorDetail(code=error.code, message=error.sentence, hint=error.hint, problems=problems))
