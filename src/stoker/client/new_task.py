"""From what a person says of a swarm task to what the server is sent."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from stoker.client.client import Json
from stoker.core.errors import UserError

Command = str | Sequence[str] | None
"""An argv, or a line for the shell; none: a barrier, which only passes on that it was reached."""

_PLACE: Final = re.compile(r"\{(n?)\}")
_AMOUNTS: Final = ("cpus", "memory", "gpus")


class Options(TypedDict, total=False):
    """What may be said of a task beside its command. What is left out is for the server to choose."""

    name: str
    env: Mapping[str, str] | Sequence[str]
    working_dir: str
    stdin: str
    cpus: float
    memory: str | float
    gpus: float
    resources: Mapping[str, float | str]
    """Others, by the names under which workers have them."""
    alternatives: Sequence[Mapping[str, float | str]]
    estimated_runtime: float
    max_termination_time: float
    max_retry_count: int
    """How many attempts it may have: 1 means no second one."""
    crash_limit: int
    priority: int
    labels: Mapping[str, str]
    concurrency_key: str
    concurrency_limit: int
    deadline: datetime | str
    start_after: datetime | str
    exclusive: bool
    output: str
    output_dir: str


def new_task(command: Command, options: Options, *, after: Iterable[str] = (), group: str | None = None) -> Json:
    """As the server takes it; nothing is said that was not asked for."""
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    amounts = {name: said.pop(name) for name in _AMOUNTS if name in said} | dict(said.pop("resources", {}))
    for moment in ("deadline", "start_after"):
        if isinstance(said.get(moment), datetime):
            said[moment] = said[moment].astimezone(UTC).isoformat()
    if command is not None:
        said["command"] = command if isinstance(command, str) else list(command)
    if amounts:
        said["requested_resources"] = amounts
    if depends_on := list(after):
        said["depends_on"] = depends_on
    if group is not None:
        said["group"] = group
    return said


def command_of(words: Sequence[str]) -> str | list[str]:
    """Several words are a program and its arguments; a single one is a line for the shell, where it needs one."""
    return words[0] if len(words) == 1 and shlex.quote(words[0]) != words[0] else list(words)


class Template:
    """A task in which `{}` stands for an input and `{n}` for its number, in the command and in the name.

    Where the command has no `{}` the input is its last argument. In a line for the shell it is quoted, so that whatever
    stands in it is one word.
    """

    def __init__(self, command: str | Sequence[str], task: Json) -> None:
        self._task, self._name = task, task.get("name", "")
        self._named = bool(_PLACE.search(self._name))
        if not command:
            raise UserError("There is no command to map.")
        self._line, self._words = "", [""]
        if isinstance(command, str):
            self._line = command if "{}" in command else f"{command} {{}}"
        else:
            self._words = [*command] if any("{}" in word for word in command) else [*command, "{}"]

    def filled(self, text: str, number: int) -> Json:
        count = str(number)

        def put(found: re.Match[str]) -> str:
            return count if found[1] else text

        command: str | list[str]
        if self._line:
            quoted = shlex.quote(text)
            command = _PLACE.sub(lambda found: count if found[1] else quoted, self._line)
        else:
            command = [_PLACE.sub(put, word) if "{" in word else word for word in self._words]
        task = self._task | {"command": command}
        if self._named:
            task["name"] = _PLACE.sub(put, self._name)[:200]
        return task
