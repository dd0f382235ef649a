"""The commands of one order, from their start until nothing of them is left.

First the setup, then the commands, each list in one shell. The end of that shell is the end of the job. Stopping sends
SIGTERM to the whole process group; the shell often dies at once while the program that it waits for still saves its
work, so a job that is being stopped ends when its group is empty or the grace is over, whichever is first. What is left
then is killed, and only after that is the output read to its end: nobody can write to it any more.
"""

import asyncio
import os
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from stoker.runner import cgroup, proc
from stoker.runner.command import arguments, boxed, environment, host_file, missing
from stoker.runner.limits import KILL_S, LINGER_S
from stoker.runner.output import Channel, Output, open_pipes, open_terminal
from stoker.runner.place import Place, write_file
from stoker.runner.process import signal_group, start
from stoker.runner.reaper import Reaper, kill_members
from stoker.runner.spool import Say, Spool
from stoker.runner.tenant import User, files_of
from stoker.runner.view import NoView
from stoker.wire.frame import OVERHEAD, Stream
from stoker.wire.runner import Assignment, Failure, JobOrder

_COULD_NOT_START: Final = 126
_SHELL_SAYS_SIGNAL: Final = 128
_GROUP_LOOK_S: Final = 0.02


@dataclass(frozen=True)
class Ending:
    """How the commands ended, as far as they themselves know."""

    exit_code: int
    signal: int | None = None
    oom: bool = False
    setup: bool = False
    failure: Failure | None = None
    message: str = ""


STOPPED: Final = Ending(_SHELL_SAYS_SIGNAL + signal.SIGTERM, signal=signal.SIGTERM, message="Stopped before it ran.")


