"""Runs inside the environment of HyperQueue: server and worker of two cores, and its figures as one line of JSON."""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]

PATIENCE_S = 300.0
LOOK_S = 0.02


class Looked(Exception):
    """`wait_for_jobs` looks once a second, which would spoil each figure: its callback ends it after one look."""


class Driver:
    def __init__(self, home: Path, cluster: Any) -> None:
        self._work, self._client = home / "work", cluster.client()
        self._work.mkdir(exist_ok=True)

    def rate(self, number: int, *, files: bool) -> float:
        stdio = {} if files else {"stdout": None, "stderr": None}
        job = Job(default_workdir=self._work)
        for _ in range(number):
            job.program(["/bin/true"], **stdio)
        return number / self._seconds(job)

    def link_ms(self, number: int) -> float:
        job, last = Job(default_workdir=self._work), None
        for _ in range(number):
            last = job.program(["/bin/true"], deps=[last] if last else [])
        return self._seconds(job) * 1000 / number

    def start_ms(self, tries: int) -> float:
        taken = []
        for _ in range(tries):
            job = Job(default_workdir=self._work)
            job.program(["/bin/date", "+%s.%N"])
            # It puts off what comes right behind something else; this one is to find it idle.
            time.sleep(0.2)
            begun = time.time()
            self._seconds(job)
            taken.append((float((self._work / "0.stdout").read_text()) - begun) * 1000)
        return statistics.median(taken)

    def _seconds(self, job: Any) -> float:
        begun = time.perf_counter()
        submitted = self._client.submit(job)
        while not self._completed(submitted.id):
            if time.perf_counter() - begun > PATIENCE_S:
                raise TimeoutError(f"not done in {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)
        return time.perf_counter() - begun

    def _completed(self, job: int) -> bool:
        seen: dict[int, dict[str, int]] = {}

        def look(jobs: dict[int, dict[str, int]]) -> None:
            seen.update(jobs)
            raise Looked

        try:
            self._client.connection.wait_for_jobs((job,), look)
        except BaseException as error:
            if not seen:
                raise error
        if seen[job]["failed"]:
            raise ValueError(f"{seen[job]['failed']} tasks failed")
        return bool(seen[job]["completed"])


def main() -> None:
    """`in_hyperqueue.py HOME CORES WHAT NUMBER`; WHAT is files, no-files, chain or start."""
    home, cores, what, number = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    with LocalCluster(server_dir=str(home / "server"), worker_config=WorkerConfig(cores=cores)) as cluster:
        driver = Driver(home, cluster)
        driver.rate(20, files=True)
        if what == "chain":
            value = driver.link_ms(number)
        elif what == "start":
            value = driver.start_ms(number)
        else:
            value = driver.rate(number, files=what == "files")
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        print(json.dumps({"value": value, "memory_mb": memory}), flush=True)


if __name__ == "__main__":
    main()
