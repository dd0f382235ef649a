"""What the jobs of a run ask for: the same for all of them, or by groups of nodes, counted through in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.core.resources import Request


@dataclass(frozen=True, slots=True)
class Need:
    """`groups`: so many nodes of each kind; none of them: every node asks for `request`."""

    request: Request = field(default_factory=Request)
    groups: tuple[tuple[int, Request], ...] = ()

    def of(self, node: int) -> Request:
        for nodes, request in self.groups:
            if node < nodes:
                return request
            node -= nodes
        return self.request

    def to_json(self) -> dict[str, Any]:
        groups = [[nodes, request.to_json()] for nodes, request in self.groups]
        return self.request.to_json() | ({"groups": groups} if groups else {})

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Need":
        alike = {key: part for key, part in value.items() if key != "groups"}
        groups = tuple((nodes, Request.from_json(request)) for nodes, request in value.get("groups", ()))
        return Need(Request.from_json(alike), groups)
