"""Much at once over the HTTP API: a thousand runs in one request, an array of ten thousand, and its end.

The array is stopped while a part of it runs, on simulated machines of the dummy backend. The peer is PostgreSQL itself:
as many plain rows, copied into a table and synced.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.result import Result
from stoker.engine import garbage
from stoker.server.first_start import Keyring
from stoker.server.main import Served, running
from stoker.server.settings import Settings

RUNS, ARRAY = 1_000, 10_000
LIMIT_S = 2.0
TRIES = 3
PATIENCE_S = 60.0
MACHINES, SLOTS = 25, 4
PARALLEL = MACHINES * SLOTS
OFFER = {"name": "box", "cpu": SLOTS, "memory": "8GB"}
FLEET = {"type": "fleet", "name": "bench", "backends": ["dummy"], "nodes": MACHINES, "blocks": SLOTS}


def many(url: str) -> list[Result]:
    return asyncio.run(_measure(url))


async def _measure(url: str) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-many-") as home:
        (Path(home) / "backends.yml").write_text(json.dumps({"dummy": {"offers": [OFFER]}}))
        settings = Settings(Path(home), port=0, database_url=url, name="bench")
        async with running(settings) as served:
            garbage.tune()
            client = _Client(served.url, Keyring(settings.config_file).secret)
            runs, arrays, ends = [], [], []
            for _ in range(TRIES):
                runs.append(await asyncio.to_thread(client.submit_runs))
                await asyncio.to_thread(client.stop_all)
            await asyncio.to_thread(client.machines)
            for number in range(TRIES):
                arrays.append(await asyncio.to_thread(client.submit_array, f"array-{number}"))
                ends.append(await asyncio.to_thread(client.stop, f"array-{number}"))
            copied_1, copied_10 = await _copied_s(served, RUNS), await _copied_s(served, ARRAY)
    return [
        _result(f"{RUNS:,} runs in one request, accepted", max(runs), copied_1),
        _result(f"an array of {ARRAY:,}, accepted", max(arrays), copied_10),
        _result(f"an array of {ARRAY:,} of which {PARALLEL} run, stopped", max(ends), copied_10),
    ]


def _result(name: str, taken_s: float, peer_s: float) -> Result:
    limit = f"<= {LIMIT_S:g} s"
    return Result(name, taken_s, "s", limit, "a plain COPY of as many rows", taken_s / peer_s, taken_s <= LIMIT_S)


async def _copied_s(served: Served, count: int) -> float:
    """The least of three."""
    taken = []
    async with served.context.database.connection() as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_plain (id bigint PRIMARY KEY, text text)")
    for _ in range(TRIES):
        async with served.context.database.transaction() as tx:
            await tx.execute("TRUNCATE bench_plain")
        begun = time.perf_counter()
        async with served.context.database.transaction() as tx:
            rows = [(number, "x" * 300) for number in range(count)]
            await tx.copy_records_to_table("bench_plain", records=rows, columns=["id", "text"])
        taken.append(time.perf_counter() - begun)
    return min(taken)


class _Client:
    def __init__(self, url: str, secret: str) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(parts.hostname or "", parts.port)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def submit_runs(self) -> float:
        task = {"type": "task", "commands": ["true"]}
        return self._timed("POST", "/runs", {"configurations": [task] * RUNS})

    def submit_array(self, name: str) -> float:
        task = {
            "type": "task", "name": name, "commands": ["sleep infinity"], "resources": {"cpu": 1}, "replicas": ARRAY,
            "max_parallel": PARALLEL,
        }  # fmt: skip
        return self._timed("POST", "/runs", {"configuration": task})

    def machines(self) -> None:
        self._asked("POST", "/fleets", {"configuration": FLEET})
        self._until(lambda: self._asked("GET", "/fleets/bench")["idle"] == MACHINES)

    def stop_all(self) -> None:
        self._asked("POST", "/runs/stop", {"all": True, "abort": True})
        self._until(lambda: not self._asked("GET", "/runs?active=true&limit=1")["items"])

    def stop(self, name: str) -> float:
        """Until every job of it has ended, as a person sees it."""
        self._until(lambda: self._asked("GET", f"/runs/{name}")["counts"]["running"] == PARALLEL)
        begun = time.perf_counter()
        self._asked("POST", f"/runs/{name}/stop", {"abort": False})
        run = self._asked("GET", f"/runs/{name}/wait?timeout_s={PATIENCE_S:g}")
        taken_s = time.perf_counter() - begun
        assert run["status"] == "TERMINATED", run["status"]
        return taken_s

    @staticmethod
    def _until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.01)

    def _timed(self, method: str, path: str, body: Any) -> float:
        begun = time.perf_counter()
        self._asked(method, path, body)
        return time.perf_counter() - begun

    def _asked(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, f"/api/projects/main{path}", text, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 300, content[:300]
        return json.loads(content) if content else None
