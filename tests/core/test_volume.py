"""The table of the volume: who has it, where it is, and that nobody's data is deleted under his hands."""

from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from stoker.core.ids import JobId, ProjectId, VolumeId
from stoker.core.job import JOB
from stoker.core.job_facts import (
    CleanedUp,
    Cleanup,
    Exited,
    InstanceGone,
    Interrupted,
    Parted,
    Placed,
    Reserved,
    VolumeFailed,
)
from stoker.core.job_facts import S as J
from stoker.core.limits import LAUNCH_S
from stoker.core.machine import Event, Refused, TimeUp
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.retry import Fate
from stoker.core.volume import EVENTS, VOLUME, deadline
from stoker.core.volume_facts import (
    COMING,
    THERE,
    Accepted,
    Attached,
    AwaitVolume,
    DeleteAsked,
    Detached,
    Kind,
    Lost,
    Provisioned,
    ProvisionFailed,
    Removed,
    RemoveVolume,
    S,
    Volume,
)
from tests.core.living import ALWAYS, a_job, machine, walk

DATA = VolumeId(UUID(int=77))
ONE, TWO = JobId(UUID(int=1)), JobId(UUID(int=2))
HERE, ELSEWHERE = machine(1), machine(2)


def a_volume(state: S = S.ACTIVE, **fields: Any) -> Volume:
    usual: dict[str, Any] = {"kind": Kind.LOCAL, "state": state}
    return Volume(DATA, ProjectId(UUID(int=1)), "data", **(usual | fields))


class Case(NamedTuple):
    volume: Volume
    event: Event
    to: S
    now: float = 0.0


