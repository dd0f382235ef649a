"""What is asked of the engine: facts about records that exist, births of new ones, all or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import InstanceId, JobId, ManagedJobId, RunId, VolumeId
from stoker.core.instance_facts import Instance
from stoker.core.machine import Event
from stoker.core.managed_job import Aggregate
from stoker.core.managed_task import ManagedTaskId
from stoker.core.resources import Request
from stoker.core.run_facts import Run
from stoker.core.volume_facts import Volume
from stoker.store.idempotency import Claim
from stoker.store.run_spec import RunSpec


class Fact(NamedTuple):
    """An event and whom it is about. `family` is what has to be locked: a run, an instance, a volume, a managed job."""

    kind: str
    id: UUID
    family: UUID
    event: Event


def of_run(id: RunId, event: Event) -> Fact:
    return Fact("run", id, id, event)


def of_job(id: JobId, run_id: RunId, event: Event) -> Fact:
    return Fact("job", id, run_id, event)


def of_instance(id: InstanceId, event: Event) -> Fact:
    return Fact("instance", id, id, event)


def of_volume(id: VolumeId, event: Event) -> Fact:
    return Fact("volume", id, id, event)


def of_managed(id: UUID, managed_job_id: ManagedJobId, event: Event) -> Fact:
    """About a managed job or one of its tasks."""
    return Fact("managed", id, managed_job_id, event)


@dataclass(frozen=True, slots=True)
class RunBirth:
    run: Run
    request: Request
    spec: RunSpec | None = None
    """What people and performers want to know of it."""
    groups: tuple[tuple[int, Request], ...] = ()
    """Where nodes of a replica ask for different things: so many of each kind, in the order of their ranks."""


@dataclass(frozen=True, slots=True)
class ManagedBirth:
    aggregate: Aggregate
    specs: Mapping[ManagedTaskId, str]
    """What each task runs, as JSON."""


@dataclass(frozen=True, slots=True)
class VolumeBirth:
    volume: Volume
    spec: str
    """As a person asked for it, as JSON."""
    user: str


@dataclass(frozen=True, slots=True)
class Change:
    """Committed as one. Every part may be said twice: a repeated birth or fact changes nothing."""

    facts: tuple[Fact, ...] = ()
    runs: tuple[RunBirth, ...] = ()
    instances: tuple[Instance, ...] = ()
    managed: tuple[ManagedBirth, ...] = ()
    volumes: tuple[VolumeBirth, ...] = ()
    revised: tuple[RunSpec, ...] = ()
    """What runs are asked to be from now on, where a fact of this change says so."""
    done: tuple[tuple[UUID, int], ...] = ()
    """Errands that this change concludes, each with its fence."""
    claim: Claim | None = None
    """The key under which the caller asked for its births; somebody else's births under it stop all of this."""
    strict: bool = False
    """All of it or nothing: refused when one of its facts is stale."""

    def families(self) -> frozenset[UUID]:
        """What no two batches may work on at once."""
        if not (self.runs or self.instances or self.managed or self.volumes):
            return frozenset([fact.family for fact in self.facts])
        born = (*(birth.run.id for birth in self.runs), *(one.id for one in self.instances))
        born = (*born, *(birth.volume.id for birth in self.volumes))
        return frozenset(
            (*(fact.family for fact in self.facts), *born, *(one.aggregate.job.id for one in self.managed))
        )
