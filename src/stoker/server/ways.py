"""The way to each agent: what an address begins with says who speaks to it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, JobId
from stoker.core.route import SSH
from stoker.engine.agent import NO_WAY, Runner, Shim

UNIX = "unix"

Lookup = Callable[[InstanceId], Awaitable[tuple[str, str] | None]]
"""An instance's address and token."""


class Speaker(Protocol):
    """Reaches agents by one kind of address; `place` is what stands behind the colon."""

    def shim(self, instance_id: InstanceId, place: str, token: str) -> Shim: ...

    def runner(self, instance_id: InstanceId, job_id: JobId, place: str) -> Runner: ...

    def forget(self, instance_id: InstanceId) -> None:
        """It is gone."""
        ...

    async def close(self) -> None: ...


class AgentWays:
    """The engine's `Agents`. An instance has the same address as long as it lives."""

    def __init__(self, lookup: Lookup, speakers: Mapping[str, Speaker]) -> None:
        self._lookup, self._speakers = lookup, speakers
        self._shims: dict[InstanceId, Shim] = {}
        self._schemes: dict[InstanceId, str] = {}

    async def shim(self, instance_id: InstanceId) -> Shim:
        if (known := self._shims.get(instance_id)) is not None:
            return known
        found = await self._lookup(instance_id)
        if found is None:
            raise Unavailable(f"Nobody knows the way to instance {instance_id} yet.", code=NO_WAY)
        address, token = found
        scheme, _, place = address.partition(":")
        # Asked again: while we looked it up, somebody else may have made one.
        return self._shims.get(instance_id) or self._made(instance_id, scheme, place, token)

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> Runner:
        """An agent that listens on a path says the path alone: it is on the host of its shim, who was asked before."""
        scheme, place = self._schemes.get(instance_id, UNIX), socket
        if not socket.startswith("/"):
            scheme, _, place = socket.partition(":")
        elif scheme not in (UNIX, SSH):
            scheme = UNIX
        return self._speaker(scheme).runner(instance_id, job_id, place)

    def forget(self, instance_id: InstanceId) -> None:
        self._schemes.pop(instance_id, None)
        if self._shims.pop(instance_id, None) is not None:
            for speaker in self._speakers.values():
                speaker.forget(instance_id)

    async def close(self) -> None:
        for speaker in self._speakers.values():
            await speaker.close()

    def _made(self, instance_id: InstanceId, scheme: str, place: str, token: str) -> Shim:
        self._schemes[instance_id] = scheme
        shim = self._shims[instance_id] = self._speaker(scheme).shim(instance_id, place, token)
        return shim

    def _speaker(self, scheme: str) -> Speaker:
        if (speaker := self._speakers.get(scheme)) is None:
            raise Unavailable(f"An agent is reached by {scheme}, which this server does not speak.")
        return speaker
