"""A person's first hour, measured: how soon a run starts, ends and stops, and what the server costs."""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from bench.result import Result
from bench.stand import Stand, cli, cold_start_s, cpu_s, standing
from stoker.client import log as logs
from stoker.client import run as runs
from stoker.client.client import Client
from stoker.wire.frame import Stream, decode

TRIES = 60
STOPS = 20
MANY = 500
IDLE_S = 10.0
GIGABYTE = 1_000_000_000


def first_run() -> list[Result]:
    with standing() as stand:
        results = [*idle(stand), *latency(stand), *stops(stand), *many(stand), *commands(stand), *gigabyte(stand)]
        seconds, stand = cold_start_s(stand)
        results.append(Result("cold start on existing data", seconds, "s", "<= 2 s", ok=seconds <= 2))
    return results


def submit(stand: Stand, *commands: str) -> dict[str, Any]:
    configuration = {"type": "task", "commands": list(commands)}
    return runs.submit(_client(stand), configuration, expected=None, key=str(uuid4()))


def ended(stand: Stand, name: str, seconds: float = 120.0) -> dict[str, Any]:
    return runs.wait(_client(stand), name, timeout_s=seconds)


_kept = threading.local()


def _client(stand: Stand) -> Client:
    """Each thread keeps its connection, as programs do."""
    if getattr(_kept, "url", "") != stand.client.url:
        _kept.url, _kept.client = stand.client.url, stand.client.again()
    client: Client = _kept.client
    return client


def printed(stand: Stand, name: str) -> bytes:
    pieces = logs.backlog(stand.client, name, logs.Which())
    return b"".join(one.data for piece in pieces for one in decode(piece.frames) if one.stream == Stream.STDOUT)


def latency(stand: Stand) -> list[Result]:
    """The program itself says when it began and when it ended; `date` takes about a millisecond of that."""
    started, finished = [], []
    # The host of a server that has just been made takes a second to come up.
    ended(stand, submit(stand, "true")["name"])
    for _ in range(TRIES):
        before = time.time()
        name = submit(stand, "date +%s.%N")["name"]
        run = ended(stand, name)
        after = time.time()
        assert run["status"] == "DONE", run
        at = float(printed(stand, name))
        started.append((at - before) * 1000)
        finished.append((after - at) * 1000)
    return [
        _at_most("submit to process started, p50", statistics.median(started), "ms", 60),
        _at_most("submit to process started, p99", _p99(started), "ms", 250),
        _at_most("process exit to DONE visible, p50", statistics.median(finished), "ms", 60),
    ]


def stops(stand: Stand) -> list[Result]:
    """In turns: the machine's own speed moves."""
    pairs = [(_stopped_ms(stand, abort=False), _stopped_ms(stand, abort=True)) for _ in range(STOPS)]
    polite, aborted = (statistics.median(each) for each in zip(*pairs, strict=True))
    return [
        _at_most("stop of a polite process, p50", polite, "ms", 300),
        Result("abort, p50", aborted, "ms", "not slower than stop", "stop", aborted / polite, aborted <= polite * 1.1),
    ]


def _stopped_ms(stand: Stand, *, abort: bool) -> float:
    name = submit(stand, "exec sleep 1000")["name"]
    _until(lambda: runs.get(stand.client, name)["status"] == "RUNNING")
    begun = time.perf_counter()
    runs.stop(stand.client, [name], abort=abort)
    ended(stand, name)
    return (time.perf_counter() - begun) * 1000


def many(stand: Stand) -> list[Result]:
    server, postgres, agents = cpu_s([stand.server]), cpu_s(stand.postgres()), cpu_s(stand.agents())
    begun = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        names = list(pool.map(lambda _: submit(stand, "true")["name"], range(MANY)))
    for name in names:
        assert ended(stand, name)["status"] == "DONE"
    seconds = time.perf_counter() - begun
    own = (cpu_s([stand.server]) - server + cpu_s(stand.postgres()) - postgres) / MANY * 1000
    beside = (cpu_s(stand.agents()) - agents) / MANY * 1000
    rate = MANY / seconds
    return [
        Result(f"{MANY} runs of `true`, end to end", rate, "runs/s", ">= 40", ok=rate >= 40),
        _at_most("  CPU of server and PostgreSQL a run", own, "ms", 15),
        Result("  CPU of the agents a run", beside, "ms"),
    ]


def idle(stand: Stand) -> list[Result]:
    time.sleep(3)
    used, begun = cpu_s([stand.server]), time.perf_counter()
    time.sleep(IDLE_S)
    share = (cpu_s([stand.server]) - used) / (time.perf_counter() - begun) * 100
    return [
        _at_most("idle server, memory", stand.server.memory_info().rss / 2**20, "MB", 120),
        _at_most("idle server, share of a core", share, "%", 0.5),
    ]


def commands(stand: Stand) -> list[Result]:
    ps = statistics.median(_seconds(lambda: cli(stand, "ps")) for _ in range(11)) * 1000
    help = statistics.median(_seconds(lambda: cli(stand, "--help")) for _ in range(11)) * 1000
    return [_at_most("stoker ps", ps, "ms", 250), _at_most("stoker --help", help, "ms", 150)]


def gigabyte(stand: Stand) -> list[Result]:
    before = stand.server.memory_info().rss
    agents = {one.pid: one.memory_info().rss for one in stand.agents()}
    begun = time.perf_counter()
    name = submit(stand, f"yes {'x' * 79} | head -c {GIGABYTE}")["name"]
    run = ended(stand, name, 300)
    seconds = time.perf_counter() - begun
    assert run["status"] == "DONE", run
    size = sum(
        len(one.data) for piece in logs.backlog(stand.client, name, logs.Which()) for one in decode(piece.frames)
    )
    assert size == GIGABYTE, f"{size} bytes of {GIGABYTE}"
    grown = [one.memory_info().rss - agents[one.pid] for one in stand.agents() if one.pid in agents]
    rate = GIGABYTE / 1e6 / seconds
    return [
        Result("1 GB of 80-byte lines through a run", rate, "MB/s", ">= 40", ok=rate >= 40),
        _at_most("  the server grew", (stand.server.memory_info().rss - before) / 2**20, "MB", 50),
        _at_most("  the agent that grew most", max(grown, default=0) / 2**20, "MB", 50),
    ]


def _at_most(name: str, value: float, unit: str, limit: float) -> Result:
    return Result(name, value, unit, f"<= {limit:g} {unit}", ok=value <= limit)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _until(holds: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.005)
