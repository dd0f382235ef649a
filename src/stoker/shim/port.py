"""Ports of the host that containers are reached at: one that is free now, and that no other task of ours was given."""

import socket
from collections.abc import Sequence
from uuid import UUID

from stoker.core.errors import Broken
from stoker.core.shim_task import Port

ADDRESS = "127.0.0.1"
_TRIES = 50


class PortTaken(Broken):
    """Somebody else was faster."""

    code = "port_taken"


class Ports:
    """In memory only: who was given which follows from the records of the tasks."""

    def __init__(self) -> None:
        self._held: dict[int, UUID] = {}

    def take(self, id: UUID, inside: Sequence[int]) -> tuple[Port, ...]:
        return tuple(Port(one, self._free(id)) for one in dict.fromkeys(inside))

    def adopt(self, id: UUID, ports: Sequence[Port]) -> None:
        self._held.update({port.on_host: id for port in ports})

    def release(self, id: UUID) -> None:
        self._held = {port: holder for port, holder in self._held.items() if holder != id}

    @property
    def held(self) -> dict[int, UUID]:
        return dict(self._held)

    def _free(self, id: UUID) -> int:
        """The kernel knows of one. Until the container has it somebody else may take it, which its start then says."""
        for _ in range(_TRIES):
            with socket.socket() as probe:
                probe.bind((ADDRESS, 0))
                number = int(probe.getsockname()[1])
            if number not in self._held:
                self._held[number] = id
                return number
        raise Broken("The host has no free port.", code="no_port")
