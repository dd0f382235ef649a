"""Logs arrive whole and once, whatever order things happen in."""

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from stoker.core.errors import Unavailable, UserError
from stoker.core.ids import InstanceId, JobId
from stoker.core.shim_task import S
from stoker.engine.agent import Runner, Shim
from stoker.engine.log_pump import LogPump
from stoker.store.log import LogStore
from stoker.wire.frame import Frame, Piece, Stream, decode, encode
from stoker.wire.runner import Deadline, JobOrder, Result, Stop
from stoker.wire.shim import TaskInfo

HOST = InstanceId(uuid4())


def line(number: int) -> bytes:
    return encode(Frame(Stream.STDOUT, number, f"line {number}\n".encode()))


class Source:
    """A runner, or the disk it left behind: frames that grow, in pieces of a few."""

    def __init__(self, frames: int = 0, *, at_once: int = 3) -> None:
        self.frames = [line(number) for number in range(frames)]
        self.at_once = at_once
        self.complete = False
        self.asked: list[int] = []
        self.dead = False
        self.changed = asyncio.Event()

    def say(self, frames: int, *, complete: bool = False) -> None:
        self.frames += [line(len(self.frames) + number) for number in range(frames)]
        self.complete = complete
        self.changed.set()

    async def pull(self, offset: int, wait_s: float) -> Piece:
        self.asked.append(offset)
        if self.dead:
            raise Unavailable("gone")
        content = b"".join(self.frames)
        if offset == len(content) and not self.complete and wait_s:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), wait_s)
            content = b"".join(self.frames)
        place, end = 0, 0
        while end < offset:
            end += len(self.frames[place])
            place += 1
        taken = b"".join(self.frames[place : place + self.at_once])
        return Piece(taken, offset + len(taken), self.complete and offset + len(taken) == len(content))

    async def log(self, id: UUID, offset: int, *, own: bool) -> Piece:
        return Piece(b"", offset, True) if own else await self.pull(offset, 0.0)

    async def run(self, order: JobOrder) -> None: ...

    async def stop(self, order: Stop) -> None: ...

    async def set_deadline(self, order: Deadline) -> None: ...


class Agents:
    def __init__(self, source: Source) -> None:
        self.source = source

    async def shim(self, instance_id: InstanceId) -> Shim:
        raise NotImplementedError

    def runner(self, instance_id: InstanceId, job_id: JobId, socket: str) -> Runner:
        return self.source


class Readers:
    def __init__(self) -> None:
        self.told = 0

    def wrote(self, job_id: JobId) -> None:
        self.told += 1


class Case:
    def __init__(self, place: Path, source: Source, **store: int) -> None:
        self.logs, self.readers, self.job, self.source = LogStore(place, **store), Readers(), JobId(uuid4()), source
        self.pump = LogPump(Agents(source), self.logs, self.readers)

    async def drain(self) -> None:
        await self.pump.drain(HOST, self.job, "socket")

    async def collect(self, log_end: int | None = None) -> None:
        """When its task has ended; with `log_end`, the runner said where the log ends."""
        result = None if log_end is None else Result(exit_code=0, ended_at=0.0, log_end=log_end)
        task = TaskInfo(id=self.job, fence=1, state=S.TERMINATED, result=result)
        await self.pump.collect(self.source, task)  # type: ignore[arg-type]

    async def kept(self) -> list[bytes]:
        frames, offset = b"", 0
        while piece := await self.logs.read(self.job, offset):
            frames, offset = frames + piece, offset + len(piece)
        return [frame.data for frame in decode(frames)]


def said(count: int) -> list[bytes]:
    return [f"line {number}\n".encode() for number in range(count)]


async def test_a_drain_brings_everything(tmp_path: Path) -> None:
    source = Source(10)
    source.complete = True
    case = Case(tmp_path, source)
    await case.drain()
    assert await case.kept() == said(10)


async def test_a_second_drain_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(4))
    await case.drain()
    case.source.say(3)
    await case.drain()
    assert await case.kept() == said(7)
    assert case.source.asked.count(0) == 1


async def test_two_that_pump_one_log_at_once_keep_every_line_once(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(50))
    other = LogPump(Agents(case.source), LogStore(tmp_path), Readers())
    await asyncio.gather(case.drain(), other.drain(HOST, case.job, "socket"), case.drain())
    assert await case.kept() == said(50)


async def test_following_ends_when_the_log_is_complete_and_readers_are_told_on_the_way(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(1))
    following = asyncio.create_task(case.pump.follow(HOST, case.job, "socket", 10.0, lambda: True))
    while not case.readers.told:
        await asyncio.sleep(0)
    assert await case.kept() == said(1)
    case.source.say(2, complete=True)
    await asyncio.wait_for(following, 10.0)
    assert await case.kept() == said(3)


async def test_a_runner_that_is_gone_leaves_its_log_to_the_shim(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(5))
    case.source.dead = True
    with pytest.raises(Unavailable):
        await case.drain()
    case.source.dead, case.source.complete = False, True
    await case.collect()
    assert await case.kept() == said(5)


async def test_a_log_that_is_here_to_its_end_is_not_asked_for_again(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(5))
    await case.drain()
    asked = len(case.source.asked)
    await case.collect(log_end=await case.logs.end(case.job))
    assert len(case.source.asked) == asked
    case.source.say(2, complete=True)
    await case.collect(log_end=sum(map(len, case.source.frames)))
    assert await case.kept() == said(7)


async def test_a_store_that_forgot_is_given_the_log_again(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(4))
    await case.drain()
    behind = LogStore(tmp_path)
    await behind.delete(case.job)
    case.source.say(1, complete=True)
    await case.drain()
    assert await case.kept() == said(5)


async def test_a_part_that_is_nowhere_any_more_does_not_keep_the_task(tmp_path: Path) -> None:
    """The server's copy was deleted, and the host has forgotten what the server once had."""
    case = Case(tmp_path, Source(4))

    async def forgotten(*_: object, **__: object) -> Piece:
        raise UserError("The log begins at 4096.", code="log_offset")

    case.source.log = forgotten  # type: ignore[method-assign]
    await case.collect(log_end=5000)
    assert await case.kept() == []


async def test_over_the_quota_of_the_store_the_pump_ends_and_the_task_can_go(tmp_path: Path) -> None:
    case = Case(tmp_path, Source(20), quota_bytes=200)
    case.source.complete = True
    await asyncio.wait_for(case.drain(), 10.0)
    assert 0 < len(await case.kept()) < 20


async def test_a_full_disk_is_told_and_nothing_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, Source(2))
    full = Unavailable("no space", code="disk_full")

    async def refuse(*_: object, **__: object) -> int:
        raise full

    monkeypatch.setattr(case.logs, "append", refuse)
    with pytest.raises(Unavailable):
        await case.pump.follow(HOST, case.job, "socket", 0.0, lambda: True)
    assert set(case.source.asked) == {0}
