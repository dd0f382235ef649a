"""Figures for Prometheus: what requests cost, what there is, and how the engine is."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from stoker.engine.engine import Engine
from stoker.store import instance as instance_store
from stoker.store import run_list
from stoker.store.database import Database

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """A registry of its own, so that two servers in one process do not count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "stoker_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "stoker_request_seconds", "Time until the answer began.", ("route",), registry=self.registry,
            buckets=_BUCKETS,
        )  # fmt: skip
        self._runs = Gauge("stoker_runs", "Runs that are not finished.", ("status",), registry=self.registry)
        self._instances = Gauge("stoker_instances", "Instances that are not gone.", ("status",), registry=self.registry)
        self._streams = Gauge("stoker_streams", "Logs and events being sent.", registry=self.registry)
        self._passes = Gauge("stoker_loop_passes", "Passes of a loop.", ("loop",), registry=self.registry)
        self._failures = Gauge("stoker_loop_failures", "Passes that failed.", ("loop",), registry=self.registry)
        self._bugs = Gauge("stoker_errand_bugs", "Errands that failed by our own fault.", registry=self.registry)

    async def page(self, database: Database, engine: Engine, streams: int) -> bytes:
        async with database.connection() as connection:
            runs = await run_list.counts(connection)
            instances = await instance_store.counts(connection)
        for gauge, counts in ((self._runs, runs), (self._instances, instances)):
            gauge.clear()
            for status, count in counts.items():
                gauge.labels(status).set(count)
        for name, loop in engine.loops.items():
            self._passes.labels(name).set(loop.passes)
            self._failures.labels(name).set(loop.failures)
        self._bugs.set(engine.errands.bugs)
        self._streams.set(streams)
        return generate_latest(self.registry)
