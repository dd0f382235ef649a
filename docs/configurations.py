"""Prints docs/reference/task.md, fleet.md and volume.md: every key of a configuration, from the model that reads it.

`python -m docs.configurations` rewrites the pages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from docs.ssh import SSH_HEAD, SSH_HOST_MEANINGS, SSH_JUMP_MEANINGS, SSH_MEANINGS, SSH_TAIL
from docs.volume import VOLUME_HEAD, VOLUME_MEANINGS, VOLUME_TAIL
from stoker.wire.configuration import TaskConfiguration, json_schema
from stoker.wire.container import Images
from stoker.wire.fleet import FleetConfiguration
from stoker.wire.revision import HARMLESS
from stoker.wire.schedule import ScheduleConfiguration
from stoker.wire.volume import VolumeConfiguration

PAGE: Final = Path(__file__).parent / "reference" / "task.md"
FLEET_PAGE: Final = Path(__file__).parent / "reference" / "fleet.md"
VOLUME_PAGE: Final = Path(__file__).parent / "reference" / "volume.md"
_HEAD: Final = """\
# A task's configuration

Printed by `make docs` from the model that reads it. Only `type` and `commands` (or `groups` that have them, or an
`image` with a program of its own) have to be there; a wrong key or value is refused with its line and the nearest valid
name. `GET /api/schema/task` is the same as JSON Schema, for editors.
"""
_SCHEDULE: Final = """\
A run with a schedule is accepted as PENDING and starts a round at each trigger: `schedule: "0 3 * * *"`, a list of such
lines, or a map of these keys. A line that begins with `*` needs quotes in YAML.
"""
_ROUNDS: Final = """
- **The strange nights.** A line at fixed hours means the clock of its zone. On the night the clock jumps ahead, a time
  that does not exist runs at the first minute that does; where a time comes twice, it runs the first time only. A line
  for every hour or minute follows real time. A clock that is set back repeats nothing: the next trigger is the
  one that was waited for.
- **What was missed** while the server was down runs once when it is back, and the event says that it is late.
- **By hand.** `stoker trigger RUN` starts a round now (while one runs, `overlap` decides, and it says which), also of a
  paused schedule. `stoker pause RUN` lets the clock trigger nothing, a round that runs goes on; `stoker resume RUN`
  goes on with the next trigger and makes up for nothing. `stoker stop RUN` ends the round and the schedule.

## What may change while it lives

`stoker apply` of a file whose name is that of an unfinished run changes that run in place, if nothing but these keys
differs:
{keys}.
The plan shows each as `old -> new`, and it counts at once, also for jobs that wait or run: deadlines are computed
anew. A job that is being stopped keeps the grace it was given. A schedule
may become another one, but none comes or goes. Everything else is refused with the keys that differ: stop the run
first, or choose another name. What people did by hand (`stoker hold`, `release`, `pause`) stays unless the file says
otherwise than before.

## Held runs

`hold: true`, or `stoker hold RUN`: the run is accepted, and nothing of it is placed until `stoker release RUN`. The
time in which it is held does not count for `start_timeout`. Of a run with many jobs those are held that have not
started; where nothing waits any more, `stoker hold` is refused. A job whose machine is on its way already starts."""
_PROFILES: Final = """
## Profiles

`.stoker/profiles.yml` holds keys that many files share. It is looked for in the directory of the file (of `stoker run`:
in yours) and above, up to the root of the repository or your home, and then as `profiles.yml` in `STOKER_HOME`; the
nearest that knows the name is taken.

```yaml
profiles:
  - name: gpu
    default: true        # taken unless --profile says otherwise; `--profile none` takes none
    resources: {gpu: 24GB.., memory: 32GB}
    max_duration: 12h
```

Every key of a task may stand there but `type` and `commands`. What the file, or a flag of `stoker run`, says lies over
it: maps are merged key by key (`env` too, also where it is a list), lists are replaced, and the file wins. What is
wrong with a profile is said with its file and line.

## Expressions

In `name`, `commands`, `setup`, `env`, `working_dir`, `image` and `registry_auth` of a file or a profile, filled in by
the client when it applies:

| | |
|---|---|
| `${{ env.X }}` | your variable X, as it is; one that you do not have is refused |
| `${{ run.args }}` | the words behind `--` of `stoker apply -f x.yaml -- --lr 3e-4`; quoted where a shell reads them |
| `$${{` | writes `${{` and means nothing else |

What is filled in is never looked at again. Inside of `[ ]` and `{ }` of YAML an expression needs quotes around it.
Whatever else begins with `${{` is refused with its line, and so are words that no expression takes."""
_CONTAINERS: Final = """
## Containers

A task that says `image`, `python` or `docker: true` runs in a container; any other is a process of its host. It is
placed only where a container engine answers (Docker, by `DOCKER_HOST` or at `/run/docker.sock`, with an agent that is
root), and `stoker why` says where there is none.

