"""Instances as the API shows them."""

from uuid import UUID

from pydantic import ConfigDict, Field

from stoker.core.instance_facts import S as InstanceStatus
from stoker.wire.duration import Limit
from stoker.wire.model import Answer, Model
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
    docker: bool = Field(default=False, description="A container engine answers there.")


class InstanceFree(Answer):
    """What no job holds; blocks told as people think of them."""

    cpu: float = Field(examples=[7.5])
    memory_mb: int = Field(examples=[30_720])
    disk_mb: int = Field(examples=[93_750])
    gpus: float = Field(default=0, examples=[0])


class InstanceJob(Answer):
    """A job that holds a part of it."""

    id: UUID
    run: str = Field(examples=["train"])
    replica: int
    node: int
    status: str = Field(examples=["RUNNING"])


class InstanceStep(Answer):
    """Something that is done on a host of yours."""

    step: str = Field(examples=["ship the agents"])
    state: str = Field(examples=["done"], description="`doing`, `done` or `failed`.")
    message: str = Field(default="", examples=["38.2 MB"])
    at: Time


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
    tenants: tuple[InstanceJob, ...] = Field(default=(), description="Those of this project; only of one instance.")
    offer: str = Field(default="", examples=["medium"], description="What it was launched as.")
    location: str = Field(default="", examples=["north"])
    price: float = Field(default=0.0, description="An hour.")
    cost: float = Field(default=0.0, description="So far, or until it was gone.")
    spot: bool = False
    cordoned: bool = False
    draining_until: Time | None = Field(default=None, description="Jobs that are there then are interrupted.")
    health: str = ""
    steps: tuple[InstanceStep, ...] = Field(default=(), description="What is, or was last, done on a host of yours.")
    trouble: str = Field(default="", description="What stands in the way of that, and what to do; it is tried again.")
    message: str = ""
    unreachable_since: Time | None = None
    since: Time = Field(description="When it came into this status.")
    launched_at: Time | None = Field(default=None, description="When its provider accepted it: it costs from then on.")
    ended_at: Time | None = None


class Drain(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"deadline": "10m"}]})

    deadline: Limit = Field(default=3600.0, description="After so long, what still runs on it is interrupted.")


class Trust(Model):
    model_config = ConfigDict(json_schema_extra={"examples": [{"place": "10.0.0.7", "fingerprint": "SHA256:…"}]})

    place: str = Field(max_length=600, description="The host, as the fleet names it.")
    fingerprint: str = Field(max_length=100, description="Of the key that it shows now, as `ssh-keygen -l` prints it.")


class HostKey(Answer):
    """What a host is known by."""

    place: str = Field(examples=["10.0.0.7"])
    fingerprint: str = Field(examples=["SHA256:uNiVztksCsDhcc0u9e8BrT2TkGl2/KMv/WbrIfdUQb4"])
    offered: str = Field(default="", description="Of another key that it shows now; it is refused until it is trusted.")


class HostKeys(Answer):
    items: tuple[HostKey, ...]


class InstancePage(Answer):
    items: tuple[Instance, ...]
    next_cursor: str | None = None
