"""Orders to agents, made of what is stored of a run."""

import json
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from stoker.core.block import gpu_indices
from stoker.core.ids import InstanceId, JobId
from stoker.core.limits import LOG_QUOTA_BYTES
from stoker.core.resources import Request
from stoker.store import order as order_store
from stoker.store.database import Database
from stoker.store.instance import capacity_of
from stoker.store.order import Brief
from stoker.store.outbox import Errand
from stoker.store.run import policy_of
from stoker.wire.configuration import TaskConfiguration, restored
from stoker.wire.runner import JobOrder
from stoker.wire.shim import TaskOrder

REMEMBERED = 1024

TokenOf = Callable[[JobId], str]


class StoredOrders:
    """Nothing of a job that is placed changes any more, so what was read for one order serves the next."""

    def __init__(self, database: Database, token_of: TokenOf) -> None:
        self._database, self._token_of = database, token_of
        self._known: OrderedDict[JobId, Brief] = OrderedDict()

    async def place(self, job_id: JobId) -> InstanceId:
        if (known := self._known.get(job_id)) is not None:
            return InstanceId(known.instance_id)
        async with self._database.connection() as connection:
            return await order_store.place(connection, job_id)

    async def task(self, errand: Errand) -> TaskOrder:
        brief = await self._brief(JobId(errand.target))
        request = _request(brief.resources)
        disconnect = policy_of(brief.policy).disconnect
        return TaskOrder(
            id=errand.target,
            fence=errand.fence,
            name=brief.run_name,
            project_id=brief.project_id,
            token=self._token_of(JobId(errand.target)),
            # A range without an end is a wish for more, not a limit.
            cpu=request.cpu.hi,
            memory_mb=None if request.memory_mb.hi is None else int(request.memory_mb.hi),
            gpu_indices=_gpus(brief),
            stop_after_s=None if disconnect is None else disconnect.stop_after_s,
        )

    async def job(self, errand: Errand) -> JobOrder:
        brief = await self._brief(JobId(errand.target))
        policy, configuration = policy_of(brief.policy), _configuration(brief.configuration)
        return JobOrder(
            fence=errand.fence,
            job_id=errand.target,
            run_id=brief.run_id,
            run_name=brief.run_name,
            project=brief.project,
            submission=brief.attempt,
            replica=brief.replica,
            node_rank=brief.node,
            nodes_num=policy.nodes,
            gpus_per_node=len(_gpus(brief)),
            setup=configuration.setup,
            commands=configuration.commands,
            shell=configuration.shell or "/bin/sh",
            env={name: value for name, value in configuration.env.items() if value is not None},
            working_dir=configuration.working_dir,
            tty=configuration.tty,
            stop_duration_s=policy.stop_duration_s,
            log_quota_bytes=LOG_QUOTA_BYTES,
            start=True,
        )

    async def _brief(self, job_id: JobId) -> Brief:
        if (known := self._known.get(job_id)) is not None:
            return known
        async with self._database.connection() as connection:
            brief = self._known[job_id] = await order_store.brief(connection, job_id)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return brief


def _gpus(brief: Brief) -> tuple[int, ...]:
    return gpu_indices(capacity_of(brief.capacity), brief.total, brief.blocks)


@lru_cache(maxsize=1024)
def _request(text: str) -> Request:
    return Request.from_json(json.loads(text))


@lru_cache(maxsize=1024)
def _configuration(text: str) -> TaskConfiguration:
    return restored(text)
