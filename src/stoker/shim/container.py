"""What the engine is asked to create for a task: pure, so that each line of it can be looked at.

The container's first process is our runner, out of a bundle that is mounted and needs nothing of the image. It is
root within, so that it can become whomever the job runs as. Mounted is what is this task's, and nothing else of ours:
no socket of the shim or of another runner, no token but its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final
from uuid import UUID

from stoker.core.errors import UserError
from stoker.core.shim_task import Port
from stoker.shim.image import Image
from stoker.wire.runner import Box
from stoker.wire.shim import Container, HostGpu, Network, TaskOrder

BUNDLE: Final = PurePosixPath("/stoker/bundle")
TASK: Final = PurePosixPath("/stoker/task")
ENGINE_SOCKET: Final = "/var/run/docker.sock"
TASK_LABEL: Final = "io.stoker.task"
HOME_LABEL: Final = "io.stoker.home"
LOG_BYTES: Final = "1m"
"""Of what the runner itself says on its way up; the job's log does not go through the engine."""
MB: Final = 1024 * 1024
_BENT: Final = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES")
"""What an image says to its own programs, and what would bend ours. The job is given it back."""


@dataclass(frozen=True)
class Bind:
    """A directory or file of the host that is seen in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Plan:
    """All that is known of a container before it is made."""

    id: UUID
    home_id: str
    order: TaskOrder
    image: Image
    command: Sequence[str]
    bundle: Path
    box: Path
    ports: Sequence[Port] = ()
    gpus: Sequence[HostGpu] = ()
    binds: Sequence[Bind] = field(default_factory=tuple)
    engine_socket: str = ENGINE_SOCKET


def name_of(home_id: str, id: UUID) -> str:
    """The same at every try, so that the engine itself refuses a second one."""
    return f"stoker-{home_id}-{id}"


def wanted(order: TaskOrder) -> Container:
    if order.container is None:
        raise UserError("A task of the runtime docker says what container it wants.", code="no_container")
    return order.container


def box_of(order: Container, image: Image) -> Box:
    """What the runner has to know of the image. Its own program is for jobs that say none."""
    program = (*image.entrypoint, *image.command) if order.entrypoint is None else order.entrypoint
    return Box(
        user=order.user or image.user, env=image.env, entrypoint=order.entrypoint or (), program=program
    )  # fmt: skip


def body(plan: Plan) -> dict[str, Any]:
    order = wanted(plan.order)
    return {
        # By its id: what its name means may change between two tries.
        "Image": plan.image.id,
        "Entrypoint": list(plan.command),
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in _environment(plan).items()],
        "Labels": {TASK_LABEL: str(plan.id), HOME_LABEL: plan.home_id},
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "ExposedPorts": {f"{port}/tcp": {} for port in order.ports if order.network is Network.BRIDGE},
        "HostConfig": {
            "Mounts": [_mount(bind) for bind in _binds(plan)],
            "Privileged": order.privileged,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_BYTES, "max-file": "1"}},
            **_network(order, plan.ports),
            **_limits(plan.order, order),
            **_devices(plan.gpus),
        },
    }


def _environment(plan: Plan) -> dict[str, str]:
    bent = {name: "" for name in _BENT if name in plan.image.env}
    # An image may ask for all GPUs there are; where the engine listens to that, it has to hear that there are none.
    none = {} if plan.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return bent | none


def _binds(plan: Plan) -> list[Bind]:
    ours = [Bind(str(plan.bundle), str(BUNDLE), read_only=True), Bind(str(plan.box), str(TASK))]
    if wanted(plan.order).docker:
        ours.append(Bind(plan.engine_socket, ENGINE_SOCKET))
    return [*ours, *plan.binds]


def _mount(bind: Bind) -> dict[str, Any]:
    # Not by the short form: that makes a directory where the source is missing.
    return {"Type": "bind", "Source": bind.source, "Target": bind.target, "ReadOnly": bind.read_only}


def _network(order: Container, ports: Sequence[Port]) -> dict[str, Any]:
    if order.network is Network.HOST:
        return {"NetworkMode": "host"}
    # Reached through the host's own agent, and by nobody else who can reach the host.
    bindings = {f"{port.inside}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port.on_host)}] for port in ports}
    return {"NetworkMode": "bridge", "PortBindings": bindings}


def _limits(task: TaskOrder, order: Container) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if task.cpu is not None:
        limits["NanoCpus"] = max(int(task.cpu * 10**9), 10**7)
    if task.memory_mb is not None:
        # Without swap: what is more than its memory is too much, as for a process.
        limits["Memory"] = limits["MemorySwap"] = max(task.memory_mb, 6) * MB
    if order.shm_mb is not None:
        limits["ShmSize"] = order.shm_mb * MB
    return limits


def _nvidia(gpus: Sequence[HostGpu]) -> dict[str, Any]:
    # "Driver" is left to the engine, which finds the one that has the capability.
    return {"DeviceRequests": [{"DeviceIDs": [gpu.id for gpu in gpus], "Capabilities": [["gpu"]]}]}


VENDORS: Final[Mapping[str, Callable[[Sequence[HostGpu]], dict[str, Any]]]] = {"nvidia": _nvidia}
"""How a container is given GPUs. AMD's will be device files: /dev/kfd and a renderD each."""


def _devices(gpus: Sequence[HostGpu]) -> dict[str, Any]:
    vendors = {gpu.vendor for gpu in gpus}
    if not vendors:
        return {}
    if len(vendors) > 1 or not vendors <= VENDORS.keys():
        raise UserError(f"Containers cannot be given GPUs of {', '.join(sorted(vendors))}.", code="gpu_vendor")
    return VENDORS[vendors.pop()](gpus)
