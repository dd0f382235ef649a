"""Bearer tokens: shown once, kept as a hash."""

from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.wire.duration import Limit
from stoker.wire.model import Answer, Model
from stoker.wire.name import Name
from stoker.wire.time import Time


class Token(Answer):
    id: UUID
    name: str = Field(examples=["laptop"])
    user: str = Field(examples=["ada"])
    project: str | None = Field(default=None, description="It opens this project only.")
    created_at: Time
    expires_at: Time | None = None
    used_at: Time | None = Field(default=None, description="To about a minute.")


class NewToken(Token):
    token: str = Field(repr=False, examples=["stk_…"], description="Not shown again.")


class TokenPage(Answer):
    items: tuple[Token, ...]
    next_cursor: str | None = None


class CreateToken(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "laptop", "expires_in": "30d"}]})

    name: Name = "token"
    user: Name | None = Field(default=None, description="Yourself unless you are an admin of the server.")
    project: Name | None = Field(default=None, description="Opens this project only.")
    expires_in: Limit = Field(default=None, description="Never, unless it is said.")
