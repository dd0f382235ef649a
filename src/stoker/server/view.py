"""Records as the API shows them."""

import json
from collections.abc import Iterable
from typing import Any

from stoker.core.block import share
from stoker.core.ids import instance_name
from stoker.core.instance import Instance as InstanceRecord
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import Job as JobRecord
from stoker.core.run_facts import Run as RunRecord
from stoker.server.auth import Access
from stoker.server.sentence import sentence
from stoker.store import fleet as fleet_store
from stoker.store.event import Told
from stoker.store.event import Trouble as TroubleRow
from stoker.store.run_list import Listed, ListedJob
from stoker.store.run_spec import RunSpec
from stoker.wire.event import Event, Trouble
from stoker.wire.fleet import Fleet
from stoker.wire.instance import Instance, InstanceFree, InstanceGpu, InstanceResources
from stoker.wire.job import Job
from stoker.wire.run import Run
from stoker.wire.time import moment, moment_or_none
from stoker.wire.user import Role

HIDDEN = "•••"
"""In place of the value of a variable."""


def run_of(listed: Listed, access: Access, jobs: Iterable[ListedJob] = ()) -> Run:
    return Run(
        id=listed.id,
        name=listed.name,
        project=access.project,
        user=listed.user,
        type=listed.type,
        status=listed.state,
        status_message=sentence(listed),
        termination_reason=listed.reason,
        exit_code=listed.exit_code,
        submitted_at=moment(listed.submitted_at),
        started_at=moment_or_none(listed.started_at),
        finished_at=moment_or_none(listed.finished_at),
        version=listed.version,
        configuration=configuration_of(listed, access),
        jobs=tuple(map(job_of, jobs)),
    )


def configuration_of(listed: Listed, access: Access) -> dict[str, Any] | None:
    """A variable may be a secret of whoever submitted it: other users see that it is there."""
    if listed.configuration is None:
        return None
    configuration: dict[str, Any] = json.loads(listed.configuration)
    if "env" in configuration and listed.user != access.user and not access.may(Role.MANAGER):
        configuration["env"] = dict.fromkeys(configuration["env"], HIDDEN)
    return configuration


def job_of(job: ListedJob) -> Job:
    return Job(
        id=job.id,
        replica=job.replica,
        node=job.node,
        submission=job.attempt,
        status=job.state,
        termination_reason=job.reason,
        message=job.message,
        exit_code=job.exit_code,
        exit_signal=job.exit_signal,
        instance=job.instance_id,
        instance_name=instance_name(job.backend, job.instance_id) if job.instance_id and job.backend else None,
        submitted_at=moment(job.submitted_at),
        started_at=moment_or_none(job.running_at),
        finished_at=moment_or_none(job.finished_at),
        unreachable_since=None if job.state in JOB_FINISHED else moment_or_none(job.unreachable_since),
    )


def listed_of(run: RunRecord, spec: RunSpec) -> Listed:
    """A run that was born a moment ago."""
    return Listed(
        run.id, run.project_id, run.name, spec.user, spec.type, run.state, run.version, run.entered_at,
        run.submitted_at, resume_at=run.resume_at, trigger_at=run.trigger_at, configuration=spec.configuration,
    )  # fmt: skip


def listed_job_of(job: JobRecord) -> ListedJob:
    return ListedJob(
        job.id, job.run_id, job.replica, job.node, job.attempt, job.state, job.entered_at, job.submitted_at,
        job.running_at, job.instance_id, job.reason, job.message, job.exit_code, job.exit_signal,
        job.unreachable_since, job.exited_at,
    )  # fmt: skip


def instance_of(one: InstanceRecord, fleet: str | None) -> Instance:
    capacity, held = one.blocks.capacity, one.blocks.held
    free = share(capacity, one.blocks.total, one.blocks.free_count)
    return Instance(
        id=one.id,
        name=instance_name(one.backend, one.id),
        fleet=fleet,
        backend=one.backend,
        status=one.state,
        resources=InstanceResources(
            cpu=capacity.cpu,
            memory_mb=capacity.memory_mb,
            disk_mb=capacity.disk_mb,
            gpus=tuple(
                InstanceGpu(index=gpu.index, name=gpu.name, memory_mb=gpu.memory_mb, vendor=gpu.vendor)
                for gpu in capacity.gpus
            ),
            named=dict(capacity.named),
        ),
        blocks=one.blocks.total,
        blocks_free=one.blocks.free_count,
        free=InstanceFree(cpu=free.cpu, memory_mb=free.memory_mb, disk_mb=free.disk_mb, gpus=free.gpus),
        jobs=len(held),
        price=one.price,
        spot=one.spot,
        cordoned=one.cordoned,
        health=one.health,
        message=one.message,
        unreachable_since=moment_or_none(one.unreachable_since),
        since=moment(one.entered_at),
    )


def fleet_of(one: fleet_store.Fleet) -> Fleet:
    return Fleet(
        id=one.id,
        name=one.name,
        project=one.project,
        spec=json.loads(one.spec),
        instances=one.instances,
        created_at=moment(one.created_at),
    )


def trouble_of(one: TroubleRow) -> Trouble:
    return Trouble(
        since=moment(one.since),
        effect=one.effect,
        message=one.error,
        tries=one.tries,
        next_at=moment(one.next_at),
    )


def event_of(told: Told) -> Event:
    return Event(
        seq=told.seq,
        at=moment(told.at),
        run=told.run,
        run_id=told.run_id,
        kind=told.kind,
        id=told.id,
        event=told.event,
        source=told.source,
        target=told.target,
        message=told.note,
        by=told.by,
    )