def read_status(status: int) -> Ending:
    """A shell says 128 + n of a program that died by signal n, and is taken at its word."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return Ending(_SHELL_SAYS_SIGNAL - code, signal=-code)
    number = code - _SHELL_SAYS_SIGNAL
    return Ending(code, signal=number if 0 < number <= signal.SIGSYS else None)


class Job:
    """Runs once. `stop` and `kill` may be called at any time, also before and after."""

    def __init__(
        self, order: JobOrder, assignment: Assignment, place: Place, spool: Spool, reaper: Reaper, say: Say
    ) -> None:
        self._order, self._assignment, self._place = boxed(order, assignment), assignment, place
        self._spool, self._reaper, self._say = spool, reaper, say
        self._user = user_of(assignment)
        self._groups: set[int] = set()
        self._stop_by: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._killed = asyncio.Event()
        self._taken_bytes = 0
        self._over_quota = False
        self.deadline_at: float | None = None
        """By the host's clock, for its environment: when it will be ended, if that is known before it starts."""
        self.busy = False
        """Its commands run, not its setup."""
        self.over = False
        """They have ended by themselves, or were stopped."""
        self.ended = False
        """Nothing of it is left."""

    @property
    def stopping(self) -> bool:
        return self._stop_by is not None

    def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace. Said again, only an earlier end counts."""
        loop = asyncio.get_running_loop()
        by = loop.time() + grace_s
        if self._stop_by is not None and self._stop_by <= by:
            return
        if self._stop_by is None and grace_s > 0:
            for group in self._groups:
                # What is suspended would hear it only when somebody wakes it.
                signal_group(group, signal.SIGTERM)
                signal_group(group, signal.SIGCONT)
        self._stop_by = by
        if self._timer is not None:
            self._timer.cancel()
        if grace_s > 0:
            self._timer = loop.call_at(by, self.kill)
        else:
            self.kill()

    def warn(self, number: int) -> int:
        """How many processes of its group heard it.

        Only those that listen are told: the shell that waits for the program would die of it, and so would a `tee` at
        the end of its output, and the program with them.
        """
        heard = 0
        for pid in proc.descendants([os.getpid()]):
            told = proc.stat(pid)
            if told is not None and told.group in self._groups and proc.listens(pid, number):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    heard += 1
        return heard

    def kill(self) -> None:
        self._killed.set()
        for group in self._groups:
            signal_group(group, signal.SIGKILL)
        cgroup.kill(self._assignment.cgroups)

    async def run(self) -> Ending:
        """Returns when nothing of the job is left and all of its output was given to the log."""
        before = self._oom_kills()
        try:
            channel = open_terminal(self._user) if self._order.tty else open_pipes()
        except OSError as error:
            self.ended = True
            return Ending(_COULD_NOT_START, failure=Failure.EXECUTOR, message=f"There is no pipe to be had: {error}.")
        output = Output(channel.readers, self._spool, self._take)
        ending = await self._all_commands(channel)
        self.busy, self.over = False, True
        channel.close_writers()
        await self._settle(output)
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._over_quota:
            quota = f"The log has reached its quota of {self._order.log_quota_bytes} bytes."
            return replace(ending, failure=Failure.LOG_QUOTA, message=quota)
        return replace(ending, oom=self._died_of_memory(ending, before))

    async def _all_commands(self, channel: Channel) -> Ending:
        variables = environment(self._order, self._assignment, self._place, os.environ, self.deadline_at)
        ending = Ending(0)
        try:
            # Before anything is started, because then the error can be told from the job's own.
            if why := missing(self._order, variables["PATH"]):
                raise OSError(why)
            if self._order.nodes_num > 1:
                write_file(self._place.hosts, host_file(self._order).encode(), durable=False, mode=0o644)
            if self._order.working_dir is not None and not self._in_volume(self._order.working_dir):
                await asyncio.to_thread(self._check_directory, self._order.working_dir)
            for setup in (True, False) if self._order.setup else (False,):
                if self.stopping or self._killed.is_set():
                    # Between the two, or before the first of them.
                    return STOPPED
                ended = self._start(channel, variables, setup)
                self.busy = not setup
                if not setup:
                    channel.close_writers()
                ending = replace(read_status(await ended), setup=setup)
                if ending.exit_code != 0:
                    break
        except OSError as error:
            message = f"The commands cannot be started: {error.strerror or error}."
            failure = Failure.VOLUME if isinstance(error, NoView) else Failure.EXECUTOR
            ending = Ending(_COULD_NOT_START, failure=failure, message=message)
        return ending

    def _in_volume(self, wanted: str) -> bool:
        """Only the job itself will see it there."""
        place = PurePath(self._place.work / wanted)
        return any(place.is_relative_to(bind.inside) for bind in self._assignment.binds)

    def _check_directory(self, wanted: str) -> None:
        work = os.open(self._place.work, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with files_of(self._user):
                found = os.stat(wanted, dir_fd=work)
        except OSError as error:
            raise OSError(f"working_dir {wanted}: {error.strerror}") from error
        finally:
            os.close(work)
        if not stat.S_ISDIR(found.st_mode):
            raise OSError(f"working_dir {wanted} is no directory")

    def _start(self, channel: Channel, variables: Mapping[str, str], setup: bool) -> asyncio.Future[int]:
        # A group that is empty may be somebody else's tomorrow.
        self._groups = {group for group in self._groups if signal_group(group, 0)}
        pid = start(
            arguments(self._order, setup=setup),
            channel,
            environment=variables,
            directory=self._place.work / (self._order.working_dir or ""),
            user=self._user,
            cgroups=self._assignment.cgroups,
            binds=self._assignment.binds,
            volumes=self._assignment.volumes,
        )
        self._groups.add(pid)
        self._say(f"{'setup' if setup else 'commands'} started as process {pid}")
        return self._reaper.expect(pid)

    def _take(self, stream: Stream, data: bytes) -> None:
        room = self._order.log_quota_bytes - self._taken_bytes - OVERHEAD
        if len(data) > room:
            data = data[: max(room, 0)]
            if not self._over_quota:
                self._over_quota = True
                self._say("the log has reached its quota; the job is killed")
                self.kill()
        if data:
            self._taken_bytes += len(data) + OVERHEAD
            self._spool.put(stream, data)

    async def _settle(self, output: Output) -> None:
        while self.stopping and not self._killed.is_set() and any(signal_group(group, 0) for group in self._groups):
            await self._reaper.next(_GROUP_LOOK_S)
        if not self._reaper.reap() and not self._killed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await output.closed.wait()
        held = await self._reaper.kill_all(KILL_S)
        if held:
            self._say(f"killed, but the kernel does not let go of them: processes {sorted(held)}")
        if cgroup.members(self._assignment.cgroups):
            others = await asyncio.to_thread(kill_members, self._assignment.cgroups)
            self._say(f"killed {others} processes in its control groups that this job did not start")
        self._groups.clear()
        await output.drain()

    def _oom_kills(self) -> int:
        counted = self._counted()
        return cgroup.oom_kills_of_host() if counted is None else counted

    def _counted(self) -> int | None:
        """Of its own groups, or of those that its container sees as its own."""
        return cgroup.oom_kills(self._assignment.cgroups if self._assignment.box is None else cgroup.OF_A_CONTAINER)

    def _died_of_memory(self, ending: Ending, before: int) -> bool:
        if ending.exit_code == 0 or self._oom_kills() <= before:
            return False
        # Somewhere on the host somebody was; it was us if we were killed and it was not our own doing.
        return self._counted() is not None or (ending.signal == signal.SIGKILL and not self._killed.is_set())


def user_of(assignment: Assignment) -> User | None:
    if assignment.uid is None or assignment.gid is None:
        return None
    return User(assignment.uid, assignment.gid, assignment.box.groups if assignment.box else ())
