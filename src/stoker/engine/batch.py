"""One transaction for many changes: lock, load, step, save, journal, outbox.

What is remembered is not loaded: then all of that is one statement, which locks, compares and saves.

Locks are taken in one order: managed jobs, runs, instances, volumes, each by id. Runs and managed jobs that somebody
else holds are skipped and their changes come again later; instances and volumes are waited for, which is
safe because whoever holds one has all the runs it needs already. Jobs are covered by their run's lock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stoker.core import limits
from stoker.core.commitment import Moved
from stoker.core.family import Family
from stoker.core.ids import InstanceId, JobId, ManagedJobId, RunId, VolumeId
from stoker.core.instance_facts import Instance
from stoker.core.job_facts import Job
from stoker.core.machine import TimeUp
from stoker.core.managed_task import ManagedTask
from stoker.core.run_facts import Amended, ReplicasWanted, TriggerAsked
from stoker.core.run_facts import S as R
from stoker.engine.change import Change, Fact
from stoker.engine.draft import Answer, Draft, Loaded, draft, giving, named
from stoker.engine.effect import encode
from stoker.engine.hint import hints
from stoker.store import idempotency, journal, outbox, run_spec
from stoker.store import instance as instance_store
from stoker.store import job as job_store
from stoker.store import managed_job as managed_store
from stoker.store import run as run_store
from stoker.store import volume as volume_store
from stoker.store.bundle import Bundle
from stoker.store.database import Connection
from stoker.store.hold import Held, hold, still
from stoker.store.outbox import Errand, NewWish


@dataclass(slots=True)
class Batch:
    answers: dict[int, Answer]
    """By position in the list of changes; a change without one has to come again."""
    moved: list[Moved] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)
    hints: frozenset[str] = frozenset()
    families: dict[RunId, Family] = field(default_factory=dict)
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    """These and the families are what the changes were about, as they are now."""
    generation: int = -1
    """Of the server that committed it."""


class NotAtOnce(Exception):
    """This batch needs more than one statement, and so a transaction around them."""


async def commit_batch(
    tx: Connection,
    changes: Sequence[Change],
    now: float,
    owner: int,
    new_id: Callable[[], UUID],
    remembered: Loaded | None = None,
) -> Batch:
    """With what is `remembered` nothing is loaded, and all of it is one statement.

    That one fails when what is remembered is not so, or when a birth happened already: then it needs a look.
    """
    loaded, busy = (remembered, set[UUID]()) if remembered is not None else await _load(tx, changes)
    ready = [place for place, change in enumerate(changes) if busy.isdisjoint(change.families())]
    result, answers = draft(loaded, [changes[place] for place in ready], now)
    bundle = Bundle()
    if loaded.remembered:
        still(bundle, loaded.runs.values(), loaded.instances.values())
    await _save(tx, bundle, loaded, result)
    users = {spec.run_id: spec.user for spec in result.run_specs}
    users |= {birth.volume.id: birth.user for birth in result.volume_births}
    if entries := [_entry(moved, users, result) for moved in result.moved if _is_news(moved)]:
        journal.append(bundle, entries, now)
    wishes = [_new_wish(new_id(), wish.kind, wish.record, *encode(wish.effect)) for wish in result.standing_wishes()]
    if wishes:
        outbox.add(bundle, owner, wishes, now)
    settled = {place: answer for place, answer in zip(ready, answers, strict=True) if not answer.later}
    done = [id for place, answer in settled.items() if not answer.error for id in changes[place].done]
    if done:
        outbox.remove(bundle, done)
    names = hints(result.moved)
    errands = outbox.added(await bundle.write(tx), wishes)
    return Batch(settled, result.moved, errands, names, result.families, result.instances)


async def _load(tx: Connection, changes: Sequence[Change]) -> tuple[Loaded, set[UUID]]:
    facts = [fact for change in changes for fact in change.facts]
    run_ids = {RunId(fact.family) for fact in facts if fact.kind in ("run", "job")}
    managed_ids = {ManagedJobId(fact.family) for fact in facts if fact.kind == "managed"}
    instance_ids = named(facts)
    births: set[UUID] = {birth.run.id for change in changes for birth in change.runs}
    births |= {one.id for change in changes for one in change.instances}
    loaded, busy = Loaded(), set[UUID]()
    if managed_ids:
        loaded.managed = await managed_store.lock(tx, managed_ids)
        unheld = managed_ids - loaded.managed.keys()
        busy |= (await managed_store.load(tx, unheld)).keys() if unheld else set()
    if run_ids or instance_ids or births:
        held = await hold(tx, run_ids, instance_ids, births)
        busy |= (run_ids - held.runs.keys()) & held.present
        loaded.runs, loaded.present = held.runs, held.present
        loaded.jobs, loaded.partial = await _all_jobs(tx, held, facts)
        loaded.instances = await _all_instances(tx, held, loaded.jobs, instance_ids)
    if volumes := _volumes(changes, loaded):
        loaded.volumes = await volume_store.lock(tx, volumes)
    if born := [one.volume.id for change in changes for one in change.volumes]:
        loaded.present |= (await volume_store.lock(tx, born)).keys()
    if managed := [one.aggregate.job.id for change in changes for one in change.managed]:
        loaded.present |= (await managed_store.load(tx, managed)).keys()
    return loaded, busy


def _volumes(changes: Sequence[Change], loaded: Loaded) -> set[VolumeId]:
    """Those that facts are about, and those of the runs: their jobs may take or give any of them."""
    about = {VolumeId(fact.id) for change in changes for fact in change.facts if fact.kind == "volume"}
    return about.union(*(run.policy.volumes for run in loaded.runs.values()))


async def _all_jobs(tx: Connection, held: Held, facts: Sequence[Fact]) -> tuple[list[Job], frozenset[RunId]]:
    """Those of runs that are loaded whole are here; of others, what the facts are about."""
    jobs = {job.id: job for job in held.jobs}
    policies = {id: run.policy for id, run in held.runs.items()}
    addressed = {RunId(fact.id) for fact in facts if fact.kind == "run" and fact.id in held.runs}
    large = {id for id in addressed if not run_store.is_whole(held.runs[id])}
    # A run that begins anew does so with all its jobs: a page might cut a replica in two. And all go by one policy.
    begins = {RunId(fact.id) for fact in facts if isinstance(fact.event, TimeUp | ReplicasWanted | TriggerAsked)}
    amended = {RunId(fact.id) for fact in facts if isinstance(fact.event, Amended)}
    new = {id for id in large & begins if held.runs[id].state is R.PENDING} | (large & amended)
    if anew := {id: policies[id] for id in new}:
        jobs |= {job.id: job for job in await job_store.load_whole(tx, anew)}
    # News of a submission that was replaced and has finished long ago still has to find its row.
    named = {JobId(fact.id) for fact in facts if fact.kind == "job" and fact.family in held.runs} - jobs.keys()
    if named:
        jobs |= {job.id: job for job in await job_store.load_replicas(tx, named, policies)}
    partial = set()
    for id in large - anew.keys():
        page = await job_store.load_page(tx, id, policies[id], limits.SWEPT)
        jobs |= {job.id: job for job in page}
        if len(page) == limits.SWEPT:
            partial.add(id)
    return list(jobs.values()), frozenset(partial)


async def _all_instances(
    tx: Connection, held: Held, jobs: Iterable[Job], wanted: Iterable[InstanceId]
) -> dict[InstanceId, Instance]:
    if held.instances is not None:
        return held.instances
    return await instance_store.lock(tx, giving(jobs).union(wanted))


async def _save(tx: Connection, bundle: Bundle, loaded: Loaded, result: Draft) -> None:
    runs = [family.run for family in result.families.values()]
    if fresh := [run for run in runs if run.id not in loaded.runs]:
        run_store.insert(bundle, fresh, result.resources)
    if result.run_specs:
        run_spec.insert(bundle, result.run_specs)
    if result.revised_specs:
        run_spec.revise(bundle, list(result.revised_specs.values()))
    if result.claims:
        idempotency.insert(bundle, result.claims, result.now)
    if changed := _changed(loaded.runs, runs):
        revised = {run.id for _, run in changed if run.policy is not loaded.runs[run.id].policy}
        run_store.save(bundle, changed, revised)
    await _save_jobs(tx, bundle, loaded, result)
    instances = list(result.instances.values())
    if arrived := [one for one in instances if one.id not in loaded.instances]:
        instance_store.insert(bundle, arrived)
    if changed_instances := _changed(loaded.instances, instances):
        instance_store.save(bundle, changed_instances)
    if result.volume_births:
        volume_store.insert(bundle, [(result.volumes[one.volume.id], one) for one in result.volume_births], result.now)
    if changed_volumes := _changed(loaded.volumes, result.volumes.values()):
        volume_store.save(bundle, changed_volumes)
    await _save_managed(tx, loaded, result)


async def _save_jobs(tx: Connection, bundle: Bundle, loaded: Loaded, result: Draft) -> None:
    old = {job.id: job for job in loaded.jobs}
    jobs = [job for family in result.families.values() for job in family.jobs.values()]
    changed, new = _changed(old, jobs), [job for job in jobs if job.id not in old]
    if any(old[job.id].latest and not job.latest for _, job in changed):
        # Before the new ones come: at any moment one submission of a job is the latest.
        if loaded.remembered:
            raise NotAtOnce
        first = Bundle()
        job_store.save(first, changed)
        await first.write(tx)
    elif changed:
        job_store.save(bundle, changed)
    if new:
        job_store.insert(bundle, new)


async def _save_managed(tx: Connection, loaded: Loaded, result: Draft) -> None:
    if fresh := [one for id, one in result.managed.items() if id not in loaded.managed]:
        await managed_store.insert(tx, fresh, result.specs)
    if changed := [(was, result.managed[id]) for id, was in loaded.managed.items() if was is not result.managed[id]]:
        await managed_store.save(tx, changed)


def _changed(was: Any, records: Iterable[Any]) -> list[tuple[int, Any]]:
    return [(was[one.id].version, one) for one in records if one.id in was and was[one.id] is not one]


def _is_news(moved: Moved) -> bool:
    """The journal keeps changes of state, and what a row had to say; not every bump of a counter."""
    if moved.before is None:
        return True
    return moved.before.state is not moved.after.state or bool(moved.note)


def _entry(moved: Moved, users: Mapping[UUID, str], result: Draft) -> journal.Entry:
    kind, before, after, event, _, note = moved
    name, by = (type(event).__name__, event.by) if event else ("Created", users.get(after.id, ""))
    source = before.state if before else None
    return journal.Entry(kind, after.id, _family(after), name, source, after.state, note, by, _scope(after, result))


def _scope(record: Any, result: Draft) -> UUID:
    """Who may see what happened to it."""
    match record:
        case Job():
            return result.families[record.run_id].run.project_id
        case Instance():
            return record.fleet_id or journal.EVERYBODY
        case ManagedTask():
            return result.managed[record.managed_job_id].job.project_id
    project_id: UUID = record.project_id
    return project_id


def _family(record: Any) -> UUID:
    match record:
        case Job():
            return record.run_id
        case ManagedTask():
            return record.managed_job_id
    id: UUID = record.id
    return id


def _new_wish(id: UUID, kind: str, record: Any, effect: str, payload: str) -> NewWish:
    return NewWish(id, kind, record.id, _family(record), record.attempt, record.phase, effect, payload)
