"""`ssh_config`: the hosts of a fleet that people name, and how to log in to them."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from stoker.core.block import AUTO, MAX_BLOCKS
from stoker.core.limits import MOST_SSH_HOSTS
from stoker.core.route import PORT, Hop, Route
from stoker.wire.blocks import read_blocks
from stoker.wire.model import Model, Whole, without_empty
from stoker.wire.problem import described
from stoker.wire.word import Path, refused

HOST_HINT: Final = "Write a name or an address: gpu-1.example.org, 10.0.0.7."
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_WITH_PORT: Final = re.compile(rf"({_HOST.pattern}):(\d{{1,5}})")
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")


def _host(value: Any) -> Any:
    if not isinstance(value, str):
        raise refused(f"expected the name or the address of a host, got {described(value)}", HOST_HINT)
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    if "@" in value:
        user, _, host = value.rpartition("@")
        raise refused(f"expected a host alone, got {described(value)}", f"Write {{host: {host}, user: {user}}}.")
    if with_port := _WITH_PORT.fullmatch(value):
        host, port = with_port.groups()
        raise refused(f"expected a host alone, got {described(value)}", f"Write {{host: {host}, port: {port}}}.")
    if not _HOST.fullmatch(value) or ".." in value or value.replace(".", "").isdecimal():
        raise refused(f"expected the name or the address of a host, got {described(value)}", HOST_HINT)
    return value.lower()


def _user(value: Any) -> Any:
    if not isinstance(value, str) or not _USER.fullmatch(value):
        raise refused(f"expected the name of a user, got {described(value)}", "For example root, or ubuntu.")
    return value


def _address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value if isinstance(value, str) else ""))
    except ValueError:
        hint = "Write where other hosts reach it: 10.0.0.7."
        raise refused(f"expected an IP address, got {described(value)}", hint) from None


def _network(value: Any) -> Any:
    try:
        return str(ipaddress.ip_network(value if isinstance(value, str) else ""))
    except ValueError:
        hint = "Write it as 10.0.0.0/16."
        if isinstance(value, str) and "/" in value:
            with suppress(ValueError):
                hint = f"Did you mean {ipaddress.ip_network(value, strict=False)}?"
        raise refused(f"expected a network, got {described(value)}", hint) from None


_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 253}
Address = Annotated[str, BeforeValidator(_host), WithJsonSchema(_TEXT | {"description": "Its name or its address."})]
User = Annotated[
    str, BeforeValidator(_user), WithJsonSchema(_TEXT | {"maxLength": 33, "description": "Who logs in there."})
]
Port = Annotated[Whole, Field(ge=1, le=65_535, description="Where its sshd listens.")]
Identity = Annotated[
    Path, Field(description="The private key, a file on your machine; without one the key of the project.")
]


class _OrName:
    """For editors: a name alone is a host too."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [dict(_TEXT), handler(schema)]}


class ProxyJump(Model):
    """A host through which others are reached."""

    model_config = ConfigDict(strict=True)

    host: Address
    port: Port = PORT
    user: User | None = Field(default=None, description="Unless it is that of the hosts.")
    identity_file: Identity | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return given if isinstance(given, Mapping) else {"host": _host(given)}


class SshHost(Model):
    """One host; what it says wins over what is said for all."""

    model_config = ConfigDict(strict=True)

    host: Address
    port: Port | None = None
    user: User | None = None
    identity_file: Identity | None = None
    proxy_jump: Annotated[ProxyJump, _OrName()] | None = None
    ip: Annotated[
        str | None, BeforeValidator(_address), WithJsonSchema(_TEXT | {"description": "Where other hosts reach it."})
    ] = None
    blocks: Annotated[
        int | str | None,
        BeforeValidator(read_blocks),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_BLOCKS}, {"const": AUTO}]}),
    ] = Field(default=None, description="Into how many equal parts it is divided.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        """A name alone is a host about which nothing else is to be said."""
        if isinstance(given, Mapping):
            return without_empty(cls, given)
        return {"host": _host(given)}


class SshConfig(Model):
    """Hosts, and how to log in to them."""

    model_config = ConfigDict(strict=True)

    hosts: Annotated[
        tuple[Annotated[SshHost, _OrName()], ...],
        Field(strict=False, min_length=1, max_length=MOST_SSH_HOSTS),
    ] = Field(description="Names or addresses, or maps with `host` and what differs for it.")
    user: User | None = None
    port: Port = PORT
    identity_file: Identity | None = None
    proxy_jump: Annotated[ProxyJump, _OrName()] | None = Field(
        default=None, description="The host through which they are reached."
    )
    network: Annotated[
        str | None,
        BeforeValidator(_network),
        WithJsonSchema(_TEXT | {"description": "In which they reach each other: 10.0.0.0/16."}),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return without_empty(cls, given)

    @model_validator(mode="after")
    def _each_once(self) -> "SshConfig":
        known: dict[str, int] = {}
        for number, one in enumerate(self.hosts):
            if not (one.user or self.user):
                raise at(("user",), "it is missing", "Say who logs in: user: root.")
            place = self.route(one).place
            if place in known:
                raise at(("hosts", number), f"{place} is there already, as number {known[place] + 1}", "Name it once.")
            known[place] = number
            if one.ip and self.network and ipaddress.ip_address(one.ip) not in ipaddress.ip_network(self.network):
                hint = "Correct one of the two; without network any address may stand here."
                raise at(("hosts", number, "ip"), f"{one.ip} is not in the network {self.network}", hint)
        return self

    def route(self, one: SshHost) -> Route:
        user = one.user or self.user or ""
        identity = one.identity_file or self.identity_file or ""
        jump, gate = None, one.proxy_jump or self.proxy_jump
        if gate is not None:
            jump = Hop(gate.host, gate.user or user, gate.port, gate.identity_file or identity)
        return Route(Hop(one.host, user, one.port or self.port, identity), jump, one.ip or "", self.network or "")

    def routes(self) -> Iterator[tuple[Route, int | str | None]]:
        """To each host, and how it is divided if that is said for it alone."""
        for one in self.hosts:
            yield self.route(one), one.blocks

    def identities(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """The files of keys that are named, and where."""
        for path, said in ((("hosts", number), one) for number, one in enumerate(self.hosts)):
            yield from _named(path, said)
        yield from _named((), self)


def _named(path: tuple[str | int, ...], said: "SshHost | SshConfig") -> Iterator[tuple[tuple[str | int, ...], str]]:
    if said.identity_file:
        yield (*path, "identity_file"), said.identity_file
    if said.proxy_jump is not None and said.proxy_jump.identity_file:
        yield (*path, "proxy_jump", "identity_file"), said.proxy_jump.identity_file


def shown(configuration: SshConfig) -> Iterator[tuple[str, str]]:
    """Each field as people compare it: each host is one."""
    for key, value in (("network", configuration.network),):
        if value:
            yield key, value
    for route, blocks in configuration.routes():
        said = [f"as {route.target.user}", route.target.identity and f"with {route.target.identity}"]
        said += [route.ip and f"at {route.ip}", "" if blocks is None else f"blocks {blocks}"]
        if route.jump is not None:
            key = route.jump.identity
            said.append(f"through {route.jump}{f' with {key}' if key and key != route.target.identity else ''}")
        yield f"host {route.place}", " ".join(filter(None, said))


def at(path: tuple[str | int, ...], what: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{what}", {"what": what, "hint": hint, "at": path})