- **The image** needs nothing of Stoker, no Python and no shell. `python: "3.12"` stands for `{python}`, and for
  `{cuda}` where GPUs are asked for; `docker: true` alone for
  `{docker}`. The server takes others from `STOKER_IMAGE_PYTHON`, `STOKER_IMAGE_CUDA` and `STOKER_IMAGE_DOCKER`, in
  which `{{python}}` is the version.
  It is pulled where it is not there, for at most an hour; how far it is stands in `stoker ps`. One that was pulled goes
  when nobody has used it for a week, or when its disk gets full.
- **Commands** are run by the image's `sh`, in the job's own directory `/stoker/task/work`, with the variables of the
  image below those of the job. With an `entrypoint` they are its arguments: it is started with the shell and the
  commands behind it. Without commands the `entrypoint` is run, or the program of the image. `shell: none` runs one
  command without a shell: `commands: ["/app --flag"]`.
- **Its user** is `user`, or the one that the image names: `app`, `1000`, `app:staff`. Its `HOME` is that user's.
- **Its network** is the host's where it has the whole machine or is one of several nodes. Otherwise it is one of its
  own, and `ports` are reached at other ports of its host, on 127.0.0.1; `stoker get RUN` says at which.
- **Its GPUs** are those that it was given, and no others.
- **All rights on the host**, `privileged` and `docker`, are for fleets that say `allow_privileged: true`; the server's
  own host allows them as long as the server has one user, unless its fleet says `false`.
- **Secrets.** The password of `registry_auth` is stored with the run and shown to nobody again."""
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
- **Its end**: `STOKER_DEADLINE_FILE` names a file that is there as soon as a deadline is known: one line with the
  Unix time at which it is asked to stop and the reason (`max_duration`, `preemption` or `drain`), for `read -r end
  why`. With a `max_duration`, `STOKER_MAX_DURATION` (seconds) and `STOKER_DEADLINE` (Unix time) are there at once.
- **Its warning**: `warn_signal: USR1@120s` sends USR1 so long before that moment, at once if less is left. Only
  processes that handle the signal hear it, since the shell and others would die of it; one that begins to handle it
  later hears it then. With it a preempted job keeps running until its notice is nearly over; without it, it is
  stopped at once, to run again elsewhere the sooner. A program that leaves after the warning with another code than 0
  was interrupted (retried by `interruption`); 0 means that it is done.

Of a run of many jobs each knows its place: `STOKER_REPLICA` of `STOKER_REPLICAS_NUM`, and on several nodes
`STOKER_NODE_RANK` of `STOKER_NODES_NUM`, the addresses of all in `STOKER_NODES_IPS` (a line each, by rank),
`STOKER_MASTER_NODE_IP`, `STOKER_GPUS_PER_NODE`, `STOKER_GPUS_NUM` and, with groups, `STOKER_NODE_GROUP`. The nodes of a
replica are whole machines of one fleet. None begins before all have theirs, and when one fails the others are stopped
and the replica is tried again as a whole, if `retry` says so. A replica that fails for good fails the run:
`stoker retry` does again what did not get done.

What no machine could ever hold waits unless you say otherwise (`on_no_capacity: fail`, `start_timeout: 10m`);
`stoker why` tells what it waits for.
"""

_FLEET_HEAD: Final = """\
# A fleet's configuration

Printed by `make docs` from the model that reads it. A fleet is a group of machines with one policy: `stoker apply -f
fleet.yaml` makes it, and applied again with other values changes it in place. `GET /api/schema/fleet` is the same as
JSON Schema, for editors.

```yaml
type: fleet
name: cloud
backends: [dummy]
nodes: 0..8
resources: {cpu: 4.., gpu: A100:1}
idle_duration: 10m
```
"""
_FLEET_TAIL: Final = """
`resources` has the keys that [a task's](task.md) has, and says which machines a fleet may be made of: unlike for a job,
a machine with more than the most of a range is as wrong as one with less than the least.

## What a fleet does

- **It grows** to its least number of nodes at once, with the cheapest machines that fit, and beyond it when a run waits
  for room, never above its most. A machine that was refused is not asked for again at once: longer with each time, and
  another offer is taken meanwhile.
- **It shrinks** when a machine above the least has been idle for `idle_duration`.
- **It changes in place.** `stoker apply` shows each field that changes and the machines that would go, and asks. Those
  that no longer fit go when no job is on them, those on their way first. When somebody else has changed it since the
  plan was shown, it is refused with what they did.
- **As a cluster** all its machines are at one location, where the first of them is. The nodes of one run are at one
  location in any fleet.
- **It ends** with `stoker fleet delete`: nothing is placed in it any more, its machines go, and with the last of them
  the fleet. While jobs are on them that is refused; `--force` interrupts them.
- **A run chooses** among all fleets of its project, or those that it names: `fleets: [cloud]`.

The server's own host is the fleet `local`, which `stoker up` makes and every project may use. `blocks` says how it is
divided, at once or when the last job on it has ended, and a restart keeps it:

```yaml
type: fleet
name: local
backends: [local]
blocks: 4
```

## Its machines

`stoker instance list` shows them with what is free, `stoker instance get NAME` with what one has cost and which jobs
are on it. `cordon` keeps new jobs away; `drain --deadline 10m` also lets the machine go when the last job has ended,
and interrupts what still runs at the deadline; `uncordon` calls both off; `delete` does not wait. `health` is what
its agent finds wrong with the host: a disk that is nearly full or read-only, a GPU that is gone or cannot be repaired.
Until it is well nothing new is placed on it, and what runs there goes on.
"""


