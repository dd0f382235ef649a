"""What this replica committed last: a batch about records that are remembered needs no question to the database.

A memory may be wrong, for another replica may have changed the record since. So whoever uses it hands the versions
to the database, which refuses the whole batch when one of them differs (`still`). Nothing here has to be right for
what is committed to be right; it only has to be right often.

What is lent to a batch is not there for another one, and comes back with what the batch made of it. A batch that
fails brings nothing back, so what is in doubt is forgotten. So is everything when another server stands behind the
database: a standby may have missed the last commits, and its versions may name other states.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stoker.core import run_facts
from stoker.core.family import Family
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.instance_facts import S as I
from stoker.core.job_facts import FINISHED, Job
from stoker.core.run_facts import Run
from stoker.engine.change import Change, Fact
from stoker.engine.draft import Loaded, giving, named
from stoker.store.run import is_whole

MOST_JOBS: Final = 16384
"""Together with their runs; each takes a kilobyte or two."""
MOST_JOBS_OF_ONE: Final = 256
"""A larger run is not remembered: it would drive out the others."""
MOST_INSTANCES: Final = 1024


class _Remembered(NamedTuple):
    run: Run
    jobs: Mapping[JobId, Job]
    """Every latest and every unfinished submission."""


class Memory:
    def __init__(self, most_jobs: int = MOST_JOBS, most_instances: int = MOST_INSTANCES) -> None:
        self._most_jobs, self._most_instances = most_jobs, most_instances
        self._families: dict[RunId, _Remembered] = {}
        self._size = 0
        self._generation = 0
        self._instances: dict[InstanceId, Instance] = {}

    def lend(self, changes: Sequence[Change], generation: int) -> Loaded | None:
        """All that the changes are about, taken out of here; None when anything is missing, and then nothing is."""
        if generation != self._generation:
            self._begin_anew(generation)
        if any(change.managed or change.volumes for change in changes):
            return None
        facts = [fact for change in changes for fact in change.facts]
        families = self._families_of(facts)
        if families is None:
            return None
        jobs = [job for family in families.values() for job in family.jobs.values()]
        instances = self._instances_of(facts, jobs)
        if instances is None:
            return None
        for id in families:
            self._forget(id)
        for one in instances:
            del self._instances[one]
        return Loaded({id: family.run for id, family in families.items()}, jobs, instances=instances, remembered=True)

    def keep(self, families: Mapping[RunId, Family], instances: Mapping[InstanceId, Instance], generation: int) -> None:
        """As they were committed a moment ago. What is older than what is here already is not kept."""
        if generation != self._generation:
            return
        for id, family in families.items():
            self._keep_family(id, family)
        for instance_id, one in instances.items():
            known = self._instances.get(instance_id)
            if one.state is not I.TERMINATED and (known is None or known.version < one.version):
                self._instances[instance_id] = one
        while self._size > self._most_jobs:
            self._forget(next(iter(self._families)))
        while len(self._instances) > self._most_instances:
            del self._instances[next(iter(self._instances))]

    def _begin_anew(self, generation: int) -> None:
        """Another server stands behind the database, which may not have seen the last of these versions."""
        self._families.clear()
        self._instances.clear()
        self._size, self._generation = 0, generation

    def _families_of(self, facts: Iterable[Fact]) -> dict[RunId, _Remembered] | None:
        found: dict[RunId, _Remembered] = {}
        for fact in facts:
            if fact.kind == "instance":
                continue
            if fact.kind == "volume":
                return None
            id = RunId(fact.family)
            family = self._families.get(id)
            # News of a submission that was replaced has to find its row.
            if family is None or (fact.kind == "job" and fact.id not in family.jobs):
                return None
            found[id] = family
        return found

    def _instances_of(self, facts: Iterable[Fact], jobs: Iterable[Job]) -> dict[InstanceId, Instance] | None:
        found: dict[InstanceId, Instance] = {}
        for id in giving(jobs) | named(facts):
            one = self._instances.get(id)
            if one is None:
                return None
            found[id] = one
        return found

    def _keep_family(self, id: RunId, family: Family) -> None:
        known = self._families.get(id)
        if known is not None and known.run.version >= family.run.version:
            return
        if known is not None:
            self._forget(id)
        if family.run.state in run_facts.FINISHED or not is_whole(family.run) or family.run.policy.volumes:
            # The volumes of its jobs are locked with it, and only what is loaded is.
            return
        jobs = {job.id: job for job in family.jobs.values() if job.latest or job.state not in FINISHED}
        if len(jobs) <= MOST_JOBS_OF_ONE:
            self._families[id] = _Remembered(family.run, jobs)
            self._size += 1 + len(jobs)

    def _forget(self, id: RunId) -> None:
        self._size -= 1 + len(self._families.pop(id).jobs)
