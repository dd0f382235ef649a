"""How long the agents' bundle takes to make, how much it is to send, and how soon a runner from it is there."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.home import temporary_home
from bench.result import Result
from stoker.bundle.place import Bundle, find_or_build
from tests.agents.running import Running, prepare, talk

STARTS = 30
LOOK_S = 0.001
MB = 1_000_000


def measure() -> list[Result]:
    with temporary_home() as home:
        began = time.perf_counter()
        made = find_or_build(home)
        built_s = time.perf_counter() - began
        began = time.perf_counter()
        find_or_build(home)
        found_ms = (time.perf_counter() - began) * 1e3
        return [
            Result("bundle: made for the first time", built_s, "s"),
            Result("bundle: found again", found_ms, "ms", "<= 50 ms", ok=found_ms <= 50),
            Result("bundle: to send", made.size_bytes / MB, "MB", "<= 60 MB", ok=made.size_bytes <= 60 * MB),
            Result("bundle: to send after a change of ours", made.layers[-1].size_bytes / MB, "MB"),
            *asyncio.run(_starts(made, home)),
        ]


async def _starts(made: Bundle, home: Path) -> list[Result]:
    answers, jobs = [], []
    for number in range(STARTS):
        began = time.perf_counter()
        async with _cold(made, home / f"answers-{number}") as runner:
            await runner.health()
            answers.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        async with _cold(made, home / f"job-{number}", job=True):
            while not (home / f"job-{number}" / "work" / "there").exists():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            jobs.append((time.perf_counter() - began) * 1e3)
    p50 = statistics.median(answers)
    return [
        Result("bundle: runner started → answers, p50", p50, "ms", "<= 300 ms", ok=p50 <= 300),
        Result("bundle: runner started → its job runs, p50", statistics.median(jobs), "ms"),
    ]


@asynccontextmanager
async def _cold(made: Bundle, directory: Path, *, job: bool = False) -> AsyncIterator[Running]:
    """One that nobody forked, as the first process of a container."""
    assignment = prepare(directory)
    if job:
        order = _order(str(assignment["id"]))
        assignment = prepare(directory, id=assignment["id"], job=order)
    command = [*made.command(made.root, "stoker.runner"), "--directory", str(directory)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        while not (directory / "runner.sock").exists():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        async with talk(directory, assignment, process.pid) as running:
            yield running
    finally:
        process.kill()
        await process.wait()


def _order(id: str) -> dict[str, object]:
    named = {"job_id": id, "run_id": id, "run_name": "a-run", "project": "main", "submission": 1}
    return named | {"fence": 1, "commands": ["> there"], "log_quota_bytes": MB, "start": True}
