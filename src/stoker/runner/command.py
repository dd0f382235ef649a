"""What is started for an order: the script, the arguments, the environment. Nothing is started here."""

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

from stoker.core.errors import UserError
from stoker.runner.limits import SCRIPT_BYTES
from stoker.runner.place import Place
from stoker.runner.reaper import JOB_VARIABLE
from stoker.wire.runner import Assignment, JobOrder

SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STOPS_AT_FAILURE: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
"""Shells that know `-e`."""
_OF_THE_HOST: Final = ("LANG", "LC_ALL", "TZ")
"""All that a job inherits from the agent: what else stands there was meant for the agent, or is secret."""


def check_order(order: JobOrder) -> None:
    """Refuses what no kernel would start, before anything is promised."""
    for name, words in (("setup", order.setup), ("commands", order.commands), ("argv", order.argv)):
        size = len(script(words).encode())
        if size > SCRIPT_BYTES:
            raise UserError(
                f"{name}: all commands together have {size} bytes; at most {SCRIPT_BYTES} can be started.",
                hint="Put them into a file and run that.",
                code="too_long",
            )
    for name, value in order.env.items():
        if len(f"{name}={value}".encode()) > SCRIPT_BYTES:
            raise UserError(
                f"env: the value of {name} is too long; at most {SCRIPT_BYTES} bytes can be passed.", code="too_long"
            )


def script(commands: Sequence[str]) -> str:
    return "\n".join(commands)


def arguments(order: JobOrder, *, setup: bool = False) -> list[str]:
    """One shell for all the commands of a list, so that `cd` and variables last, and the first failure ends it."""
    if order.argv and not setup:
        return list(order.argv)
    stop = ["-e"] if PurePath(order.shell).name in _STOPS_AT_FAILURE else []
    return [order.shell, *stop, "-c", script(order.setup if setup else order.commands)]


def boxed(order: JobOrder, assignment: Assignment) -> JobOrder:
    """As its container has it: commands are handed to the entrypoint; without any, its image's own program is run."""
    box = assignment.box
    if box is None or order.argv:
        return order
    if not order.commands:
        return order.model_copy(update={"argv": box.program})
    if not box.entrypoint:
        return order
    return order.model_copy(update={"argv": (*box.entrypoint, *arguments(order)), "commands": ()})


def missing(order: JobOrder, search_path: str) -> str:
    """What is not here of the programs that are started first; empty: nothing."""
    if not order.commands and not order.argv:
        return "there are no commands, and the image names no program of its own"
    if (order.setup or not order.argv) and not find_program(order.shell, search_path):
        return f"there is no shell {order.shell} here; without one, a job is a program with its arguments, and no setup"
    # One below the working directory is found by the kernel, from there.
    named = order.argv and (os.sep not in order.argv[0] or os.path.isabs(order.argv[0]))
    if named and not order.setup and not find_program(order.argv[0], search_path):
        return f"there is no program {order.argv[0]} here"
    return ""


def environment(
    order: JobOrder, assignment: Assignment, place: Place, host: Mapping[str, str], deadline_at: float | None = None
) -> dict[str, str]:
    """The job's own variables win over defaults, and ours win over the job's."""
    # Programs that ask for the name of a user who has none in the host's list would fail.
    user = host.get("USER", "stoker") if assignment.uid is None else f"stoker-{assignment.uid}"
    home = str(place.work)
    defaults = {name: host[name] for name in _OF_THE_HOST if name in host}
    if assignment.box is not None:
        user, home, defaults = assignment.box.user, assignment.box.home, {}
    defaults |= {
        "PATH": SEARCH_PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": order.shell,
        "PYTHONUNBUFFERED": "1",
        **({"TERM": "xterm-256color"} if order.tty else {}),
        **(assignment.box.env if assignment.box is not None else {}),
        **_devices(assignment),
    }
    nodes = {"STOKER_MPI_HOSTFILE": str(place.hosts)} if order.nodes_num > 1 else {}
    return defaults | order.env | _stoker(order) | nodes | _deadline(order, place, deadline_at)


def host_file(order: JobOrder) -> str:
    """The nodes by rank, each with as many slots as it has GPUs, or one: as Open MPI reads it, and others by a flag."""
    gpus = order.nodes_gpus or (order.gpus_per_node,) * len(order.nodes_ips)
    return "".join(f"{ip} slots={count or 1}\n" for ip, count in zip(order.nodes_ips, gpus, strict=False))


def _deadline(order: JobOrder, place: Place, deadline_at: float | None) -> dict[str, str]:
    told = {"STOKER_DEADLINE_FILE": str(place.deadline)}
    if order.max_duration_s is not None:
        told["STOKER_MAX_DURATION"] = f"{order.max_duration_s:g}"
    if deadline_at is not None:
        told["STOKER_DEADLINE"] = f"{deadline_at:.0f}"
    return told


def _devices(assignment: Assignment) -> dict[str, str]:
    """A job sees the GPUs that it was given; without any it sees none, or it would take those of its neighbours."""
    devices = assignment.gpu_ids or tuple(map(str, assignment.gpu_indices))
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _stoker(order: JobOrder) -> dict[str, str]:
    return {
        "STOKER_RUN_ID": str(order.run_id),
        "STOKER_RUN_NAME": order.run_name,
        JOB_VARIABLE: str(order.job_id),
        "STOKER_SUBMISSION": str(order.submission),
        "STOKER_PROJECT": order.project,
        "STOKER_REPLICA": str(order.replica),
        "STOKER_REPLICAS_NUM": str(order.replicas_num),
        "STOKER_NODE_RANK": str(order.node_rank),
        "STOKER_NODES_NUM": str(order.nodes_num),
        "STOKER_NODES_IPS": "\n".join(order.nodes_ips),
        "STOKER_MASTER_NODE_IP": order.nodes_ips[0] if order.nodes_ips else "",
        "STOKER_GPUS_PER_NODE": str(order.gpus_per_node),
        "STOKER_GPUS_NUM": str(order.gpus_num),
        **({"STOKER_NODE_GROUP": order.node_group} if order.node_group else {}),
    }


def find_program(name: str, search_path: str) -> bool:
    """Whether it is there."""
    if os.sep in name:
        return os.access(name, os.X_OK)
    return any(os.access(os.path.join(place, name), os.X_OK) for place in search_path.split(":"))
