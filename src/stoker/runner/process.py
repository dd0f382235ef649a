"""Starts a program of the job: in its own session, as its user, inside its control groups from its first instruction.

Python code between fork and exec is unsafe in a process that has threads. So a thread takes on the user and, where it
can, the control groups, and starts the program, which inherits both. That also lets the C library start it without
copying this process's tables of memory, which it does not dare for a process that changes its user in between.

What only the new process can do is done by a few words of shell, the *gate*; where there is no shell, by a program of
our own (`gate.py`). It waits until it was put into the
control groups that a thread cannot enter, so that nothing escapes them, and then becomes the program. Where a terminal
is wanted, opening it as the leader of a session makes it the controlling one. When the runner dies before the gate
opens, the gate reads the end of its input and is gone.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.runner import cgroup, view
from stoker.runner.output import Channel
from stoker.runner.program import module_command
from stoker.runner.tenant import User, become
from stoker.wire.runner import Bind

_GATE: Final = (
    'read -r terminal || exit 125; [ -z "$terminal" ] || exec "$@" <>"$terminal" >&0 2>&1; exec "$@" </dev/null'
)
_SHELL: Final = "/bin/sh"
_UMASK: Final = 0o022
_MEMORY_KILLER_BIAS: Final = "300"


def start(
    arguments: Sequence[str],
    channel: Channel,
    *,
    environment: Mapping[str, str],
    directory: Path,
    user: User | None,
    cgroups: Sequence[str],
    binds: Sequence[Bind] = (),
    volumes: str = "",
) -> int:
    """Its pid, which is also its session and its process group. Whoever calls waits for it."""

    def spawn() -> tuple[subprocess.Popen[bytes], list[str]]:
        left = cgroup.enter(cgroups)
        view.take(binds, volumes)
        if user is not None:
            become(user)
        return subprocess.Popen(
            [*_gate(), *arguments],
            stdin=subprocess.PIPE,
            stdout=channel.stdout,
            stderr=channel.stderr,
            cwd=directory,
            env=environment,
            start_new_session=True,
            umask=_UMASK,
        ), left

    # In a thread that ends with it: the program inherits what the thread has become, and nobody else does.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="start") as aside:
        process, left = aside.submit(spawn).result()
    # The reaper waits for it; this tells the object not to.
    process.returncode = 0
    assert process.stdin is not None
    try:
        cgroup.join(left, process.pid)
        _offer_to_memory_killer(process.pid)
        with suppress(BrokenPipeError):
            process.stdin.write(channel.terminal.encode() + b"\n")
            process.stdin.flush()
    except OSError:
        os.kill(process.pid, signal.SIGKILL)
        raise
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
    return process.pid


def _gate() -> list[str]:
    if os.access(_SHELL, os.X_OK):
        return [_SHELL, "-c", _GATE, "stoker"]
    return module_command("stoker.runner.gate")


def _offer_to_memory_killer(pid: int) -> None:
    """When the host runs out of memory, jobs go before the agents that could tell of it. Inherited."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(_MEMORY_KILLER_BIAS)


def signal_group(group: int, number: int) -> bool:
    """Whether anybody of the group is left to hear it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Somebody is there who may not be signalled, such as a program of another user.
        return True
    return True
