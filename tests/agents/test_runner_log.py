"""What a job prints, through a real runner: every byte once, in order, in little memory, whatever the disk does."""

import asyncio
import hashlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import aiohttp
import psutil
import pytest

from stoker.runner.segment import bases_of
from stoker.wire.frame import Stream, decode
from stoker.wire.runner import Failure, Header, RunnerState
from tests.agents.running import Running, fork_server, runner, until
from tests.machine import small_disk

MB = 1_000_000


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-log"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


class Reader:
    """A server that pulls, keeps, and says how far it is; it remembers only a digest."""

    def __init__(self) -> None:
        self.digest, self.size, self.offset = hashlib.sha256(), 0, 0

    async def follow(self, running: Running) -> None:
        while True:
            told = await running.ask("GET", f"/pull?offset={self.offset}&wait_s=20")
            assert told.status == 200, told.body
            for frame in decode(told.body):
                self.digest.update(frame.data)
                self.size += len(frame.data)
            self.offset = told.next
            if told.complete and not told.body:
                return


async def test_a_large_log_needs_little_memory_and_little_disk(fork_socket: Path, place: Path) -> None:
    """Lines of 80 bytes, with a server that keeps up: what it has is forgotten here."""
    wanted = hashlib.sha256((b"x" * 79 + b"\n") * (100 * MB // 80)).hexdigest()
    async with runner(fork_socket, place) as one:
        before = psutil.Process(one.pid).memory_info().rss
        await one.start(f"yes {'x' * 79} | head -c {100 * MB}")
        reader, peak, spare, began = Reader(), 0, 0, time.monotonic()
        following = asyncio.create_task(reader.follow(one))
        while not following.done():
            await asyncio.wait({following}, timeout=0.02)
            if one.alive():
                peak = max(peak, psutil.Process(one.pid).memory_info().rss)
                had = reader.offset
                spare = max(spare, sum(base < had for base in bases_of(place / "log")))
        await following
        assert (reader.size, reader.digest.hexdigest()) == (100 * MB, wanted)
        assert peak - before < 50 * MB
        # The one it reads from, and what was forgotten between the two looks at offset and directory.
        assert spare <= 3, "segments that the server has were not forgotten"
        assert time.monotonic() - began < 30


async def test_a_large_log_that_nobody_pulls_waits_on_disk(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        before = psutil.Process(one.pid).memory_info().rss
        result = await one.runs(f"head -c {40 * MB} /dev/zero")
        assert psutil.Process(one.pid).memory_info().rss - before < 50 * MB
        reader = Reader()
        await reader.follow(one)
        assert (reader.size, reader.offset) == (40 * MB, result.log_end)
        assert reader.digest.hexdigest() == hashlib.sha256(bytes(40 * MB)).hexdigest()


async def test_bytes_are_kept_as_they_are(fork_socket: Path, place: Path) -> None:
    """Binary, and one endless line: nobody looks for letters or lines."""
    (place.parent / "blob").write_bytes(os.urandom(3 * MB))
    async with runner(fork_socket, place) as one:
        await one.runs(f"cat {place.parent}/blob; head -c {5 * MB} /dev/zero | tr '\\0' a")
        assert await one.output() == (place.parent / "blob").read_bytes() + b"a" * (5 * MB)


async def test_many_tiny_writes_become_few_frames(fork_socket: Path, place: Path) -> None:
    write = "import os\nfor n in range(100_000): os.write(1, b'%d\\n' % n)"
    async with runner(fork_socket, place) as one:
        await one.runs(f'python3 -c "{write}"')
        frames = await one.frames()
        assert b"".join(frame.data for frame in frames) == b"".join(b"%d\n" % n for n in range(100_000))
        assert len(frames) < 10_000
        assert all(early.time_us <= late.time_us for early, late in pairwise(frames))


async def test_a_line_is_there_at_once(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("for i in 1 2 3; do date +%s.%N; sleep 0.1; done; sleep 60")
        offset, waits = 0, list[float]()
        while len(waits) < 3:
            told = await one.ask("GET", f"/pull?offset={offset}&wait_s=10")
            waits += [time.time() - float(line) for frame in decode(told.body) for line in frame.data.split()]
            offset = told.next
        assert min(waits) < 0.1


async def test_a_log_over_its_quota_ends_the_job(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("echo first; cat /dev/zero", log_quota_bytes=200_000)
        assert (result.failure, result.signal) == (Failure.LOG_QUOTA, signal.SIGKILL)
        assert "200000 bytes" in result.message
        assert 190_000 < result.log_end <= 200_000
        kept = await one.output()
        assert kept == b"first\n" + bytes(len(kept) - 6)


async def test_a_log_that_fits_exactly_is_within_its_quota(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("printf 12345", log_quota_bytes=5 + 17)
        assert (result.failure, result.log_end) == (None, 22)


async def test_what_was_read_is_forgotten_and_what_was_not_is_there_again(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs(f"head -c {30 * MB} /dev/zero")
        first = await one.ask("GET", "/pull?offset=0&limit=100000")
        again = await one.ask("GET", "/pull?offset=0&limit=100000")
        assert first.body == again.body
        assert 0 < len(first.body) <= 100_000
        await one.ask("GET", f"/pull?offset={result.log_end - 0}")
        assert len(list((place / "log").glob("*.log"))) == 1
        gone = await one.ask("GET", "/pull?offset=0")
        assert gone.error == (409, "log_forgotten")


async def test_an_offset_lies_between_two_frames(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        result = await one.runs("echo hello; sleep 0.05; echo again")
        assert (await one.ask("GET", "/pull?offset=3")).error == (422, "log_offset")
        assert (await one.ask("GET", f"/pull?offset={result.log_end + 1}")).error == (409, "log_offset")
        assert (await one.ask("GET", "/pull?offset=0&limit=1")).body != b"", "at least one frame"
        assert one.alive()


async def test_a_job_waits_while_its_log_cannot_be_written(fork_socket: Path, place: Path) -> None:
    """The limit on the size of a file stands for a disk without space: the runner's writes fail, and then do not."""
    async with runner(fork_socket, place) as one:
        await one.submit(f"head -c {8 * MB} /dev/zero; echo end")
        none = resource.RLIM_INFINITY
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (300_000, none))
        await one.ask("POST", "/run")
        while "the log cannot be written (File too large)" not in await one.own_log():
            await asyncio.sleep(0.02)
        await stands_still(one)
        written = sum(path.stat().st_size for path in (place / "log").glob("*.log"))
        assert written <= 300_000
        assert psutil.Process(one.pid).memory_info().rss < 100 * MB
        health = await one.health()
        assert (health.state, health.result) == (RunnerState.RUN, None)
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (none, none))
        assert (await one.result()).exit_code == 0
        assert "the log is written now" in await one.own_log()
        assert await one.output() == bytes(8 * MB) + b"end\n"


async def stands_still(running: Running) -> None:
    """Returns when the log has not grown for a while."""
    end, since = -1, time.monotonic()
    while time.monotonic() < since + 0.5:
        told = await running.ask("GET", "/pull?offset=0&limit=1")
        if int(told.headers[Header.END]) != end:
            end, since = int(told.headers[Header.END]), time.monotonic()
        await asyncio.sleep(0.02)


async def test_a_full_disk_costs_no_byte(fork_socket: Path, place: Path) -> None:
    """A real one. The server that pulls makes room for the rest, segment by segment."""
    with small_disk(place, 12):
        async with runner(fork_socket, place) as one:
            await one.start(f"head -c {24 * MB} /dev/zero; echo end")
            await until(lambda: os.statvfs(place).f_bavail == 0)
            await stands_still(one)
            reader = Reader()
            await reader.follow(one)
            assert reader.digest.hexdigest() == hashlib.sha256(bytes(24 * MB) + b"end\n").hexdigest()
            assert "the log cannot be written (No space left on device)" in await one.own_log()


async def test_frames_come_live_and_the_end_is_said(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("echo one; read x < fifo; echo two >&2", setup=["mkfifo fifo"])
        seen = []
        async with one.session.ws_connect("http://runner/live", headers=bearer(one)) as live:
            seen.append(next(decode(await live.receive_bytes(timeout=10))))
            await asyncio.to_thread((place / "work" / "fifo").write_text, "go\n")
            seen.append(next(decode(await live.receive_bytes(timeout=10))))
            last = await live.receive(timeout=10)
        assert [(frame.stream, frame.data) for frame in seen] == [(Stream.STDOUT, b"one\n"), (Stream.STDERR, b"two\n")]
        assert (last.type, last.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.OK)


def bearer(running: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {running.token}"}


async def test_a_slow_live_reader_loses_nothing_to_a_fast_server(fork_socket: Path, place: Path) -> None:
    """The runner stays, and keeps what he has not read, until he has caught up."""
    async with runner(fork_socket, place) as one:
        await one.submit(f"head -c {30 * MB} /dev/zero")
        async with one.session.ws_connect("http://runner/live", headers=bearer(one)) as live:
            await one.ask("POST", "/run")
            await Reader().follow(one)
            await one.own_log()
            assert (await one.health()).state == RunnerState.WAIT_LOGS_FINISHED
            size = 0
            async for message in live:
                size += sum(len(frame.data) for frame in decode(message.data))
            assert size == 30 * MB
        await until(lambda: not one.alive())


async def test_a_live_reader_may_leave_or_come_late(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.start("echo one; read x < fifo; echo two", setup=["mkfifo fifo"])
        await one.printed(b"one")
        async with one.session.ws_connect("http://runner/live", headers=bearer(one)) as live:
            first = await live.receive_bytes(timeout=10)
        await asyncio.to_thread((place / "work" / "fifo").write_text, "go\n")
        await one.result()
        async with one.session.ws_connect(f"http://runner/live?offset={len(first)}", headers=bearer(one)) as live:
            assert next(decode(await live.receive_bytes(timeout=10))).data == b"two\n"
        told = await one.ask("GET", "/pull?offset=0")
        assert told.headers[Header.COMPLETE] == "true"


async def test_live_needs_the_token_and_a_place_to_begin(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        for path, headers, status in (
            ("/live", {}, 401),
            ("/live?offset=7", bearer(one), 409),
            ("/live?offset=x", bearer(one), 422),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await one.session.ws_connect(f"http://runner{path}", headers=headers)
            assert refused.value.status == status
        assert (await one.ask("GET", "/live")).error == (400, "bad_request")
