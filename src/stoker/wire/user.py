"""Users, and what they may do."""

from enum import StrEnum
from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.wire.model import Answer, Flag, Model
from stoker.wire.name import Name
from stoker.wire.time import Time


class Role(StrEnum):
    """In a project; each may do what those before it may."""

    USER = "user"
    """Sees everything in the project, submits runs, and stops and deletes those of their own."""
    MANAGER = "manager"
    """Also stops and deletes runs of others, and brings in and removes users."""
    ADMIN = "admin"
    """Also gives and takes every role, and deletes the project."""


class Membership(Answer):
    project: str = Field(examples=["main"])
    role: Role = Field(examples=["user"])


class User(Answer):
    id: UUID
    name: str = Field(examples=["ada"])
    admin: bool = Field(description="Of the whole server: every right in every project.")
    created_at: Time


class Me(User):
    projects: tuple[Membership, ...] = ()
    token_expires_at: Time | None = None


class UserPage(Answer):
    items: tuple[User, ...]
    next_cursor: str | None = None


class CreateUser(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ada"}]})

    name: Name
    admin: Flag = False


class ChangeUser(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"admin": True}]})

    admin: Flag