_BELOW: Final = (
    ("Resources", "Resources", "resources."),
    ("Groups", "Group", "groups[]."),
    ("Registry", "Login", "registry_auth."),
    ("Retry", "Retry", "retry."),
    ("Utilization policy", "UtilizationPolicy", "utilization_policy."),
    ("Disconnect", "Disconnect", "disconnect."),
)


def page() -> str:
    schema = json_schema()
    parts = [_HEAD, *_table(schema, "")]
    for title, model, prefix in _BELOW:
        parts += ["", f"## {title}", "", *_table(schema["$defs"][model], prefix)]
    keys = ", ".join(f"`{key}`" for key in HARMLESS if key in TaskConfiguration.model_fields)
    schedule = ScheduleConfiguration.model_json_schema()
    parts += ["", "## Schedule", "", _SCHEDULE, *_table(schedule, "schedule.")]
    images = asdict(Images())
    parts += [_ROUNDS.format(keys=keys), _PROFILES, _CONTAINERS.format(**images), _TAIL]
    return "\n".join(parts)


def fleet_page() -> str:
    schema = json_schema(FleetConfiguration)
    hosts = [*_table(schema["$defs"]["SshConfig"], "ssh_config.", SSH_MEANINGS)]
    hosts += list(_table(schema["$defs"]["SshHost"], "hosts[].", SSH_HOST_MEANINGS))[2:]
    hosts += list(_table(schema["$defs"]["ProxyJump"], "proxy_jump.", SSH_JUMP_MEANINGS))[2:]
    return "\n".join([_FLEET_HEAD, *_table(schema, "", _FLEET_MEANINGS), _FLEET_TAIL, SSH_HEAD, *hosts, SSH_TAIL])


def volume_page() -> str:
    return "\n".join([VOLUME_HEAD, *_table(json_schema(VolumeConfiguration), "", VOLUME_MEANINGS), VOLUME_TAIL])


def _table(
    schema: Mapping[str, Any], prefix: str, meanings: Mapping[str, tuple[str, str]] | None = None
) -> Iterator[str]:
    yield from ("| key | value | unless you say |", "|---|---|---|")
    needed = schema.get("required", ())
    for name, told in schema["properties"].items():
        known = _DEFAULTS.get(prefix + name) or _DEFAULTS.get(name)
        default = "it has to be there" if name in needed else known or str(told.get("default", ""))
        plain = (_MEANINGS.get(prefix + name) or _meaning(name, told), default)
        meaning, default = (meanings or {}).get(name) or plain
        yield f"| `{prefix}{name}` | {meaning} | {default} |"


def _meaning(name: str, told: Mapping[str, Any]) -> str:
    if name in _MEANINGS:
        return _MEANINGS[name]
    allowed = " or ".join(f"`{one}`" for one in told.get("enum", ()))
    said = told.get("description", "")
    return f"{allowed}: {said}" if allowed else said


