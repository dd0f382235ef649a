"""Runs of many jobs: groups of nodes, and which keys of a configuration go together."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from pydantic import ConfigDict, Field
from pydantic_core import PydanticCustomError

from stoker.core.limits import MOST_JOBS_IN_A_RUN, MOST_NODES
from stoker.core.resources import Request
from stoker.wire.env import Env
from stoker.wire.model import Model
from stoker.wire.resources import Resources, to_request
from stoker.wire.word import Commands, Name

if TYPE_CHECKING:
    from stoker.wire.configuration import TaskConfiguration

MOST_GROUPS: Final = 100
NO_SHELL: Final = "none"
"""The command is a program with its arguments, for images without a shell."""


class Group(Model):
    """Nodes that do the same. What a group does not say is what the task says."""

    model_config = ConfigDict(strict=True)

    name: Name | None = Field(default=None, description="Told to its jobs; its number, from 0, unless you say.")
    nodes: int = Field(default=1, ge=1, le=MOST_NODES)
    commands: Annotated[Commands, Field(min_length=1)] = ()
    setup: Commands = ()
    env: Env = Field(default_factory=dict, description="Besides those of the task, and before them.")
    resources: Resources | None = None


Groups = Annotated[tuple[Group, ...], Field(strict=False, min_length=1, max_length=MOST_GROUPS)]


class Part(NamedTuple):
    """What one node does."""

    group: str
    commands: tuple[str, ...]
    setup: tuple[str, ...]
    env: dict[str, str | None]


def nodes_of(task: "TaskConfiguration") -> int:
    """Of one replica."""
    return sum(group.nodes for group in task.groups) if task.groups else task.nodes


def part_of(task: "TaskConfiguration", node: int) -> Part:
    for number, group in enumerate(task.groups):
        if node < group.nodes:
            name = group.name or str(number)
            return Part(name, group.commands or task.commands, group.setup or task.setup, task.env | group.env)
        node -= group.nodes
    return Part("", task.commands, task.setup, task.env)


def to_groups(task: "TaskConfiguration") -> tuple[tuple[int, Request], ...]:
    """What the groups ask for; none where all nodes ask for the same."""
    asked = [(group.nodes, _request(task, group.resources or task.resources)) for group in task.groups]
    return tuple(asked) if len({repr(request) for _, request in asked}) > 1 else ()


def first_request(task: "TaskConfiguration") -> Request:
    """What the first node asks for: all of them, unless groups differ."""
    return _request(task, resources_of(task, 0))


def _request(task: "TaskConfiguration", resources: Resources) -> Request:
    return replace(to_request(resources), container=contained(task))


def resources_of(task: "TaskConfiguration", node: int) -> Resources:
    for group in task.groups:
        if node < group.nodes:
            return group.resources or task.resources
        node -= group.nodes
    return task.resources


def contained(task: "TaskConfiguration") -> bool:
    """Whether it runs in a container; otherwise its commands are processes of the host."""
    return task.image is not None or task.python is not None or task.docker


def _without_shell(task: "TaskConfiguration") -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    hint = "Without a shell it is one program with its arguments."
    lists: list[tuple[tuple[str | int, ...], tuple[str, ...]]] = [(("commands",), task.commands)]
    lists += [(("groups", number, "commands"), group.commands) for number, group in enumerate(task.groups)]
    for at, commands in lists:
        if len(commands) > 1:
            yield at, f"shell: none runs one command, there are {len(commands)}", hint
        try:
            shlex.split(commands[0] if commands else "")
        except ValueError as error:
            yield (*at, 0), f"these are no words: {error}", "Close the quotes."
    if task.setup or any(group.setup for group in task.groups):
        yield ("setup",), "setup needs a shell", hint


def check(task: "TaskConfiguration") -> None:
    """Raises the first problem of keys that do not go together."""
    for at, what, hint in _problems(task):
        raise PydanticCustomError("refused", "{what}", {"what": what, "hint": hint, "at": at})


def _problems(task: "TaskConfiguration") -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    bare = [number for number, group in enumerate(task.groups) if not group.commands]
    if not task.commands and not task.groups and task.image is None and not task.entrypoint:
        yield ("commands",), "it is missing", ""
    if not task.commands and bare:
        yield ("groups", bare[0], "commands"), "it is missing", "Give it here, or to the task for all groups."
    if task.shell == NO_SHELL:
        yield from _without_shell(task)
    if task.groups and "nodes" in task.model_fields_set:
        yield ("nodes",), "nodes and groups do not go together", "The nodes of a replica are those of its groups."
    names = [group.name for group in task.groups if group.name]
    if twice := next((name for name in names if names.count(name) > 1), None):
        yield ("groups",), f"two groups are named {twice}", ""
    nodes = nodes_of(task)
    if nodes > MOST_NODES:
        yield ("groups",), f"a replica of {nodes:,} nodes is larger than the {MOST_NODES:,} that are taken", ""
    if task.max_parallel is not None and task.replicas == 1:
        yield ("max_parallel",), "it is for runs of several replicas", "Say replicas: N too, or leave it out."
    if nodes == 1 and task.stop_criteria == "master-done":
        yield ("stop_criteria",), "master-done is for runs of several nodes", "Say nodes: N too, or leave it out."
    if nodes == 1 and task.startup_order != "any":
        yield ("startup_order",), f"{task.startup_order} is for runs of several nodes", "Say nodes: N too."
    if (size := task.replicas * nodes) > MOST_JOBS_IN_A_RUN:
        hint = f"A run has at most {MOST_JOBS_IN_A_RUN:,}; submit several."
        yield ("replicas",), f"{task.replicas:,} replicas of {nodes} nodes are {size:,} jobs", hint
