"""Orders to agents, made of what is stored of a run."""

import shlex
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

from stoker.core import utilization as core
from stoker.core.block import gpu_indices
from stoker.core.errors import Unavailable
from stoker.core.ids import InstanceId, JobId
from stoker.core.limits import LOG_QUOTA_BYTES, LONGEST_GRACE_S
from stoker.core.resources import Request
from stoker.core.shim_task import Runtime
from stoker.core.volume_facts import Kind, Volume
from stoker.core.warning import WarnSignal
from stoker.store import order as order_store
from stoker.store import volume as volume_store
from stoker.store.database import Database
from stoker.store.instance import capacity_of
from stoker.store.order import Brief, Peer
from stoker.store.outbox import Errand
from stoker.store.run import need_of, policy_of
from stoker.wire import mount
from stoker.wire.configuration import TaskConfiguration, restored
from stoker.wire.container import Images, to_container
from stoker.wire.group import NO_SHELL, part_of
from stoker.wire.runner import JobOrder, Utilization, Warning
from stoker.wire.shim import Mount, Source, TaskOrder

REMEMBERED = 1024
DEFAULT_IMAGES = Images()

TokenOf = Callable[[JobId], str]


class StoredOrders:
    """Where a job is does not change once it is placed. What it is told may: its run is changed in place while it
    waits for the other nodes or for its image. So what was read serves the orders of one try, which come at once."""

    def __init__(self, database: Database, token_of: TokenOf, images: Images = DEFAULT_IMAGES) -> None:
        self._database, self._token_of, self._images = database, token_of, images
        self._known: OrderedDict[JobId, tuple[tuple[UUID, int], Brief]] = OrderedDict()

    async def place(self, job_id: JobId) -> InstanceId:
        if (known := self._known.get(job_id)) is not None:
            return InstanceId(known[1].instance_id)
        async with self._database.connection() as connection:
            return await order_store.place(connection, job_id)

    async def task(self, errand: Errand, job: JobOrder | None) -> TaskOrder:
        brief = await self._brief(errand)
        request = need_of(brief.resources).of(brief.node)
        policy = policy_of(brief.policy)
        # Of a machine that is all its own nobody else hears what it says on the network.
        whole = policy.nodes > 1 or len(brief.blocks) == brief.total
        container = to_container(_configuration(brief.configuration), brief.node, self._images, whole=whole)
        return TaskOrder(
            id=errand.target,
            fence=errand.fence,
            name=brief.run_name,
            project_id=brief.project_id,
            runtime=Runtime.PROCESS if container is None else Runtime.DOCKER,
            container=container,
            token=self._token_of(JobId(errand.target)),
            # A range without an end is a wish for more, not a limit.
            cpu=request.cpu.hi,
            memory_mb=None if request.memory_mb.hi is None else int(request.memory_mb.hi),
            gpu_indices=_gpus(brief),
            mounts=await self._mounts(brief),
            detach_s=policy.detach_limit_s,
            stop_after_s=None if policy.disconnect is None else policy.disconnect.stop_after_s,
            job=job,
        )

    async def job(self, errand: Errand) -> JobOrder:
        brief = await self._brief(errand)
        policy, configuration = policy_of(brief.policy), _configuration(brief.configuration)
        direct = configuration.shell == NO_SHELL
        part, peers = part_of(configuration, brief.node), await self._peers(brief, policy.nodes)
        return JobOrder(
            fence=errand.fence,
            job_id=errand.target,
            run_id=brief.run_id,
            run_name=brief.run_name,
            project=brief.project,
            submission=brief.attempt,
            replica=brief.replica,
            replicas_num=max(1, policy.replicas),
            node_rank=brief.node,
            nodes_num=policy.nodes,
            nodes_ips=tuple(peer.ip for peer in peers),
            nodes_gpus=tuple(len(_gpus(peer)) for peer in peers),
            node_group=part.group,
            gpus_per_node=len(_gpus(brief)),
            gpus_num=sum(len(_gpus(peer)) for peer in peers),
            setup=part.setup,
            commands=() if direct else part.commands,
            argv=tuple(shlex.split(part.commands[0])) if direct and part.commands else (),
            shell="/bin/sh" if direct or configuration.shell is None else configuration.shell,
            env={name: value for name, value in part.env.items() if value is not None},
            working_dir=configuration.working_dir,
            tty=configuration.tty,
            # Of a run that was accepted when there was no bound.
            stop_duration_s=min(policy.stop_duration_s, LONGEST_GRACE_S),
            silence_grace_s=policy.disconnect.grace_s(policy.stop_duration_s) if policy.disconnect else None,
            max_duration_s=policy.max_duration_s,
            warning=_warning(policy.warn_signal),
            utilization=_utilization(policy.utilization, need_of(brief.resources).of(brief.node)),
            log_quota_bytes=LOG_QUOTA_BYTES,
            start=True,
        )

    async def _mounts(self, brief: Brief) -> tuple[Mount, ...]:
        wanted = list(map(mount.read, _configuration(brief.configuration).volumes))
        if not wanted:
            return ()
        async with self._database.connection() as connection:
            volumes = await volume_store.some(connection, policy_of(brief.policy).volumes)
        named = {one.name: one for one in volumes.values()}
        return tuple(_mount(one, named.get(one.volume)) for one in wanted)

    async def _peers(self, brief: Brief, nodes: int) -> list[Peer]:
        """All nodes of its replica. They are there before a job is submitted; one that just left is soon known."""
        if nodes == 1:
            return [Peer(brief.node, brief.ip, brief.capacity, brief.total, brief.blocks)]
        async with self._database.connection() as connection:
            peers = await order_store.peers(connection, brief)
        if len(peers) < nodes:
            sentence = f"{len(peers)} of its {nodes} nodes have a machine that can be reached."
            raise Unavailable(sentence, retry_after_s=0.05)
        return peers

    async def _brief(self, errand: Errand) -> Brief:
        job_id, this_try = JobId(errand.target), (errand.id, errand.tries)
        if (known := self._known.get(job_id)) is not None and known[0] == this_try:
            return known[1]
        async with self._database.connection() as connection:
            brief = await order_store.brief(connection, job_id)
        self._known[job_id] = (this_try, brief)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return brief


def _mount(one: mount.Mounted, volume: Volume | None) -> Mount:
    """Where a provider's disk is on the machine is known once it is attached."""
    if volume is None:
        return Mount(source=Source.PATH, place=one.host, inside=one.path, read_only=one.read_only)
    source = {Kind.LOCAL: Source.LOCAL, Kind.NFS: Source.NFS}.get(volume.kind, Source.PATH)
    return Mount(
        source=source,
        id=volume.id,
        name=volume.name,
        place=volume.source,
        size_mb=volume.size_mb if source is Source.LOCAL else None,
        inside=one.path,
        read_only=one.read_only,
    )


def _gpus(brief: Brief | Peer) -> tuple[int, ...]:
    return gpu_indices(capacity_of(brief.capacity), brief.total, brief.blocks)


def _warning(warn: WarnSignal | None) -> Warning | None:
    return None if warn is None else Warning(signal=warn.signal, ahead_s=warn.ahead_s)


def _utilization(wanted: core.Utilization | None, request: Request) -> Utilization | None:
    if wanted is None:
        return None
    return Utilization(
        window_s=wanted.window_s,
        min_gpu_percent=wanted.min_gpu_percent,
        min_cpu_percent=wanted.min_cpu_percent,
        cpus=request.cpu.lo or request.cpu.hi or 1.0,
    )


@lru_cache(maxsize=1024)
def _configuration(text: str) -> TaskConfiguration:
    return restored(text)
