"""No task outlives a dead worker on a living host: a small process stays above the worker and cleans up after it.

`keep` forks before anything heavy is imported. The parent is the *keeper*, a subreaper: when the worker dies, however
it dies, all that it had started becomes the keeper's, and is killed. When it is the keeper that is killed, the kernel
tells the worker, which then kills its tasks itself. The worker has a session of its own, so that a Ctrl-C reaches the
keeper only, which passes it on once.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Final

from stoker.runner import proc
from stoker.worker.guard import Guard
from stoker.worker.libc import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

KEEPER_GONE: Final = signal.SIGUSR1
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED: Final = frozenset({*_PASSED_ON, signal.SIGCHLD})
_LOOK_S: Final = 0.005
_GUARD_S: Final = 0.5
_IDLE_S: Final = 5.0


def keep() -> Guard:
    """Returns in the worker; the keeper stays inside, and exits as the worker did."""
    guard = Guard()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    keeper = os.getpid()
    worker = os.fork()
    if worker:
        code = _wait(worker, guard)
        sys.stderr.flush()
        os._exit(code)
    prctl(PR_SET_PDEATHSIG, KEEPER_GONE)
    if os.getppid() != keeper:
        os._exit(1)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    return guard


def _wait(worker: int, guard: Guard) -> int:
    while True:
        # A worker that is stopped sends us SIGCHLD, too: from then on the guard is looked at often.
        told = signal.sigtimedwait(_WATCHED, _GUARD_S if guard.armed else _IDLE_S)
        if told is not None and told.si_signo in _PASSED_ON:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGTERM)
        guard.enforce()
        status = _reaped(worker)
        if status is not None:
            kill_children()
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                sys.stderr.write(f"The worker was killed by signal {-code}; what it ran was killed as well.\n")
            return code if code >= 0 else 128 - code


def _reaped(worker: int) -> int | None:
    """How the worker ended, if it did; others that end are orphans of nobody's interest."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == worker:
                return status
            if pid == 0:
                return None
    return None


def kill_children() -> None:
    """Kills all that descends from this process, and waits until it is gone: a child that dies leaves us its own."""
    while True:
        for pid in children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_LOOK_S)


def children() -> list[int]:
    me = os.getpid()
    return [pid for pid in proc.pids() if (told := proc.stat(pid)) is not None and told.parent == me]
