"""Records as the API shows them."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from stoker.core.block import share
from stoker.core.ids import instance_name
from stoker.core.instance_facts import Instance as InstanceRecord
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import Job as JobRecord
from stoker.core.limits import MOST_DURATION_S
from stoker.core.phrase import counted
from stoker.core.policy import schedule_of as policy_schedule_of
from stoker.core.reason import SENTENCES
from stoker.core.resources import Capacity
from stoker.core.run_facts import Run as RunRecord
from stoker.core.run_facts import S as RunStatus
from stoker.core.run_facts import Tally
from stoker.core.schedule import Schedule as CoreSchedule
from stoker.core.schedule import triggers_after
from stoker.engine.pulls import Pulls
from stoker.server.auth import Access
from stoker.server.sentence import sentence
from stoker.store import fleet as fleet_store
from stoker.store.event import Told
from stoker.store.event import Trouble as TroubleRow
from stoker.store.instance import Shown, Tenant
from stoker.store.run_list import Listed, ListedJob
from stoker.store.run_spec import RunSpec
from stoker.store.ssh import Told as ToldSteps
from stoker.store.volume import Shown as VolumeShown
from stoker.wire.container import HIDDEN, without_secrets
from stoker.wire.event import Event, Trouble
from stoker.wire.fleet import Fleet, FleetStatus
from stoker.wire.instance import Instance, InstanceFree, InstanceGpu, InstanceJob, InstanceResources, InstanceStep
from stoker.wire.job import Job
from stoker.wire.run import Counts, Run
from stoker.wire.schedule import Round, Schedule
from stoker.wire.time import moment, moment_or_none
from stoker.wire.user import Role
from stoker.wire.volume import Volume

TRIGGERS_SHOWN = 5
NOTHING_TOLD: Mapping[UUID, ToldSteps] = {}


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
        held=listed.held,
        schedule=schedule_of(listed, TRIGGERS_SHOWN if listed.configuration is not None else 1),
        version=listed.version,
        configuration=configuration_of(listed, access),
        counts=counts_of(listed.tally),
        retry_of=UUID(listed.retry_of) if listed.retry_of else None,
        jobs=tuple(map(job_of, jobs)),
    )


def with_pulls(run: Run, pulls: Pulls) -> Run:
    """What it waits for besides, where its image comes just now; and where its containers are reached."""
    jobs = tuple(
        job.model_copy(update={"message": pulls.of_job(job.id) or job.message, "ports": pulls.ports_of(job.id)})
        for job in run.jobs
    )
    if not (said := pulls.of_run(run.id)):
        return run.model_copy(update={"jobs": jobs})
    message = "; ".join(part for part in (run.status_message, said) if part)
    return run.model_copy(update={"status_message": message, "jobs": jobs})


def schedule_of(listed: Listed, most: int) -> Schedule | None:
    if listed.schedule is None:
        return None
    schedule, last = policy_schedule_of(json.loads(listed.schedule)), None
    if listed.last_reason is not None:
        ends = RunStatus(SENTENCES[listed.last_reason].ends.value)
        last = Round(status=ends, reason=listed.last_reason, ended_at=moment_or_none(listed.ended_at))
    return Schedule(
        cron=schedule.lines,
        timezone=schedule.zone,
        overlap=schedule.overlap.value,
        paused=schedule.paused,
        next=tuple(map(moment, _triggers(listed, schedule, most))),
        rounds=listed.round,
        queued=listed.queued,
        last=last,
    )


def _triggers(listed: Listed, schedule: CoreSchedule, most: int) -> tuple[float, ...]:
    if listed.finished or listed.trigger_at is None:
        return ()
    return (listed.trigger_at, *triggers_after(schedule, listed.trigger_at, most - 1))


def configuration_of(listed: Listed, access: Access) -> dict[str, Any] | None:
    """A variable may be a secret of whoever submitted it: other users see that it is there."""
    if listed.configuration is None:
        return None
    configuration = without_secrets(json.loads(listed.configuration))
    if listed.user != access.user and not access.may(Role.MANAGER):
        for one in (configuration, *configuration.get("groups", ())):
            if "env" in one:
                one["env"] = dict.fromkeys(one["env"], HIDDEN)
    return configuration


def counts_of(tally: Tally) -> Counts:
    """Each job once, by its latest submission; one that is ending counts as what it will be."""
    return Counts(
        total=tally.contributing,
        waiting=tally.submitted,
        starting=tally.starting,
        running=tally.running,
        done=tally.done,
        retrying=tally.retry,
        failed=tally.failed + tally.exhausted,
        stopped=tally.limit + tally.stopped,
    )


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
        run.submitted_at, resume_at=run.resume_at, trigger_at=run.trigger_at, held=run.policy.hold,
        schedule=json.dumps(schedule) if (schedule := run.policy.to_json().get("schedule")) else None,
        configuration=spec.configuration, tally=run.tally, retry_of=run.policy.retry_of,
    )  # fmt: skip


def listed_job_of(job: JobRecord) -> ListedJob:
    return ListedJob(
        job.id, job.run_id, job.replica, job.node, job.attempt, job.state, job.entered_at, job.submitted_at,
        job.running_at, job.instance_id, job.reason, job.message, job.exit_code, job.exit_signal,
        job.unreachable_since, job.exited_at,
    )  # fmt: skip


def resources_of(capacity: Capacity) -> InstanceResources:
    gpus = (
        InstanceGpu(index=gpu.index, name=gpu.name, memory_mb=gpu.memory_mb, vendor=gpu.vendor) for gpu in capacity.gpus
    )
    return InstanceResources(
        cpu=capacity.cpu,
        memory_mb=capacity.memory_mb,
        disk_mb=capacity.disk_mb,
        gpus=tuple(gpus),
        named=dict(capacity.named),
        docker=capacity.docker,
    )


def instance_of(
    shown: Shown, now: float, tenants: Iterable[Tenant] = (), told: Mapping[UUID, ToldSteps] = NOTHING_TOLD
) -> Instance:
    one = shown.instance
    capacity, held, steps = one.blocks.capacity, one.blocks.held, told.get(shown.instance.id)
    free = share(capacity, one.blocks.total, one.blocks.free_count)
    return Instance(
        id=one.id,
        name=instance_name(one.backend, one.id),
        fleet=shown.fleet,
        backend=one.backend,
        status=one.state,
        resources=resources_of(capacity),
        blocks=one.blocks.total,
        blocks_free=one.blocks.free_count,
        free=InstanceFree(cpu=free.cpu, memory_mb=free.memory_mb, disk_mb=free.disk_mb, gpus=free.gpus),
        jobs=len(held),
        tenants=tuple(
            InstanceJob(id=job.id, run=job.run, replica=job.replica, node=job.node, status=job.state) for job in tenants
        ),
        offer=one.offer,
        location=one.location,
        price=one.price,
        cost=cost_of(one, now),
        spot=one.spot,
        cordoned=one.cordoned,
        draining_until=_deadline(one.drain_at, now),
        health=one.health,
        steps=tuple(_step_of(step) for step in (steps.steps if steps else ())),
        trouble=steps.trouble if steps else "",
        message=one.message,
        unreachable_since=moment_or_none(one.unreachable_since),
        since=moment(one.entered_at),
        launched_at=moment_or_none(one.launched_at),
        ended_at=moment_or_none(one.ended_at),
    )


def _step_of(step: Mapping[str, Any]) -> InstanceStep:
    return InstanceStep(step=step["step"], state=step["state"], message=step["message"], at=moment(step["at"]))


def cost_of(one: InstanceRecord, now: float) -> float:
    """From the moment its provider accepted it until it was certainly gone."""
    if one.launched_at is None:
        return 0.0
    return round(one.price * max(0.0, (now if one.ended_at is None else one.ended_at) - one.launched_at) / 3600, 9)


def _deadline(at: float | None, now: float) -> datetime | None:
    """One that is years away was never meant."""
    return None if at is None or at > now + MOST_DURATION_S / 2 else moment(at)


def fleet_of(one: fleet_store.Fleet) -> Fleet:
    policy = fleet_store.policy_of(one.policy)
    there, message = one.instances - one.leaving, ""
    if policy.deleting:
        message = f"goes with its last instance: {one.instances} left"
    elif there < policy.min_nodes:
        message = f"{there} of {counted(policy.min_nodes, 'node')}"
    return Fleet(
        id=one.id,
        name=one.name,
        project=one.project,
        status=FleetStatus.DELETING if policy.deleting else FleetStatus.ACTIVE,
        message=message,
        version=one.version,
        spec=json.loads(one.spec),
        instances=one.instances,
        idle=one.idle,
        busy=one.busy,
        price=one.price,
        cost=round(one.cost, 9),
        created_at=moment(one.created_at),
    )


def volume_of(shown: VolumeShown) -> Volume:
    one = shown.volume
    return Volume(
        id=one.id,
        name=one.name,
        project=shown.project,
        kind=one.kind,
        status=one.state,
        message="; ".join(shown.troubles) or one.message,
        version=one.version,
        spec=json.loads(shown.spec),
        exclusive=one.exclusive,
        size_mb=one.size_mb,
        instance=one.instance_id,
        instance_name=shown.where,
        attached=shown.holders,
        created_at=moment(shown.created_at),
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
        kind=told.kind,
        id=told.id,
        name=told.name,
        run=told.run,
        run_id=told.family if told.kind in ("run", "job") else None,
        fleet=told.fleet,
        event=told.event,
        source=told.source,
        target=told.target,
        message=told.note,
        by=told.by,
    )
