"""Stoker runs people's workloads on machines and never loses one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.client.swarm import Client

__all__ = ["Client"]


def __getattr__(name: str) -> object:
    """`stoker.Client` is loaded when a script asks for it: the commands and the agents need none."""
    if name == "Client":
        from stoker.client.swarm import Client

        return Client
    raise AttributeError(f"module 'stoker' has no attribute {name!r}")
