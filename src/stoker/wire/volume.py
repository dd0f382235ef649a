"""Volumes: what a person writes to have one, and as the API shows them."""

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from stoker.core.errors import UserError
from stoker.core.quantity import parse_size
from stoker.core.volume_facts import Kind, S
from stoker.wire.model import Answer, Flag, Model, Whole, without_empty
from stoker.wire.problem import described
from stoker.wire.tag import Tags
from stoker.wire.time import Time
from stoker.wire.word import Name, Path, refused

LEAST_MB: Final = 16
"""A file system needs some of it for itself."""
_SERVER: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
_ONLY_LOCAL: Final = ("instance", "fleet")
_ONLY_NFS: Final = ("server", "path")


def _size(value: Any) -> Any:
    try:
        size = parse_size(value, "size")
    except UserError:
        raise refused(f"{described(str(value))} is no size", "For example 10GB.") from None
    if size.lo < LEAST_MB or (size.hi is not None and size.hi != size.lo and ".." in str(value)):
        raise refused(f"expected one size of at least {LEAST_MB}MB, got {described(value)}", "For example 10GB.")
    return value


def _server(text: str) -> str:
    if not _SERVER.fullmatch(text):
        raise refused(f"expected the name or the address of a host, got {described(text)}", "For example nas.lab.")
    return text


def _export(text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or any(one.isspace() or one == "," for one in text):
        raise refused(f"expected an absolute path without spaces, got {described(text)}", "For example /srv/data.")
    return text


class VolumeConfiguration(Model):
    """A place for data that outlives jobs."""

    model_config = ConfigDict(
        strict=True,
        title="Stoker volume",
        json_schema_extra={
            "examples": [
                {"type": "volume", "name": "data", "kind": "local", "size": "10GB"},
                {"type": "volume", "name": "sets", "kind": "nfs", "server": "nas.lab", "path": "/srv/sets"},
            ]
        },
    )

    type: Literal["volume"]
    name: Name
    kind: Literal["local", "nfs", "dummy"] = Field(
        default="local",
        description="local: on the disk of one instance. nfs: a server's, on any host. dummy: of the dummy backend.",
    )
    size: Annotated[
        str | None,
        BeforeValidator(_size),
        WithJsonSchema({"type": "string", "pattern": r"^\s*[\d.]+\s*[MGTmgt][Bb]\s*$"}),
    ] = Field(default=None, description="Of a local one: a file system of its own of that size, which needs root.")
    instance: Annotated[
        str | None, Field(max_length=63, description="Where a local one is made; else where its first job lands.")
    ] = None
    fleet: Name | None = Field(default=None, description="On an instance of this fleet a local one is made.")
    server: Annotated[str, AfterValidator(_server), Field(description="Of nfs: who has it.")] | None = None
    path: Annotated[Path, AfterValidator(_export), Field(description="Of nfs: what it exports.")] | None = None
    exclusive: Flag | None = Field(
        default=None, description="One job at a time; the next one waits. A dummy one always is."
    )
    tags: Tags = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """A key without a value is not given."""
        if not isinstance(given, dict):
            return given
        return without_empty(cls, given)

    @model_validator(mode="after")
    def _of_one_kind(self) -> "VolumeConfiguration":
        for key in (*_ONLY_LOCAL, "size"):
            if self.kind == "nfs" and getattr(self, key) is not None:
                raise _at(key, "an nfs volume is wherever its jobs are, and as large as its server lets it be")
            if self.kind == "dummy" and key != "size" and getattr(self, key) is not None:
                raise _at(key, "a dummy volume goes where its job is", "Leave it out.")
        for key in _ONLY_NFS:
            if self.kind != "nfs" and getattr(self, key) is not None:
                raise _at(key, f"a {self.kind} volume has none", "Write kind: nfs, or leave it out.")
            if self.kind == "nfs" and getattr(self, key) is None:
                raise _at(key, "it is missing", "An nfs volume has server: nas.lab and path: /srv/data.")
        if self.kind == "dummy" and self.exclusive is False:
            raise _at("exclusive", "a dummy volume is attached to one machine at a time", "Leave it out.")
        if self.instance is not None and self.fleet is not None:
            raise _at("fleet", "the instance says where it is", "Leave one of the two out.")
        return self


def _at(key: str, what: str, hint: str = "Leave it out.") -> PydanticCustomError:
    return PydanticCustomError("refused", "{what}", {"what": what, "hint": hint, "at": (key,)})


def size_mb(configuration: VolumeConfiguration) -> int | None:
    return None if configuration.size is None else int(parse_size(configuration.size, "size").lo)


def exclusive(configuration: VolumeConfiguration) -> bool:
    return configuration.kind == "dummy" if configuration.exclusive is None else configuration.exclusive


def to_json(configuration: VolumeConfiguration) -> dict[str, Any]:
    """What differs from the defaults, with what has to be there."""
    plain = configuration.model_dump(mode="json", exclude_defaults=True)
    return {"type": "volume", "name": configuration.name, "kind": configuration.kind} | plain


class Volume(Answer):
    id: UUID
    name: str = Field(examples=["data"])
    project: str = Field(examples=["main"])
    kind: Kind
    status: S = Field(examples=["ACTIVE"])
    message: str = Field(default="", examples=[""], description="What went wrong, or is tried again.")
    version: int = Field(examples=[3], description="Counts how often it was changed.")
    spec: dict[str, Any] = Field(description="Its configuration, as it was understood.")
    exclusive: bool = Field(description="One job at a time.")
    size_mb: int | None = Field(default=None, examples=[10240])
    instance: UUID | None = Field(default=None, description="Of a local one: where it is, once that is known.")
    instance_name: str = Field(default="", examples=["local-9c41ab"])
    attached: tuple[str, ...] = Field(default=(), examples=[["train/0-0"]], description="The jobs that have it.")
    created_at: Time


class VolumePage(Answer):
    items: tuple[Volume, ...]
    next_cursor: str | None = None


class VolumeExpected(Model):
    """The volume as it was seen by who wants to change it."""

    id: UUID
    version: Whole = Field(ge=0, le=2**62, examples=[3])


class VolumePlanRequest(Model):
    configuration: VolumeConfiguration


class VolumeApply(Model):
    configuration: VolumeConfiguration
    expected: VolumeExpected | None = Field(
        default=None,
        description="`expected` of the plan: it is refused when the volume is another one. Null: there must be none "
        "yet. Left out: whatever is there is changed.",
    )


class VolumeAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    NOTHING = "nothing"
    """It is so already."""


class VolumePlan(Answer):
    action: VolumeAction = Field(examples=["create"])
    sentence: str = Field(examples=["Volume data would be made where its first job lands."], description="For people.")
    name: str = Field(examples=["data"])
    configuration: dict[str, Any] = Field(description="As it was understood.")
    current: Volume | None = None
    expected: VolumeExpected | None = Field(default=None, description="To be sent with the change.")
