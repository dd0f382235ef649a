"""The HTTP API of one server process on a PostgreSQL that syncs: what a submission and a page of a list cost."""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from bench.result import Result
from stoker.core.ids import uuid7
from stoker.engine import garbage
from stoker.server.agents import Agents
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.store.database import Database
from stoker.store.project import get

RUNS = 100_000
ASKED = 300
_RUN = """id project_id name policy resources submitted_at owner_attempt whole state version entered_at round replicas
tally reason message exit_code priority"""
_SPEC = "run_id project_id name user type configuration"
_JOB = """id run_id replica node attempt round submitted_at latest state version entered_at running_at fate tries
streak"""


def api(url: str) -> list[Result]:
    return asyncio.run(_measure(url))


async def _measure(url: str) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-api-") as home:
        settings = Settings(Path(home), port=0, database_url=url, name="bench")
        async with running(settings, lambda context: Agents()) as served:
            garbage.tune()
            secret = Keyring(settings.config_file).secret
            posts = await asyncio.to_thread(_asked, served.url, secret, "POST", 50)
            cpu = time.process_time()
            posts = await asyncio.to_thread(_asked, served.url, secret, "POST", ASKED)
            cpu_ms = (time.process_time() - cpu) * 1000 / ASKED
            await store_ended(served, RUNS)
            pages = await asyncio.to_thread(_asked, served.url, secret, "GET", ASKED)
    page_ms = statistics.median(pages)
    return [
        Result("POST of a run, one client, p50", statistics.median(posts), "ms"),
        Result("POST of a run, one client, p99", sorted(posts)[int(len(posts) * 0.99)], "ms"),
        Result("  the same, CPU of server and client together", cpu_ms, "ms"),
        Result(f"GET of 50 runs of {RUNS:,}, p50", page_ms, "ms", "<= 50 ms", ok=page_ms <= 50),
        Result(f"GET of 50 runs of {RUNS:,}, p99", sorted(pages)[int(len(pages) * 0.99)], "ms"),
    ]


def _asked(url: str, secret: str, method: str, times: int) -> list[float]:
    """On one connection that is kept; in ms."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    body = json.dumps({"configuration": {"type": "task", "commands": ["true"]}}) if method == "POST" else None
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        connection.request(method, "/api/projects/main/runs", body, headers)
        answer = connection.getresponse()
        answer.read()
        taken.append((time.perf_counter() - begun) * 1000)
        assert answer.status < 300, answer.status
    connection.close()
    return taken


async def store_ended(served: Served, number: int) -> None:
    """Runs that have ended, as a year leaves them."""
    database: Database = served.context.database
    async with database.transaction() as tx:
        project = (await get(tx, "main")).id
        now, rows = time.time() - number, _Rows(project)
        for each in range(number):
            rows.add(each, now + each)
        await tx.copy_records_to_table("run", records=rows.runs, columns=_RUN.split())
        await tx.copy_records_to_table("run_spec", records=rows.specs, columns=_SPEC.split())
        await tx.copy_records_to_table("job", records=rows.jobs, columns=_JOB.split())
    async with database.connection() as connection:
        await connection.execute("ANALYZE")


class _Rows:
    def __init__(self, project: UUID) -> None:
        self._project, self._dice = project, random.Random(os.getpid())
        self.runs: list[tuple[Any, ...]] = []
        self.specs: list[tuple[Any, ...]] = []
        self.jobs: list[tuple[Any, ...]] = []

    def add(self, number: int, at: float) -> None:
        id, state = uuid7(at, self._dice.getrandbits(80)), "FAILED" if number % 50 == 0 else "DONE"
        name, configuration = (
            f"run-{number % 5000}",
            json.dumps({"type": "task", "commands": [f"train --seed {number}"]}),
        )
        self.runs.append(
            (
                id,
                self._project,
                name,
                "{}",
                "{}",
                at,
                0,
                True,
                state,
                5,
                at + 3,
                1,
                1,
                [0] * 12,
                "ALL_JOBS_DONE",
                "",
                0,
                50,
            )
        )
        self.specs.append((id, self._project, name, "admin", "task", configuration))
        job = uuid7(at, self._dice.getrandbits(80))
        self.jobs.append((job, id, 0, 0, 1, 1, at, True, "DONE", 5, at + 3, at + 1, "done", 0, 0))
