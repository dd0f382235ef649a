"""Rows come back as the records they were, and one call locks what a batch is about."""

from dataclasses import fields, replace
from typing import Any
from uuid import UUID, uuid4

from stoker.core.block import Blocks
from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.instance_facts import S as I
from stoker.core.job_facts import Cleanup, Job
from stoker.core.job_facts import S as J
from stoker.core.policy import Policy
from stoker.core.reason import JobReason, RunReason
from stoker.core.resources import Capacity
from stoker.core.retry import Budget, Fate
from stoker.core.run_facts import Run, Tally
from stoker.core.run_facts import S as R
from stoker.store import instance as instance_store
from stoker.store import job as job_store
from stoker.store import run as run_store
from stoker.store.bundle import Bundle
from stoker.store.database import Connection
from stoker.store.hold import Held, hold
from tests.conftest import Databases

PROJECT = ProjectId(UUID(int=1))


def a_run(policy: Policy = Policy()) -> Run:  # noqa: B008 - frozen
    """No field has its default."""
    return Run(
        RunId(uuid4()), PROJECT, f"run-{uuid4()}", policy, submitted_at=1.5, state=R.TERMINATING, version=4,
        entered_at=2.5, round=3, replicas=5, tally=Tally(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, master_done=True),
        reason=RunReason.JOB_FAILED, message="why", cause=JobReason.OUT_OF_MEMORY, exit_code=137, backoff_step=2,
        resume_at=9.5, trigger_at=10.5, queued=True, ended_at=11.5, owner_id=uuid4(), owner_attempt=2,
    )  # fmt: skip


def a_job(run: Run, node: int = 0, instance: InstanceId | None = None) -> Job:
    return Job(
        JobId(uuid4()), run.id, replica=2, node=node, attempt=3, policy=run.policy, submitted_at=1.5, round=2,
        ready_at=3.5, state=J.TERMINATING, version=7, entered_at=4.5, instance_id=instance or InstanceId(uuid4()),
        blocks=(1, 3), owned=False, shim=False, running_at=2.5, unreachable_since=3.5, reason=JobReason.OUT_OF_MEMORY,
        message="why", exit_code=137, exit_signal=9, fate=Fate.RETRY, budget=Budget(2, 1.5, 2), cleanup=Cleanup.STOP,
        exited_at=7.5, gone=True, remove_at=8.5,
    )  # fmt: skip


def an_instance(job: JobId) -> Instance:
    return Instance(
        InstanceId(uuid4()), FleetId(uuid4()), "cloud", Blocks(Capacity(4, 8192, 10_000), 4, {job: (1, 3)}),
        state=I.BUSY, version=3, entered_at=1.5, owned=True, shim=False, handle="i-1", unreachable_since=2.5,
        health="warm", cordoned=True, drain_at=3.5, destroy_at=4.5, provisioning_limit_s=5.0, price=1.25, spot=True,
        message="why",
    )  # fmt: skip


async def write(tx: Connection, runs: list[Run], jobs: list[Job], instances: list[Instance]) -> None:
    bundle = Bundle()
    run_store.insert(bundle, runs, {run.id: "{}" for run in runs})
    await bundle.write(tx)
    rest = Bundle()
    job_store.insert(rest, jobs)
    instance_store.insert(rest, instances)
    await rest.write(tx)


async def held(tx: Connection, *runs: Run, births: tuple[UUID, ...] = ()) -> Held:
    return await hold(tx, [run.id for run in runs], [], births)


async def test_rows_come_back_as_the_records_they_were(database: Databases) -> None:
    run = a_run()
    job = a_job(run)
    instance = an_instance(job.id)
    job = replace(job, instance_id=instance.id)
    async with database() as db, db.transaction() as tx:
        await write(tx, [run], [job], [instance])
        read = await held(tx, run)
    assert (read.runs, read.jobs, read.instances) == ({run.id: run}, [job], {instance.id: instance})
    records: list[Any] = [read.runs[run.id], *read.jobs, *(read.instances or {}).values()]
    for record in records:
        assert vars(record).keys() == {field.name for field in fields(record)}


async def test_records_are_saved_in_every_field_that_changes(database: Databases) -> None:
    run, after = a_run(), a_run()
    job, later = a_job(run), a_job(run)
    async with database() as db, db.transaction() as tx:
        await write(tx, [run], [job], [])
        after = replace(after, id=run.id, name=run.name, version=9, state=R.FAILED, owner_id=run.owner_id)
        later = replace(later, id=job.id, version=9, state=J.PULLING, cleanup=None, reason=None)
        bundle = Bundle()
        run_store.save(bundle, [(run.version, after)])
        job_store.save(bundle, [(job.version, later)])
        await bundle.write(tx)
        read = await held(tx, run)
    assert (read.runs[run.id], read.jobs) == (after, [later])


async def test_a_run_that_another_commit_holds_is_left_out_and_said_to_be_present(database: Databases) -> None:
    run, free, unknown = a_run(), a_run(), a_run()
    async with database() as db:
        async with db.transaction() as tx:
            await write(tx, [run, free], [a_job(run), a_job(free)], [])
        async with db.transaction() as first, db.transaction() as second:
            await held(first, run)
            read = await held(second, run, free, unknown)
    assert read.runs.keys() == {free.id}
    assert {job.run_id for job in read.jobs} == {free.id}
    assert read.present & {run.id, unknown.id} == {run.id}


async def test_births_that_happened_already_are_told(database: Databases) -> None:
    run, instance = a_run(), an_instance(JobId(uuid4()))
    async with database() as db, db.transaction() as tx:
        await write(tx, [run], [a_job(run)], [instance])
        read = await held(tx, births=(run.id, instance.id, uuid4()))
    assert read.present == {run.id, instance.id}


async def test_instances_are_left_for_later_when_a_run_is_too_large_to_be_loaded_whole(database: Databases) -> None:
    small, large = a_run(), a_run(Policy(replicas=1000))
    async with database() as db, db.transaction() as tx:
        await write(tx, [small, large], [a_job(small), a_job(large)], [])
        read = await held(tx, small, large)
    assert read.runs.keys() == {small.id, large.id}
    assert {job.run_id for job in read.jobs} == {small.id}
    assert read.instances is None
