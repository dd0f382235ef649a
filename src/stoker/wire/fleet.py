"""Fleets: what a person writes to have one, and as the API shows them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from stoker.core.block import AUTO, MAX_BLOCKS
from stoker.core.fleet import Fleet as Policy
from stoker.core.limits import MOST_FLEET_NODES, MOST_KEY_CHARS, MOST_KEYS
from stoker.core.offer import SpotPolicy
from stoker.wire.blocks import read_blocks
from stoker.wire.duration import HINT_OFF, OFF, format_duration, parse_duration
from stoker.wire.model import Answer, Flag, Model, Whole, without_empty
from stoker.wire.problem import described
from stoker.wire.resources import Resources, to_request
from stoker.wire.ssh import SshConfig, at
from stoker.wire.tag import Tags
from stoker.wire.time import Time
from stoker.wire.word import Name, refused

LOCAL: Final = "local"
"""The fleet of the server's own host, and its backend."""
NODES_HINT: Final = "Write 2 for so many at any time, 0..8 for as many as are needed, or 0.. without end."
OF_PROVIDERS: Final = ("backends", "nodes", "resources", "idle_duration", "spot_policy", "max_price", "placement")
"""What is said of machines that are launched, and of no others."""
_NODES: Final = re.compile(r"\s*(\d{1,6})?\s*(\.\.)?\s*(\d{1,6})?\s*")


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many machines; `most` None: without end."""

    least: int
    most: int | None

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        return f"{self.least}..{'' if self.most is None else self.most}"


def _nodes(value: Any) -> Any:
    if isinstance(value, Nodes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise refused(f"expected a number of machines or a range, got {described(value)}", NODES_HINT)
    found = _NODES.fullmatch(str(value))
    if found is None or not (found[1] or found[3]) or (found[3] and not found[2]):
        raise refused(f"expected a number of machines or a range, got {described(value)}", NODES_HINT)
    least, most = int(found[1] or 0), int(found[3]) if found[3] else None
    most = most if found[2] else least
    if most is not None and most < least:
        raise refused(f"the range {value} ends before it begins", NODES_HINT)
    if max(least, most or 0) > MOST_FLEET_NODES:
        raise refused(f"a fleet has at most {MOST_FLEET_NODES:,} machines", NODES_HINT)
    if most == 0:
        raise refused("a fleet that may never have a machine is none", "`stoker fleet delete` deletes one.")
    return Nodes(least=least, most=most)


def _backends(value: Any) -> Any:
    if isinstance(value, list | tuple) and "ssh" in value:
        raise refused("hosts of yours are named in ssh_config", "Write ssh_config instead of backends.")
    return value


def _idle(value: Any) -> float | None:
    try:
        return parse_duration(value)
    except ValueError as error:
        told = {"what": str(error), "hint": HINT_OFF}
        raise PydanticCustomError("duration", "expected a length of time: {what}", told) from None


class FleetConfiguration(Model):
    """A group of machines with one policy."""

    model_config = ConfigDict(
        strict=True,
        title="Stoker fleet",
        json_schema_extra={
            "examples": [
                {"type": "fleet", "name": "cloud", "backends": ["dummy"], "nodes": "0..8", "idle_duration": "10m"},
                {"type": "fleet", "name": "local", "backends": ["local"], "blocks": 4},
                {"type": "fleet", "name": "office", "ssh_config": {"user": "root", "hosts": ["10.0.0.7", "10.0.0.8"]}},
            ]
        },
    )

    type: Literal["fleet"]
    name: Name
    backends: Annotated[
        tuple[Literal["dummy", "local"], ...],
        BeforeValidator(_backends),
        Field(strict=False, min_length=1, description="Where its machines are."),
    ] = ()
    ssh_config: SshConfig | None = Field(default=None, description="Hosts of yours that it is made of.")
    nodes: Annotated[
        Nodes,
        BeforeValidator(_nodes),
        PlainSerializer(str, return_type=str),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": MOST_FLEET_NODES},
                    {"type": "string", "pattern": r"^\s*\d*\s*(\.\.)?\s*\d*\s*$"},
                ],
                "description": "2: so many at any time. 0..8: as many as are needed. 0..: without end.",
            }
        ),
    ] = Nodes(least=1, most=1)
    resources: Resources = Field(
        default_factory=Resources, description="Which machines it may be made of; the most of a range counts too."
    )
    idle_duration: Annotated[
        float | None,
        BeforeValidator(_idle),
        PlainSerializer(format_duration, return_type=str),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, {"const": OFF}]}),
    ] = Field(
        default=300.0, description="How long a machine above the least may be idle before it goes; off: for ever."
    )
    spot_policy: Literal["spot", "on-demand", "auto"] = Field(
        default="auto", description="Machines that may be taken away, those that may not, or whichever is cheaper."
    )
    max_price: Annotated[float, Field(gt=0, le=1e6, description="Of one machine, an hour.")] | None = None
    placement: Literal["any", "cluster"] = Field(
        default="any", description="cluster: all machines at one location, where the first one is."
    )
    blocks: Annotated[
        int | str | None,
        BeforeValidator(read_blocks),
        WithJsonSchema(
            {
                "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_BLOCKS}, {"const": AUTO}],
                "description": "Into how many equal parts a machine is divided; auto: one a GPU, else sixteen a CPU.",
            }
        ),
    ] = Field(default=None)  # 1, and of the server's own host auto
    allow_privileged: Flag | None = Field(
        default=None,
        description="Whether tasks may say privileged or docker, and so be root on its hosts. Unless it is said: only "
        "on the server's own host, while the server has one user.",
    )
    tags: Tags = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        """A key without a value is not given; nodes have to be said, except of the one host that is there."""
        if not isinstance(given, dict):
            return given
        given = without_empty(cls, given)
        backends = given.get("backends")
        if "ssh_config" in given:
            for key in (one for one in OF_PROVIDERS if one in given):
                raise at((key,), "its hosts are named in ssh_config", "Leave it out; blocks and tags can be said.")
            return given
        if backends is not None and backends not in ([LOCAL], (LOCAL,)) and "nodes" not in given:
            told = {"what": "it is missing", "hint": NODES_HINT, "at": ("nodes",)}
            raise PydanticCustomError("refused", "{what}", told)
        return given

    @model_validator(mode="after")
    def _of_one_kind(self) -> "FleetConfiguration":
        if self.ssh_config is not None:
            if self.name == LOCAL:
                raise at(("name",), f"the server's own host is fleet {LOCAL}", "Choose another name.")
            return self
        if not self.backends:
            raise at(("backends",), "it is missing", "Or name hosts of yours in ssh_config.")
        if (LOCAL in self.backends) is not (self.name == LOCAL):
            what, hint = f"the server's own host is fleet {LOCAL}, and nothing else is", f"Write name: {LOCAL}."
            if self.name == LOCAL:
                hint = f"Write backends: [{LOCAL}], or choose another name."
            raise at(("name",), what, hint)
        if self.name != LOCAL:
            return self
        if len(self.backends) > 1:
            raise at(("backends",), "the server's own host is a fleet of its own", f"Write backends: [{LOCAL}].")
        for key in sorted(
            self.model_fields_set & {"resources", "idle_duration", "spot_policy", "max_price", "placement"}
        ):
            raise at((key,), "the server's own host is what it is", "Leave it out; blocks and tags can be changed.")
        if self.nodes != Nodes(least=1, most=1):
            raise at(("nodes",), "the server's own host is one machine", "Leave it out.")
        return self


def to_policy(configuration: FleetConfiguration) -> Policy:
    if configuration.name == LOCAL:
        # Nothing is launched in it, and what is there stays.
        blocks = configuration.blocks or AUTO
        return Policy(idle_duration_s=None, blocks=blocks, allow_privileged=configuration.allow_privileged)
    if configuration.ssh_config is not None:
        hosts = tuple((route.place, blocks) for route, blocks in configuration.ssh_config.routes())
        blocks = configuration.blocks or 1
        allowed = configuration.allow_privileged
        return Policy(idle_duration_s=None, blocks=blocks, hosts=hosts, allow_privileged=allowed)
    return Policy(
        min_nodes=configuration.nodes.least,
        max_nodes=configuration.nodes.most,
        idle_duration_s=configuration.idle_duration,
        backends=tuple(configuration.backends),
        spot_policy=SpotPolicy(configuration.spot_policy),
        max_price=configuration.max_price,
        cluster=configuration.placement == "cluster",
        blocks=configuration.blocks or 1,
        resources=to_request(configuration.resources),
        allow_privileged=configuration.allow_privileged,
    )


def to_json(configuration: FleetConfiguration) -> dict[str, Any]:
    """What differs from the defaults, with what has to be there."""
    plain = configuration.model_dump(mode="json", exclude_defaults=True)
    if configuration.ssh_config is not None:
        return {"type": configuration.type, "name": configuration.name} | plain
    nodes = {} if configuration.name == LOCAL else {"nodes": str(configuration.nodes)}
    return {"type": configuration.type, "name": configuration.name, "backends": list(configuration.backends)} | (
        nodes | plain
    )


class FleetStatus(StrEnum):
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    """It goes with its last instance."""


class Fleet(Answer):
    id: UUID
    name: str = Field(examples=["local"])
    project: str | None = Field(default=None, description="None: every project may use it.")
    status: FleetStatus = Field(default=FleetStatus.ACTIVE, examples=["ACTIVE"])
    message: str = Field(default="", examples=["1 of 2 nodes"], description="What it still has to do.")
    version: int = Field(default=0, examples=[3], description="Counts how often it was changed.")
    spec: dict[str, Any] = Field(
        examples=[{"type": "fleet", "name": "local", "backends": ["local"], "blocks": "auto"}],
        description="Its configuration, as it was understood.",
    )
    instances: int = Field(examples=[1], description="How many are not gone.")
    idle: int = Field(default=0, examples=[1], description="Of those, how many no job uses.")
    busy: int = Field(default=0, examples=[0], description="Of those, on how many jobs are.")
    price: float = Field(default=0.0, examples=[1.5], description="Of its instances together, an hour.")
    cost: float = Field(default=0.0, examples=[0.25], description="So far, with its instances that are gone.")
    created_at: Time


class FleetPage(Answer):
    items: tuple[Fleet, ...]
    next_cursor: str | None = None


class FleetExpected(Model):
    """The fleet as it was seen by who wants to change it."""

    id: UUID
    version: Whole = Field(ge=0, le=2**62, examples=[3])


class FleetPlanRequest(Model):
    configuration: FleetConfiguration


class FleetApply(Model):
    configuration: FleetConfiguration
    keys: dict[str, Annotated[str, Field(max_length=MOST_KEY_CHARS)]] = Field(
        default_factory=dict,
        max_length=MOST_KEYS,
        repr=False,
        description="The private keys that it names as `identity_file`, by those names. They are kept sealed and "
        "never shown again; who leaves one out that was sent before keeps it.",
    )
    expected: FleetExpected | None = Field(
        default=None,
        description="`expected` of the plan: it is refused when the fleet has changed since. Null: there must be none "
        "yet. Left out: whatever is there is changed.",
    )


class FleetAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    NOTHING = "nothing"
    """It is so already."""


class FleetChange(Answer):
    """One field, as people write it."""

    key: str = Field(examples=["nodes"])
    before: str = Field(examples=["0..2"])
    after: str = Field(examples=["0..8"])

    def __str__(self) -> str:
        return f"{self.key}: {self.before or 'nothing'} → {self.after or 'nothing'}"


class Leaving(Answer):
    """An instance that would go."""

    id: UUID
    name: str = Field(examples=["dummy-9c41ab"])
    reason: str = Field(examples=["the fleet takes no spot machines"])
    busy: bool = Field(default=False, description="Jobs are on it: it goes when they have ended.")


class FleetPlan(Answer):
    action: FleetAction = Field(examples=["update"])
    sentence: str = Field(examples=["Fleet cloud would be changed: nodes: 0..2 → 0..8."], description="For people.")
    name: str = Field(examples=["cloud"])
    configuration: dict[str, Any] = Field(description="As it was understood.")
    changes: tuple[FleetChange, ...] = ()
    launches: int = Field(default=0, description="How many machines would be launched at once.")
    offer: str = Field(default="", description="As what, now.")
    leaving: tuple[Leaving, ...] = ()
    joining: tuple[str, ...] = Field(default=(), examples=[["10.0.0.7"]], description="Hosts that would come.")
    current: Fleet | None = None
    expected: FleetExpected | None = Field(default=None, description="To be sent with the change.")
