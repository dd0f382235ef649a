"""Projects and their members."""

from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.wire.model import Answer, Model
from stoker.wire.name import Name
from stoker.wire.time import Time
from stoker.wire.user import Role


class Project(Answer):
    id: UUID
    name: str = Field(examples=["main"])
    created_at: Time


class ProjectPage(Answer):
    items: tuple[Project, ...]
    next_cursor: str | None = None


class CreateProject(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "vision"}]})

    name: Name


class Member(Answer):
    user: str = Field(examples=["ada"])
    role: Role = Field(examples=["user"])
    added_at: Time


class MemberPage(Answer):
    items: tuple[Member, ...]
    next_cursor: str | None = None


class SetMember(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "user"}]})

    role: Role
