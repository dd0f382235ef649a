"""A batch of changes, stepped in memory: pure, so that a change that fails can be left out and the rest stepped anew.

`Loaded` is what the transaction locked, or what is remembered. `draft` steps change after change on top of each other;
when one is refused, it is set aside with its error and the others start again from what was loaded.

Which instances are locked is decided by the states in which jobs were found. A change earlier in the batch may have
brought a job into a state in which it gives blocks back, on an instance that is not locked: then the later change waits
for the next batch, which finds that state.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stoker.core import family as families
from stoker.core import managed_job
from stoker.core.commitment import Moved, Outcome, Wish
from stoker.core.errors import Broken, Conflict, NotFound, StokerError
from stoker.core.family import Family
from stoker.core.ids import InstanceId, JobId, ManagedJobId, RunId, VolumeId
from stoker.core.instance import INSTANCE
from stoker.core.instance_facts import Instance, Launch
from stoker.core.job_facts import Job
from stoker.core.job_facts import S as J
from stoker.core.machine import Refused
from stoker.core.managed_job import Aggregate
from stoker.core.managed_task import ManagedTaskId
from stoker.core.need import Need
from stoker.core.run_facts import Run
from stoker.core.volume import VOLUME
from stoker.core.volume_facts import MakeVolume, Volume
from stoker.engine.change import Change, Fact, VolumeBirth
from stoker.store.idempotency import Claim
from stoker.store.run_spec import RunSpec


@dataclass(slots=True)
class Loaded:
    runs: Mapping[RunId, Run] = field(default_factory=dict)
    jobs: Sequence[Job] = ()
    partial: frozenset[RunId] = frozenset()
    instances: Mapping[InstanceId, Instance] = field(default_factory=dict)
    managed: Mapping[ManagedJobId, Aggregate] = field(default_factory=dict)
    volumes: Mapping[VolumeId, Volume] = field(default_factory=dict)
    present: frozenset[UUID] = frozenset()
    """Ids of births that happened already: said again after an answer was lost."""
    remembered: bool = False
    """Not loaded, and nothing of it is locked."""


@dataclass(slots=True)
class Draft:
    """What the batch comes to: the last version of every record, and everything that happened on the way."""

    now: float
    families: dict[RunId, Family]
    instances: dict[InstanceId, Instance]
    managed: dict[ManagedJobId, Aggregate]
    volumes: dict[VolumeId, Volume] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    resources: dict[RunId, str] = field(default_factory=dict)
    specs: dict[ManagedTaskId, str] = field(default_factory=dict)
    run_specs: list[RunSpec] = field(default_factory=list)
    revised_specs: dict[UUID, RunSpec] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    volume_births: list[VolumeBirth] = field(default_factory=list)

    def final(self, kind: str, record: Any) -> Any:
        """The record as the batch leaves it."""
        match kind:
            case "job":
                return self.families[record.run_id].jobs[record.id]
            case "run":
                return self.families[record.id].run
            case "instance":
                return self.instances[record.id]
            case "volume":
                return self.volumes[record.id]
            case "managed_task":
                return self.managed[record.managed_job_id].tasks[record.index]
        raise Broken(f"a {kind} has no wishes")

    def standing_wishes(self) -> Iterable[Wish]:
        """Wishes that the batch itself did not outlive."""
        return (wish for wish in self.wishes if self.final(wish.kind, wish.record).phase == wish.record.phase)


@dataclass(slots=True)
class Answer:
    """What became of one change: which of its facts changed something, or the error that stopped all of it."""

    applied: tuple[bool, ...] = ()
    error: StokerError | Refused | None = None
    later: bool = False
    """Nothing became of it yet: it has to come again, in another batch."""
    notes: tuple[str, ...] = ()
    """What each fact made people be told."""


class _NotLocked(Exception):
    """An instance that nobody could know would be needed."""


def draft(loaded: Loaded, changes: Sequence[Change], now: float) -> tuple[Draft, list[Answer]]:
    answers = [Answer() for _ in changes]
    while True:
        attempt = _begin(loaded, now)
        seen, waiting = set[UUID](), set[UUID]()
        for answer, change in zip(answers, changes, strict=True):
            if answer.error is not None:
                continue
            families = change.families()
            # What is said later of a family must not overtake what was said before.
            answer.later = answer.later or not waiting.isdisjoint(families)
            if answer.later:
                waiting |= families
                continue
            try:
                answer.applied, answer.notes = _apply(attempt, loaded, change)
            except _NotLocked as missing:
                if seen.isdisjoint(families):
                    answer.error = Broken(str(missing))
                answer.later = answer.error is None
                break
            except (Refused, StokerError) as error:
                answer.error = error
                break
            seen |= families
        else:
            return attempt, answers


def giving(jobs: Iterable[Job]) -> set[InstanceId]:
    """The instances of jobs that may give blocks back (core/job.py says when)."""
    return {job.instance_id for job in jobs if job.instance_id and job.state in (J.SUBMITTED, J.TERMINATING)}


def named(facts: Iterable[Fact]) -> set[InstanceId]:
    """The instances that facts are about, or speak of."""
    about = {InstanceId(fact.id) for fact in facts if fact.kind == "instance"}
    return about | {fact.event.instance_id for fact in facts if hasattr(fact.event, "instance_id")}


def _begin(loaded: Loaded, now: float) -> Draft:
    grouped: dict[RunId, dict[JobId, Job]] = {id: {} for id in loaded.runs}
    for job in loaded.jobs:
        grouped[job.run_id][job.id] = job
    return Draft(
        now,
        {id: Family(run, grouped[id], id in loaded.partial) for id, run in loaded.runs.items()},
        dict(loaded.instances),
        dict(loaded.managed),
        dict(loaded.volumes),
    )


def _apply(draft: Draft, loaded: Loaded, change: Change) -> tuple[tuple[bool, ...], tuple[str, ...]]:
    born = bool(change.revised)
    for birth in change.runs:
        if birth.run.id not in loaded.present and birth.run.id not in draft.families:
            born = True
            newborn, outcome = families.bear(birth.run, draft.now)
            draft.families[birth.run.id] = newborn
            draft.resources[birth.run.id] = json.dumps(Need(birth.request, birth.groups).to_json())
            if birth.spec is not None:
                draft.run_specs.append(birth.spec)
            _keep(draft, outcome)
    if born and change.claim is not None:
        # Said again after an answer was lost, the births are there already, and so is the claim.
        draft.claims.append(change.claim)
    for instance in change.instances:
        if instance.id not in loaded.present and instance.id not in draft.instances:
            draft.instances[instance.id] = instance
            draft.moved.append(Moved("instance", None, instance, None, None))
            draft.wishes.append(Wish("instance", instance, Launch()))
    for wanted in change.managed:
        aggregate = wanted.aggregate
        if aggregate.job.id not in loaded.present and aggregate.job.id not in draft.managed:
            draft.specs |= wanted.specs
            draft.managed[aggregate.job.id] = aggregate
            draft.moved.append(Moved("managed_job", None, aggregate.job, None, None))
            draft.moved += [Moved("managed_task", None, task, None, None) for task in aggregate.tasks]
    for found in change.volumes:
        if found.volume.id not in loaded.present and found.volume.id not in draft.volumes:
            draft.volumes[found.volume.id] = found.volume
            draft.volume_births.append(found)
            draft.moved.append(Moved("volume", None, found.volume, None, None))
            draft.wishes.append(Wish("volume", found.volume, MakeVolume()))
    moved = [_apply_fact(draft, fact) for fact in change.facts]
    applied = tuple(map(bool, moved))
    if change.strict and not all(applied):
        raise Conflict("What this change depends on is no longer so.", code="stale")
    draft.revised_specs |= {spec.run_id: spec for spec in change.revised}
    return applied, tuple(next((one.note for one in each if one.note), "") for each in moved)


def _apply_fact(draft: Draft, fact: Fact) -> list[Moved]:
    match fact.kind:
        case "run" | "job":
            return _apply_to_family(draft, fact)
        case "instance":
            return _apply_to_instance(draft, InstanceId(fact.id), fact)
        case "volume":
            return _apply_to_volume(draft, VolumeId(fact.id), fact)
        case "managed":
            return _apply_to_managed(draft, fact)
    raise Broken(f"nothing is known of a {fact.kind}")


def _apply_to_family(draft: Draft, fact: Fact) -> list[Moved]:
    family = draft.families.get(RunId(fact.family))
    if family is None or (fact.kind == "job" and JobId(fact.id) not in family.jobs):
        raise NotFound(f"There is no {fact.kind} {fact.id}.")
    target = JobId(fact.id) if fact.kind == "job" else None
    outcome = families.step(family, target, fact.event, draft.now)
    _keep(draft, outcome)
    return outcome.moved


def _keep(draft: Draft, outcome: Outcome) -> None:
    draft.moved += outcome.moved
    draft.wishes += outcome.wishes
    for send in outcome.sends:
        if send.id not in (draft.volumes if send.kind == "volume" else draft.instances):
            raise _NotLocked(f"{send.kind} {send.id} should have been locked for {type(send.event).__name__}")
        _apply_fact(draft, Fact(send.kind, send.id, send.id, send.event))


def _apply_to_instance(draft: Draft, id: InstanceId, fact: Fact) -> list[Moved]:
    instance = draft.instances.get(id)
    if instance is None:
        raise NotFound(f"There is no instance {id}.")
    outcome = Outcome()
    draft.instances[id] = outcome.follow("instance", INSTANCE, instance, fact.event, draft.now).record
    _keep(draft, outcome)
    return outcome.moved


def _apply_to_volume(draft: Draft, id: VolumeId, fact: Fact) -> list[Moved]:
    volume = draft.volumes.get(id)
    if volume is None:
        raise NotFound(f"There is no volume {id}.")
    outcome = Outcome()
    draft.volumes[id] = outcome.follow("volume", VOLUME, volume, fact.event, draft.now).record
    _keep(draft, outcome)
    return outcome.moved


def _apply_to_managed(draft: Draft, fact: Fact) -> list[Moved]:
    aggregate = draft.managed.get(ManagedJobId(fact.family))
    if aggregate is None:
        raise NotFound(f"There is no managed job {fact.family}.")
    stepped = managed_job.step(aggregate, fact.id, fact.event, draft.now)
    draft.managed[aggregate.job.id] = stepped.aggregate
    _keep(draft, stepped.outcome)
    return stepped.outcome.moved