_MEANINGS: Final = {
    "name": "At most 63 small letters, digits and hyphens; one unfinished run of a project has it.",
    "shell": "The one that runs the commands: a name or a path; `none`: the one command is run without.",
    "image": "Run it in a container of this image; more is below.",
    "python": 'Run it in a container that has this Python: `"3.12"`.',
    "registry_auth": "Of the image's registry: a map, the keys are below.",
    "registry_auth.password": "Shown to nobody again.",
    "registry_auth.username": "",
    "ports": "Ports on which its container listens: `[8000]`.",
    "type": "`task`: commands that run to their end.",
    "env": "Variables: a map, or a list of `NAME=value`. A name without a value takes yours.",
    "resources": "What each job needs; the keys are below.",
    "retry": "Try again what failed: `true`, or a map; the keys are below.",
    "groups": "Instead of `nodes`: a list of nodes that do different things together; the keys are below.",
    "groups[].name": "Told to its jobs as `STOKER_NODE_GROUP`.",
    "groups[].nodes": "How many nodes it has; ranks are counted through the groups in their order.",
    "groups[].commands": "Of each of its nodes.",
    "groups[].setup": "Run before the commands.",
    "groups[].env": "Variables besides those of the task; where both have one, this.",
    "groups[].resources": "What each of its nodes needs.",
    "on_events": "What is tried again, a list: `no-capacity`, `interruption` (its machine was taken away), `error`.",
    "duration": "Not any more so long after its first failure in a row; `off`: without end.",
    "on_exit_codes": "A list: programs that end with one of these begin again, and it counts as no try.",
    "volumes": "What it finds where, a list: `data:/data`, `/srv/sets:/sets:ro`; [volumes](volume.md) says more.",
    "schedule": "Run it again and again: a cron line, several, or the keys below.",
    "max_duration": "How long it may run, then it is stopped: 90, 90s, 15m, 1h30m or 2d.",
    "fleets": "Names of those that it may use.",
    "start_timeout": "How long it may wait for a machine, then it fails: as above.",
    "warn_signal": "A signal and how long before it is ended it hears it: `USR1@120s`, `TERM@2m`; below.",
    "utilization_policy": "End it when it uses too little of what it was given; the keys are below.",
    "disconnect": "What becomes of it while server and host do not reach each other; the keys are below.",
    "time_window": "How long it has to be below, without a break: 10s or more.",
    "stop_after": "Its host stops it when it has not heard the server for so long: 10s or more.",
    "fail_after": "The server gives it up when it was unreachable for so long: longer than that.",
    "stop_duration": "Between asking it to stop and killing it: as above.",
}
"""Where the schema speaks to programs."""


_FLEET_MEANINGS: Final = {
    "type": ("`fleet`: a group of machines with one policy.", "it has to be there"),
    "name": ("At most 63 small letters, digits and hyphens.", "it has to be there"),
    "backends": (
        "Where its machines are: `dummy`, or `local` for the server's own host.",
        "it has to be there, or `ssh_config`",
    ),
    "ssh_config": ("Hosts of yours that it is made of, [below](#hosts-of-yours).", "none"),
    "nodes": (
        "`2`: so many at any time. `0..8`: as many as are needed. `0..`: without end.",
        "it has to be there beside `backends`",
    ),
    "resources": ("Which machines it may be made of.", "any"),
    "idle_duration": ("How long one above the least may be idle before it goes: 90s, 15m, 2d, or `off`.", "5m"),
    "max_price": ("Of one machine, an hour.", "any"),
    "allow_privileged": (
        "Whether tasks may say `privileged` or `docker`, and so be root on its hosts.",
        "no; of `local` yes, while the server has one user",
    ),
    "blocks": (
        "Into how many equal parts a machine is divided; `auto`: one a GPU, else sixteen a CPU.",
        "1; of `local` `auto`",
    ),
    "tags": ("Your own words, to find it by: `{team: vision}`, then `stoker fleet list --tag team=vision`.", "none"),
}
"""What a key means, and what holds unless it is said, where the schema speaks to programs."""

_DEFAULTS: Final = {
    "groups[].name": "its number, from 0",
    "groups[].commands": "the task's",
    "groups[].setup": "the task's",
    "groups[].env": "the task's",
    "groups[].resources": "the task's",
    "commands": "it has to be there",
    "groups": "none",
    "max_parallel": "no limit",
    "retry": "`false`",
    "on_events": "all; none beside `on_exit_codes`",
    "duration": "1h; `off` beside `max_attempts`",
    "max_attempts": "no limit",
    "on_exit_codes": "none",
    "name": "one is made up",
    "setup": "nothing",
    "env": "none",
    "working_dir": "the job's own",
    "shell": "`sh`",
    "image": "a process",
    "python": "a process",
    "registry_auth": "none",
    "entrypoint": "none",
    "user": "the image's",
    "privileged": "no",
    "docker": "no",
    "ports": "none",
    "resources.shm_size": "64MB",
    "tty": "no",
    "resources": "a small share",
    "schedule": "it runs once",
    "hold": "no",
    "timezone": "`UTC`",
    "overlap": "`skip`",
    "max_duration": "`off`",
    "start_timeout": "`off`",
    "stop_duration": "10s",
    "on_no_capacity": "`queue`",
    "warn_signal": "none",
    "utilization_policy": "none",
    "disconnect": "it goes on",
    "min_gpu_utilization": "none",
    "min_cpu_utilization": "none",
    "fleets": "any",
    "volumes": "none",
    "cpu": "any",
    "memory": "any",
    "disk": "any",
    "gpu": "none",
    "named": "none",
}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FLEET_PAGE.write_text(fleet_page(), encoding="utf-8")
    VOLUME_PAGE.write_text(volume_page(), encoding="utf-8")
