"""Twenty runs in every state that a task knows, each of which says exactly what it wrote and how it must end.

Jobs wait at gates, which are pipes with a name: whoever opens one for reading is held until somebody opens it for
writing. So a test decides when a job goes on, and nothing depends on time. Each job notes its start in a file of its
own: a second line in it means that the commands ran twice.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client import log as client_log
from stoker.client.client import Json
from stoker.client.log import Which
from stoker.wire.frame import decode
from tests.process.stand import Stand, until

LINES = 200


class Yard:
    """Where jobs of any user leave their notes and find their gates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        directory.chmod(0o1777)

    def file(self, name: str) -> Path:
        return self.directory / name

    def note(self, name: str) -> str:
        """A command that says that it began."""
        return f"echo $$ >> {self.file(name)}.began"

    def began(self, name: str) -> list[int]:
        """The processes that ran these commands."""
        note = self.file(f"{name}.began")
        return [int(line) for line in note.read_text().splitlines()] if note.exists() else []

    def gate(self, name: str) -> str:
        """A command that waits until the gate is opened."""
        path = self.file(f"{name}.gate")
        if not path.exists():
            os.mkfifo(path)
            path.chmod(0o666)
        return f": < {path}"

    def open(self, name: str) -> None:
        """Lets the job that waits there go on."""
        until(lambda: self._opened(name), f"{name} comes to its gate")

    def _opened(self, name: str) -> bool:
        try:
            os.close(os.open(self.file(f"{name}.gate"), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def flag(self, name: str) -> Path:
        return self.file(f"{name}.flag")


@dataclass
class Part:
    """One run: what it does, and what must be true of it afterwards."""

    name: str
    commands: list[str]
    status: str = "DONE"
    reason: str | None = "ALL_JOBS_DONE"
    exit_code: int | None = 0
    log: bytes | None = None
    """None: it decides itself how long it is."""
    more: Json = field(default_factory=dict)
    runs: bool = True
    """Its commands are started, once; otherwise never."""


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


class Crowd:
    """Of twenty; made by `gather`, which returns when each is where it should be."""

    def __init__(self, stand: Stand, yard: Yard) -> None:
        self.stand, self.yard = stand, yard
        self.parts: dict[str, Part] = {}
        self.followed = bytearray()
        self._following: threading.Thread | None = None

    @property
    def meanwhile(self) -> list[str]:
        return [f"meanwhile-{number}" for number in range(4)]

    @property
    def later(self) -> list[str]:
        return [f"later-{number}" for number in range(4)]

    @property
    def writing(self) -> list[str]:
        return ["writing-0", "writing-1"]

    @property
    def ending(self) -> list[str]:
        return [f"ending-{number}" for number in range(3)]

    @property
    def fresh(self) -> list[str]:
        return [f"fresh-{number}" for number in range(2)]

    def gather(self) -> None:
        """All but the last two, which come as late as can be."""
        self._begin("done", [self._said(1)])
        self._begin("failed", [self._said(1), "exit 7"], "FAILED", "JOB_FAILED", 7)
        self._begin("stopped", [self._said(1), "sleep 1000"], "TERMINATED", "STOPPED_BY_USER", None)
        for number, name in enumerate([*self.meanwhile, *self.later]):
            code = number % 4
            ends = ("DONE", "ALL_JOBS_DONE", 0) if code == 0 else ("FAILED", "JOB_FAILED", code)
            commands = [self._said(1), self.yard.gate(name), self._said(2), f"exit {code}"]
            self._begin(name, commands, *ends, log=numbers(1, 2 * LINES))
        for name in self.writing:
            self._begin(name, [self._writer(name)])
            self.parts[name].log = None
        for name in self.ending:
            trap = f"trap 'echo asked; {self.yard.gate(name)}; echo goes; exit 0' TERM"
            commands = [trap, self._said(1), "sleep 1000 & wait"]
            log = numbers(1, LINES) + b"asked\ngoes\n"
            self._begin(name, commands, "TERMINATED", "STOPPED_BY_USER", None, log=log, stop_duration="1h")
        self._begin("large", [self._said(1)], resources={"cpu": os.cpu_count()})
        self._begin("huge", ["true"], "TERMINATED", "STOPPED_BY_USER", None, resources={"cpu": 100_000})
        self.parts["huge"].runs, self.parts["huge"].log = False, b""
        self._until_in_place()
        self._follow(self.writing[0])

    def submit_fresh(self) -> None:
        """Two that have just been accepted: they are anywhere between that and their end."""
        for name in self.fresh:
            self._begin(name, [self._said(1), "exit 3"], "FAILED", "JOB_FAILED", 3)
        assert len(self.parts) == 20

    def end_meanwhile(self, ids: Mapping[str, str]) -> None:
        """Four of them end although the server is away, which is why their jobs' ids are needed."""
        for name in self.meanwhile:
            self.yard.open(name)
        for name in self.meanwhile:
            until(self.stand.place(ids[name]).result.exists, f"{name} has ended")

    def end_writers(self) -> None:
        for name in self.writing:
            self.yard.flag(name).touch()

    def end_rest(self) -> None:
        """Whatever still waits goes on."""
        self.end_writers()
        for name in (*self.later, *self.ending):
            self.yard.open(name)
        self.stand.stop("huge")

    # What must be true in the end.

    def judge(self) -> None:
        runs = {name: self.stand.finished(name) for name in self.parts}
        for name, part in self.parts.items():
            run = runs[name]
            assert (run["status"], run["termination_reason"]) == (part.status, part.reason), run
            if part.exit_code is not None:
                assert run["exit_code"] == run["jobs"][0]["exit_code"] == part.exit_code, run
            assert len(run["jobs"]) == 1
            assert len(self.yard.began(name)) == (1 if part.runs else 0), f"{name} was started {self.yard.began(name)}"
            assert_whole(name, self.stand.log(name), part.log)
        self.judge_followed()
        self.judge_nothing_is_left(runs)

    def judge_followed(self) -> None:
        """Somebody watched a log all the time: they saw what is kept, once."""
        assert self._following is not None
        self._following.join(60.0)
        assert not self._following.is_alive(), "the watched log never ended"
        assert bytes(self.followed) == self.stand.log(self.writing[0])

    def judge_nothing_is_left(self, runs: dict[str, Json]) -> None:
        until(lambda: not self.stand.tasks(), "the host has forgotten every task")
        jobs = [run["jobs"][0]["id"] for run in runs.values()]
        until(lambda: not self.stand.processes_of(jobs), "no process of any job is left")
        until(lambda: self._idle(), "the machine is idle")

    def _idle(self) -> bool:
        (instance,) = self.stand.client.get(self.stand.client.at("instances"))["items"]
        return bool(instance["status"] == "IDLE" and instance["blocks"] == instance["blocks_free"])

    # Below.

    def _begin(
        self,
        name: str,
        commands: list[str],
        status: str = "DONE",
        reason: str | None = "ALL_JOBS_DONE",
        exit_code: int | None = 0,
        log: bytes | None = None,
        **more: Any,
    ) -> None:
        part = Part(name, commands, status, reason, exit_code, numbers(1, LINES) if log is None else log, dict(more))
        self.parts[name] = part
        self.stand.submit(name, self.yard.note(name), *commands, **more)

    def _said(self, part: int) -> str:
        return f"seq {(part - 1) * LINES + 1} {part * LINES}"

    def _writer(self, name: str) -> str:
        """Writes all the time, until it is told to end."""
        flag = self.yard.flag(name)
        return f"i=0; while [ ! -e {flag} ]; do seq $((i + 1)) $((i + 50)); i=$((i + 50)); sleep 0.02; done"

    def _until_in_place(self) -> None:
        self.stand.finished("done")
        self.stand.finished("failed")
        self._until_wrote("stopped")
        self.stand.stop("stopped")
        self.stand.finished("stopped")
        for name in (*self.meanwhile, *self.later, *self.writing, *self.ending):
            self._until_wrote(name)
        for name in self.ending:
            assert self.stand.stop(name)["status"] == "TERMINATING"
            until(lambda name=name: self.stand.written(name).endswith(b"asked\n"), f"{name} was asked to end")  # type: ignore[misc]
        for name in ("large", "huge"):
            assert self.stand.get(name)["status"] == "SUBMITTED"

    def _until_wrote(self, name: str) -> None:
        """So its traps are set, too."""
        self.stand.reaches(name, "RUNNING")
        until(lambda: self.stand.written(name).startswith(numbers(1, 50)), f"{name} writes")

    def _follow(self, name: str) -> None:
        client = self.stand.client.again()

        def follow() -> None:
            for piece in client_log.follow(client, name, Which(), 0, lambda error: None):
                self.followed += b"".join(frame.data for frame in decode(piece.frames))

        self._following = threading.Thread(target=follow, daemon=True)
        self._following.start()


def assert_whole(name: str, log: bytes, expected: bytes | None) -> None:
    if expected is None:
        last = log.count(b"\n")
        assert last >= 50, f"{name} wrote nothing"
        expected = numbers(1, last)
    assert log == expected, f"{name}: {len(log)} bytes, expected {len(expected)}; {log[:50]!r} … {log[-50:]!r}"
