"""Performers of the wishes that records have of each other: no agent and no provider is involved."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker.core.errors import Broken, Conflict, NotFound
from stoker.core.family import found
from stoker.core.ids import InstanceId, JobId, ManagedJobId, RunId, derived, instance_name
from stoker.core.instance_facts import Instance, TellJobs, Tidings
from stoker.core.job_facts import CleanedUp, Cleanup, Draining, InstanceGone, Interrupted, Placed, Release
from stoker.core.machine import Effect, Event
from stoker.core.managed_task import CleanedUp as RunCleanedUp
from stoker.core.managed_task import LaunchRun, ManagedTaskId, RunCreated, StopRun
from stoker.core.policy import Policy
from stoker.core.resources import Request
from stoker.core.run_facts import StopAsked, Sweep, Swept, TellOwner
from stoker.core.tidings import news_of
from stoker.engine.change import Change, RunBirth, of_job, of_managed, of_run
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.errand import Performer
from stoker.store import instance as instance_store
from stoker.store import job as job_store
from stoker.store import managed_job as managed_store
from stoker.store import run as run_store
from stoker.store.database import Database, Record
from stoker.store.outbox import Errand


class Teller:
    def __init__(self, database: Database, clock: Clock, committer: Committer) -> None:
        self._database, self._clock, self._committer = database, clock, committer

    def performers(self) -> dict[type[Effect], Performer]:
        return {
            Sweep: self.sweep,
            Release: self.release,
            TellJobs: self.tell_jobs,
            TellOwner: self.tell_owner,
            LaunchRun: self.launch_run,
            StopRun: self.stop_run,
        }

    async def sweep(self, errand: Errand, effect: Sweep) -> Change:
        return Change(facts=(of_run(RunId(errand.target), Swept(cut=effect.cut)),))

    async def release(self, errand: Errand, effect: Release) -> Change:
        event = CleanedUp(Cleanup.RELEASE, attempt=errand.attempt)
        return Change(facts=(of_job(JobId(errand.target), RunId(errand.family), event),))

    async def tell_jobs(self, errand: Errand, effect: TellJobs) -> Change:
        """Each job in a change of its own: one that cannot hear it must not keep the others from hearing it."""
        instance_id, tidings = InstanceId(errand.target), Tidings(effect.tidings)
        async with self._database.connection() as connection:
            if tidings is Tidings.PLACED:
                changes = [_placed(nodes) for nodes in await job_store.assembled(connection, instance_id)]
            else:
                jobs = await job_store.on_instance(connection, instance_id)
                instance = await instance_store.get(connection, instance_id)
                changes = [
                    Change(facts=(of_job(row["id"], row["run_id"], _tidings(row["attempt"], tidings, instance)),))
                    for row in jobs
                ]
        for change in changes:
            try:
                await self._committer.commit(change)
            except Conflict:
                # It moved on while we were telling: a machine that was kept for it has left again.
                continue
        return Change()

    async def tell_owner(self, errand: Errand, effect: TellOwner) -> Change:
        async with self._database.connection() as connection:
            run = await run_store.get(connection, RunId(errand.target))
            machine_gone = await job_store.any_gone(connection, run.id)
            if run.owner_id is None:
                return Change()
            owner = ManagedTaskId(run.owner_id)
            jobs = await managed_store.jobs_of(connection, [owner])
        news = news_of(run, machine_gone)
        if news is None or owner not in jobs:
            return Change()
        return Change(facts=(of_managed(owner, jobs[owner], news),))

    async def launch_run(self, errand: Errand, effect: LaunchRun) -> Change:
        """Together with the task's word that it still wants the run, so that a cancelled one never starts late."""
        task_id = ManagedTaskId(errand.target)
        async with self._database.connection() as connection:
            spec: dict[str, Any] = json.loads(await managed_store.spec_of(connection, task_id))
            aggregates = await managed_store.load(connection, [ManagedJobId(errand.family)])
        job = aggregates[ManagedJobId(errand.family)].job
        run_id = RunId(derived(task_id, effect.attempt))
        name = f"{job.name}-{str(task_id)[-8:]}-{effect.attempt}"
        policy = Policy.from_json(spec.get("policy", {}))
        run = replace(
            found(run_id, job.project_id, name, policy, self._clock.now()),
            owner_id=task_id,
            owner_attempt=effect.attempt,
        )
        return Change(
            facts=(of_managed(task_id, job.id, RunCreated(attempt=effect.attempt)),),
            runs=(RunBirth(run, Request.from_json(spec.get("resources", {}))),),
            strict=True,
        )

    async def stop_run(self, errand: Errand, effect: StopRun) -> Change:
        task_id, job_id = ManagedTaskId(errand.target), ManagedJobId(errand.family)
        run_id = RunId(derived(task_id, effect.attempt))
        try:
            await self._committer.commit(Change(facts=(of_run(run_id, StopAsked()),)))
        except NotFound:
            return Change(facts=(of_managed(task_id, job_id, RunCleanedUp(attempt=effect.attempt)),))
        return Change()


def _placed(nodes: Sequence[Record]) -> Change:
    """All nodes of a replica or none: whoever launched the last of their machines says it to all. Strict, since one of
    them may have lost its machine meanwhile, and then this is not so any more."""
    facts = [
        of_job(row["id"], row["run_id"], Placed(
            row["instance_id"], tuple(row["blocks"]), owned=row["owned"], shim=row["shim"],
            where=instance_name(row["backend"], row["instance_id"]), attempt=row["attempt"],
        ))
        for row in nodes
    ]  # fmt: skip
    return Change(facts=tuple(facts), strict=True)


def _tidings(attempt: int, tidings: Tidings, instance: Instance) -> Event:
    match tidings:
        case Tidings.DRAINING:
            return Draining(instance.id, instance.drain_at, attempt=attempt)
        case Tidings.INTERRUPTED:
            return Interrupted(instance.id, "its machine is leaving", attempt=attempt)
        case Tidings.NOTICED:
            # Both begin with the notice, so that it is the same however often and late it is told.
            leaves_at, notice_s = instance.destroy_at, (instance.destroy_at or 0.0) - instance.entered_at
            return Interrupted(instance.id, "its machine is leaving", leaves_at, notice_s, attempt=attempt)
        case Tidings.GONE:
            return InstanceGone(instance.id, "its machine is gone", attempt=attempt)
        case Tidings.PLACED:
            raise Broken("the nodes of a replica are told together")
