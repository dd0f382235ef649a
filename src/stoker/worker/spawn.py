"""Starts the process of an attempt: in a session of its own, with its files and its environment, and nothing of ours.

`posix_spawn` is used for its speed. It knows no working directory, so the worker itself goes there for the moment: it
uses absolute paths only. In the same way a process is pinned: it inherits the CPUs of the thread that starts it.
"""

import errno
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.core.errors import StokerError
from stoker.worker.attempt import Attempt
from stoker.worker.place import RESULT_VARIABLE, Place

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
NOT_PREPARED: Final = 125
_SHELL: Final = "/bin/sh"
_PATH: Final = b"/usr/local/bin:/usr/bin:/bin"
_OURS_TO_SOLVE: Final = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
_MOST_KNOWN: Final = 4_096
_STDIN: Final = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
_NO_OUTPUT: Final = (
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
)


class NotStarted(Exception):
    """It cannot be started anywhere like this; the attempt ends with this status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class HostExhausted(StokerError):
    """This host cannot start anything now: no fault of the task."""


class Spawner:
    def __init__(self, place: Place, project: str, gpus: Sequence[str], environ: Mapping[bytes, bytes]) -> None:
        self._place, self._gpus = place, gpus
        self._base = dict(environ)
        self._base[b"STOKER_PROJECT"] = project.encode()
        if gpus:
            self._base[b"CUDA_VISIBLE_DEVICES"] = b""
        self._here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._away = False
        # Python ignores two, the worker one, and whoever started us may have ignored others: tasks ignore none.
        ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        self._ignored = tuple(ignored | {signal.SIGIO})
        self._known: dict[tuple[str, bytes], str] = {}
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._raised = _raise_descriptors(self._limits)

    def named(self, worker: str) -> None:
        """Tasks are told who runs them."""
        self._base[b"STOKER_WORKER_ID"] = worker.encode()

    def start(self, attempt: Attempt) -> int:
        """Its pid, which is also its session and its process group."""
        opened: list[int] = []
        try:
            actions = [self._stdin(attempt, opened), *self._outputs(attempt, opened)]
            environment = self._environment(attempt)
            self._go(attempt.detail.get("working_dir") if attempt.detail else None)
            return self._spawn(attempt, actions, environment)
        except (ValueError, TypeError, AttributeError) as error:
            raise NotStarted(NOT_PREPARED, f"It cannot be started like this: {error}.") from None
        finally:
            for file in opened:
                os.close(file)

    def _spawn(self, attempt: Attempt, actions: Sequence[Any], environment: Mapping[bytes, bytes]) -> int:
        command = attempt.work.command
        arguments = (_SHELL, "-c", command) if isinstance(command, str) else command
        path = self._found(arguments[0], environment.get(b"PATH", _PATH))
        usual = os.sched_getaffinity(0) if attempt.cpus else None
        try:
            if usual is not None:
                os.sched_setaffinity(0, attempt.cpus)
            if self._raised:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
            return os.posix_spawn(
                path, arguments, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=self._ignored
            )
        except OSError as error:
            self._known.clear()
            if error.errno == errno.ENOENT and attempt.pair is not None and not attempt.pair.there():
                self._place.doubt()
                raise FilesGone(f"{attempt.pair.paths[0]} was removed.") from None
            raise _refusal(error, arguments[0]) from None
        finally:
            if self._raised:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._raised)
            if usual is not None:
                os.sched_setaffinity(0, usual)

    def _environment(self, attempt: Attempt) -> dict[bytes, bytes]:
        environment = self._base.copy()
        task = attempt.text
        environment[b"STOKER_TASK_ID"] = task.encode()
        environment[b"STOKER_ATTEMPT"] = b"%d" % attempt.work.attempt
        environment[_RESULT] = self._place.result(task, attempt.work.attempt).encode()
        if attempt.gpus:
            environment[b"CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[index] for index in attempt.gpus).encode()
        if attempt.cpus:
            environment[b"STOKER_CPUS"] = ",".join(map(str, attempt.cpus)).encode()
        if detail := attempt.detail:
            if group := detail.get("group"):
                environment[b"STOKER_GROUP"] = group.encode()
            for name, value in detail.get("env", {}).items():
                environment[name.encode()] = value.encode(errors="surrogateescape")
        return environment

    def _stdin(self, attempt: Attempt, opened: list[int]) -> tuple[Any, ...]:
        text = attempt.detail.get("stdin") if attempt.detail else None
        if not text:
            return _STDIN
        file = os.memfd_create("stdin", os.MFD_CLOEXEC)
        opened.append(file)
        os.write(file, text.encode(errors="surrogatepass"))
        os.lseek(file, 0, os.SEEK_SET)
        return os.POSIX_SPAWN_DUP2, file, 0

    def _outputs(self, attempt: Attempt, opened: list[int]) -> Sequence[tuple[Any, ...]]:
        output = attempt.detail.get("output", "server") if attempt.detail else "server"
        if output == "none":
            return _NO_OUTPUT
        if output == "files":
            return self._kept(attempt, opened)
        try:
            attempt.pair = self._place.take()
        except OSError as error:
            raise HostExhausted(f"The worker's directory cannot be written: {error.strerror}.") from None
        return attempt.pair.actions

    def _kept(self, attempt: Attempt, opened: list[int]) -> Sequence[tuple[Any, ...]]:
        """Files that stay on this host when the task is done."""
        directory = Path(attempt.detail.get("output_dir") or self._place.outputs)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for suffix in ("out", "err"):
                opened.append(os.open(directory / f"{attempt.text}-{attempt.work.attempt}.{suffix}", flags, 0o644))
        except OSError as error:
            if error.errno in _OURS_TO_SOLVE:
                raise HostExhausted(f"{directory} cannot be written: {error.strerror}.") from None
            raise NotStarted(NOT_PREPARED, f"Its output_dir {directory} cannot be written: {error.strerror}.") from None
        stdout, stderr = opened[-2:]
        return (os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)

    def _go(self, directory: str | None) -> None:
        if directory is not None:
            try:
                os.chdir(os.path.expanduser(directory))
            except OSError as error:
                raise NotStarted(
                    NOT_PREPARED, f"Its working_dir {directory} cannot be entered: {error.strerror}."
                ) from None
            finally:
                self._away = True
        elif self._away:
            os.fchdir(self._here)
            self._away = False

    def _found(self, program: str, path: bytes) -> str:
        if "/" in program:
            return program
        known = self._known.get((program, path))
        if known is not None:
            return known
        found = _search(program, os.fsdecode(path))
        # An entry that is not absolute means another file in each directory.
        if found.startswith("/"):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[program, path] = found
        return found


class FilesGone(StokerError):
    """The files that were prepared are not there any more: with new ones it may work."""


_RESULT: Final = RESULT_VARIABLE.encode()


def _search(program: str, path: str) -> str:
    refused = False
    for directory in path.split(":"):
        candidate = os.path.join(directory or ".", program)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            refused = True
    if refused:
        raise NotStarted(NOT_EXECUTABLE, f"{program} cannot be executed: Permission denied.")
    raise NotStarted(NOT_FOUND, f"There is no command {program}.")


def _refusal(error: OSError, program: str) -> Exception:
    if error.errno in _OURS_TO_SOLVE:
        return HostExhausted(f"This host cannot start a process: {error.strerror}.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotStarted(NOT_FOUND, f"There is no command {program}, or what it is written for is missing.")
    return NotStarted(NOT_EXECUTABLE, f"{program} cannot be executed: {error.strerror}.")


def _raise_descriptors(limits: tuple[int, int]) -> tuple[int, int] | None:
    """Each task costs us two. What we start gets the limits as they were."""
    soft, hard = limits
    wanted = 16_384 if hard == resource.RLIM_INFINITY else min(16_384, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted, hard
