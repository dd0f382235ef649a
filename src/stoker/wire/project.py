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


class ProjectKey(Answer):
    """By which the server logs in to hosts of the project where a fleet names no other."""

    public_key: str = Field(
        examples=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKh7+9ul stoker"],
        description="The line for `~/.ssh/authorized_keys` there. The private key never leaves the server.",
    )
    fingerprint: str = Field(examples=["SHA256:uNiVztksCsDhcc0u9e8BrT2TkGl2/KMv/WbrIfdUQb4"])


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
