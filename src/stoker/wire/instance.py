"""Instances as the API shows them."""

from uuid import UUID

from pydantic import Field

from stoker.core.instance import S as InstanceStatus
from stoker.wire.model import Answer
from stoker.wire.time import Time


class InstanceGpu(Answer):
    index: int
    name: str = Field(examples=["NVIDIA A100-SXM4-80GB"])
    memory_mb: int
    vendor: str = Field(examples=["nvidia"])


class InstanceResources(Answer):
    cpu: float = Field(examples=[8])
    memory_mb: int = Field(examples=[32_768])
    disk_mb: int = Field(examples=[100_000])
    gpus: tuple[InstanceGpu, ...] = ()
    named: dict[str, int] = Field(default_factory=dict)


class InstanceFree(Answer):
    """What no job holds; blocks told as people think of them."""

    cpu: float = Field(examples=[7.5])
    memory_mb: int = Field(examples=[30_720])
    disk_mb: int = Field(examples=[93_750])
    gpus: float = Field(default=0, examples=[0])


class Instance(Answer):
    id: UUID
    name: str = Field(examples=["local-9c41ab"], description="As sentences call it; accepted instead of the id.")
    fleet: str | None = Field(default=None, examples=["local"])
    backend: str = Field(examples=["local"])
    status: InstanceStatus = Field(examples=["IDLE"])
    resources: InstanceResources
    blocks: int = Field(examples=[32], description="Into how many equal parts it is divided.")
    blocks_free: int = Field(examples=[31])
    free: InstanceFree
    jobs: int = Field(examples=[1], description="How many hold a part of it.")
    price: float = Field(default=0.0, description="An hour.")
    spot: bool = False
    cordoned: bool = False
    health: str = ""
    message: str = ""
    unreachable_since: Time | None = None
    since: Time = Field(description="When it came into this status.")


class InstancePage(Answer):
    items: tuple[Instance, ...]
    next_cursor: str | None = None