CASES = [
    Case(a_volume(S.SUBMITTED), Accepted("disk-1"), S.PROVISIONING),
    *(Case(a_volume(state), Provisioned(), S.ACTIVE) for state in COMING),
    *(Case(a_volume(state), ProvisionFailed("no room"), S.FAILED) for state in COMING),
    *(Case(a_volume(state), TimeUp(), S.FAILED, LAUNCH_S) for state in COMING),
    *(Case(a_volume(state), DeleteAsked(), S.DELETING) for state in COMING),
    Case(a_volume(), Attached(ONE, HERE), S.ACTIVE),
    Case(a_volume(held=(ONE,), instance_id=HERE), Detached(ONE), S.ACTIVE),
    Case(a_volume(held=(ONE, TWO), instance_id=HERE), Detached(ONE, True, True), S.ACTIVE),
    Case(a_volume(instance_id=HERE), Lost(HERE), S.ACTIVE),
    Case(a_volume(instance_id=HERE, used=True), Lost(HERE), S.FAILED),
    *(Case(a_volume(state), DeleteAsked(), S.DELETING) for state in THERE),
    Case(a_volume(S.DELETING), Removed(), S.DELETED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.volume.state}-{type(case.event).__name__}-{case.to}")
def test_the_transition(case: Case) -> None:
    step = VOLUME.step(case.volume, case.event, case.now)
    assert step.row is not None
    assert step.record.state is case.to


def test_every_row_has_its_case() -> None:
    """A row that no situation reaches is a row nobody has thought through."""
    reached = {VOLUME.step(case.volume, case.event, case.now).row for case in CASES}
    assert [row.name for row in VOLUME.rows if row not in reached] == []
    assert VOLUME.shadowed() == []
    assert {type(case.event) for case in CASES} == set(EVENTS)


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """Taking what is not there or not free, deleting what somebody has, and the end of what nobody asked to end."""
    never = {(state.name, "Attached") for state in S}
    early = {(state.name, "Removed") for state in (*COMING, *THERE)}
    assert VOLUME.refused() == never | early | {("ACTIVE", "DeleteAsked"), ("FAILED", "DeleteAsked")}


def test_only_the_word_that_nothing_is_left_finishes_it() -> None:
    assert VOLUME.finished == {S.DELETED}
    assert [(row.source, row.event) for row in VOLUME.rows if row.target is S.DELETED] == [(S.DELETING, Removed)]


def test_what_takes_its_provider_long_is_waited_for_and_then_given_up() -> None:
    volume, effects, _ = walk(VOLUME, a_volume(S.SUBMITTED, kind=Kind.DUMMY), Accepted("disk-1"))
    assert (volume.handle, effects) == ("disk-1", [AwaitVolume()])
    assert deadline(volume) == LAUNCH_S
    assert VOLUME.step(volume, TimeUp(), LAUNCH_S - 1).row is None
    volume, _, _ = walk(VOLUME, volume, TimeUp(), now=LAUNCH_S)
    assert (volume.state, volume.message) == (S.FAILED, "it was not there within 900 s")
    late, effects, _ = walk(VOLUME, volume, Provisioned())
    assert (late.state, effects) == (S.FAILED, []), "what comes too late is found and removed when it is deleted"
    assert walk(VOLUME, late, DeleteAsked())[1] == [RemoveVolume()]


def test_it_is_where_its_first_job_landed_and_from_then_on_nowhere_else() -> None:
    volume, _, _ = walk(VOLUME, a_volume(), Attached(ONE, HERE), Detached(ONE, True, True))
    assert (volume.instance_id, volume.used, volume.held) == (HERE, True, ())
    with pytest.raises(Refused):
        VOLUME.step(volume, Attached(TWO, ELSEWHERE), 1.0)
    assert walk(VOLUME, volume, Attached(TWO, HERE))[0].held == (TWO,)


def test_what_is_for_one_is_had_by_one() -> None:
    """Of two placements at once one commits; the other is refused, and nothing of it happens."""
    volume, _, _ = walk(VOLUME, a_volume(exclusive=True), Attached(ONE, HERE))
    with pytest.raises(Refused):
        VOLUME.step(volume, Attached(TWO, HERE), 1.0)
    assert walk(VOLUME, a_volume(), Attached(ONE, HERE), Attached(TWO, HERE))[0].held == (ONE, TWO)


def test_a_job_has_it_once_and_gives_it_back_once() -> None:
    volume, _, _ = walk(VOLUME, a_volume(), Attached(ONE, HERE))
    with pytest.raises(Refused):
        VOLUME.step(volume, Attached(ONE, HERE), 1.0)
    volume, _, _ = walk(VOLUME, volume, Detached(ONE, True), Detached(ONE, True))
    assert (volume.held, volume.version) == ((), 2)


def test_an_nfs_volume_is_wherever_its_jobs_are() -> None:
    volume, _, _ = walk(VOLUME, a_volume(kind=Kind.NFS), Attached(ONE, HERE), Attached(TWO, ELSEWHERE))
    assert (volume.instance_id, volume.held) == (None, (ONE, TWO))


@pytest.mark.parametrize("state", THERE)
def test_it_is_not_deleted_while_a_job_has_it(state: S) -> None:
    with pytest.raises(Refused):
        VOLUME.step(a_volume(state, held=(ONE,)), DeleteAsked(), 1.0)


@pytest.mark.parametrize("state", [state for state in S if state is not S.ACTIVE])
def test_nobody_gets_one_that_is_not_active(state: S) -> None:
    with pytest.raises(Refused):
        VOLUME.step(a_volume(state), Attached(ONE, HERE), 1.0)


def test_the_machine_that_was_kept_for_its_first_job_never_came() -> None:
    """The launch was refused: the volume would wait for a place that does not exist."""
    volume, _, _ = walk(VOLUME, a_volume(), Attached(ONE, HERE), Detached(ONE))
    assert volume.instance_id is None
    named, _, _ = walk(VOLUME, a_volume(instance_id=HERE, named=True), Attached(ONE, HERE), Detached(ONE))
    assert named.instance_id == HERE, "a person has said where"


def test_a_host_that_was_told_of_it_may_have_made_it() -> None:
    volume, _, _ = walk(VOLUME, a_volume(), Attached(ONE, HERE), Detached(ONE, began=True))
    assert volume.instance_id == HERE


def test_what_is_lost_with_its_instance_is_said_and_not_made_anew_in_silence() -> None:
    """A program that finds its checkpoints gone would begin anew, and nobody would know."""
    volume, _, _ = walk(VOLUME, a_volume(instance_id=HERE, used=True), Lost(HERE, "its machine was preempted"))
    assert (volume.state, volume.message) == (S.FAILED, "its machine was preempted")
    empty, _, _ = walk(VOLUME, a_volume(instance_id=HERE), Lost(HERE))
    assert (empty.state, empty.instance_id) == (S.ACTIVE, None), "nothing was in it"


def test_it_is_not_lost_before_its_jobs_have_heard_of_it() -> None:
    held = a_volume(instance_id=HERE, used=True, held=(ONE,))
    assert VOLUME.step(held, Lost(HERE), 1.0).row is None
    assert VOLUME.step(a_volume(instance_id=HERE), Lost(ELSEWHERE), 1.0).row is None


# What jobs say to it.

WITH = Policy(volumes=(DATA,))


def told(job: Any, *events: Event) -> list[Event]:
    _, _, sends = walk(JOB, job, *events)
    assert all(send.id == DATA for send in sends if send.kind == "volume")
    return [send.event for send in sends if send.kind == "volume"]


def test_a_job_has_its_volumes_in_the_commit_that_gives_it_its_machine() -> None:
    job = a_job(policy=WITH)
    assert told(job, Placed(HERE, (0,))) == [Attached(job.id, HERE)]
    assert told(job, Reserved(HERE, (0,)), Placed(HERE, (0,))) == [Attached(job.id, HERE)], "once"
    assert told(a_job(), Placed(HERE, (0,))) == []


@pytest.mark.parametrize("event", [Interrupted(HERE), InstanceGone(HERE), Parted()], ids=lambda one: type(one).__name__)
def test_a_job_that_waits_again_has_none(event: Event) -> None:
    job = a_job(policy=WITH, instance_id=HERE, blocks=(0,))
    assert told(job, event) == [Detached(job.id)]


def test_a_job_whose_volume_is_lost_is_not_tried_again_for_ever() -> None:
    """Each try would end like this one, whatever its `retry` says."""
    job, _, _ = walk(JOB, a_job(policy=replace(WITH, retry=ALWAYS)), VolumeFailed("volume data has failed"))
    assert (job.state, job.reason, job.fate) == (J.TERMINATING, JobReason.VOLUME_ERROR, Fate.FAILED)


def test_a_job_gives_them_back_when_it_is_released_and_not_before() -> None:
    job = a_job(policy=WITH, state=J.RUNNING, running_at=0.0, instance_id=HERE, blocks=(0,))
    assert told(job, Exited(0), CleanedUp(Cleanup.REMOVE)) == []
    ended = replace(walk(JOB, job, Exited(0), CleanedUp(Cleanup.REMOVE))[0])
    _, _, sends = walk(JOB, ended, CleanedUp(Cleanup.DETACH))
    (released,) = sends
    assert told(ended, CleanedUp(Cleanup.DETACH), released.event) == [Detached(job.id, True, True)]
