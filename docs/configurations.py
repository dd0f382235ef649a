"""Prints docs/reference/task.md: every key of a task's configuration, from the model that reads it.

`python -m docs.configurations` rewrites the page.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.wire.configuration import json_schema

PAGE: Final = Path(__file__).parent / "reference" / "task.md"
_HEAD: Final = """\
# A task's configuration

Printed by `make docs` from the model that reads it. Only `type` and `commands` have to be there; a wrong key or
value is refused with its line and the nearest valid name. `GET /api/schema/task` is the same as JSON Schema, for
editors.
"""
_TAIL: Final = """
## What a job sees

- **Its directory** is empty, its own, and its `HOME`; it is removed when the job has ended. What shall stay has to
  be written elsewhere. Nothing is uploaded: an absolute `working_dir` names a directory that is on the host, and
  `stoker run -C .` the one that you are in.
- **Its variables** are those of `env`, `STOKER_RUN_NAME` and others that begin with `STOKER_`, and a plain `PATH`.
  Neither your shell's variables nor an activated virtual environment are there: `PATH:` without a value under
  `env`, or `stoker run -e PATH`, takes yours along.
- **Its user** is you. As root, Stoker runs each project's jobs as a user of their own, who has to be allowed to
  enter and to write what they use.
- **Its commands** are run by one shell, so `cd` and variables last, and the first command that fails ends it.
- **Its limits**: `memory: 8GB` asks for a machine, or a share of one, that has it; `memory: ..8GB` is what it may
  use at most.

What no machine could ever hold waits unless you say otherwise (`on_no_capacity: fail`, `start_timeout: 10m`);
`stoker why` tells what it waits for.
"""


def page() -> str:
    schema = json_schema()
    resources = schema["$defs"]["Resources"]
    parts = [_HEAD, *_table(schema, ""), "", "## Resources", "", *_table(resources, "resources."), _TAIL]
    return "\n".join(parts)


def _table(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    yield from ("| key | value | unless you say |", "|---|---|---|")
    needed = schema.get("required", ())
    for name, told in schema["properties"].items():
        default = "it has to be there" if name in needed else _DEFAULTS.get(name) or str(told.get("default", ""))
        yield f"| `{prefix}{name}` | {_meaning(name, told)} | {default} |"


def _meaning(name: str, told: Mapping[str, Any]) -> str:
    if name in _MEANINGS:
        return _MEANINGS[name]
    allowed = " or ".join(f"`{one}`" for one in told.get("enum", ()))
    said = told.get("description", "")
    return f"{allowed}: {said}" if allowed else said


_MEANINGS: Final = {
    "name": "At most 63 small letters, digits and hyphens; one unfinished run of a project has it.",
    "shell": "The one that runs the commands: a name or a path.",
    "type": "`task`: commands that run to their end.",
    "env": "Variables: a map, or a list of `NAME=value`. A name without a value takes yours.",
    "resources": "What each job needs; the keys are below.",
    "max_duration": "How long it may run, then it is stopped: 90, 90s, 15m, 1h30m or 2d.",
    "start_timeout": "How long it may wait for a machine, then it fails: as above.",
    "stop_duration": "Between asking it to stop and killing it: as above.",
}
"""Where the schema speaks to programs."""


_DEFAULTS: Final = {
    "name": "one is made up",
    "setup": "nothing",
    "env": "none",
    "working_dir": "the job's own",
    "shell": "`sh`",
    "tty": "no",
    "resources": "a small share",
    "max_duration": "`off`",
    "start_timeout": "`off`",
    "stop_duration": "10s",
    "on_no_capacity": "`queue`",
    "cpu": "any",
    "memory": "any",
    "disk": "any",
    "gpu": "none",
    "named": "none",
}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
