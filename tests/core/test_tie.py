"""What volumes mean for a placement: where a job goes, for whom it waits, and that two never get what is for one."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stoker.core.block import Blocks
from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import FleetId, JobId, ProjectId, RunId, VolumeId
from stoker.core.offer import FleetRoom, Offer
from stoker.core.placement import plan
from stoker.core.resources import Capacity, Request
from stoker.core.tie import Tie, tie
from stoker.core.volume_facts import Kind, S, Volume
from stoker.core.why import WhyCode
from tests.core.living import machine

HERE, THERE = machine(1), machine(2)
NAMES = {HERE: "local-1", THERE: "local-2"}
ONE = JobId(UUID(int=1))
BIG = Capacity(4, 8192, 1000)


def a_volume(n: int = 1, **fields: Any) -> Volume:
    usual: dict[str, Any] = {"kind": Kind.LOCAL, "state": S.ACTIVE}
    return Volume(VolumeId(UUID(int=n)), ProjectId(UUID(int=1)), f"v{n}", **(usual | fields))


def tied(*volumes: Volume | None) -> Tie:
    return tie(volumes, NAMES, {ONE: "train/0-0"})


@pytest.mark.parametrize(
    ("volumes", "sentence"),
    [
        ((None,), "a volume of it is not there any more"),
        ((a_volume(state=S.DELETED),), "volume v1 is not there any more"),
        ((a_volume(state=S.PROVISIONING),), "volume v1 is not there yet, it is PROVISIONING"),
        ((a_volume(state=S.FAILED, message="no room"),), "volume v1 has failed: no room"),
        ((a_volume(state=S.DELETING),), "volume v1 is being deleted"),
        (
            (a_volume(exclusive=True, held=(ONE,)),),
            "volume v1 is attached to train/0-0, and only one job may have it at a time",
        ),
        ((a_volume(instance_id=machine(9)),), "volume v1 is on an instance that is gone"),
        (
            (a_volume(1, instance_id=HERE), a_volume(2, instance_id=THERE)),
            "volume v1 is on local-1, volume v2 on local-2",
        ),
    ],
)
def test_why_it_cannot_go_anywhere(volumes: tuple[Volume | None, ...], sentence: str) -> None:
    assert tied(*volumes).barred == sentence


def test_it_goes_where_its_volume_is() -> None:
    found = tied(a_volume(1), a_volume(2, instance_id=THERE))
    assert (found.only, found.tied) == (THERE, "volume v2 is on local-2")
    assert [claim.name for claim in found.claims] == ["v1"], "which settles there too"


def test_what_many_may_have_claims_nothing() -> None:
    shared = a_volume(instance_id=HERE, held=(ONE,))
    assert tied(shared) == Tie(only=HERE, tied="volume v1 is on local-1")
    assert tied(a_volume(kind=Kind.NFS)) == Tie()


def test_one_that_is_nowhere_yet_stays_within_its_fleet() -> None:
    fleet, other = FleetId(UUID(int=5)), FleetId(UUID(int=6))
    assert tied(a_volume(fleet_id=fleet)).fleets == frozenset([fleet])
    assert tied(a_volume(1, fleet_id=fleet), a_volume(2, fleet_id=other)).fleets == frozenset()


# In a plan.


def a_gang(n: int, *volumes: Volume, cpu: float = 1) -> Gang:
    found = tied(*volumes)
    request = Request.from_json({"cpu": cpu})
    return Gang(
        RunId(UUID(int=n)), 0, float(n), ((JobId(UUID(int=100 + n)), request),), only=found.only, tied=found.tied,
        claims=found.claims, barred=found.barred,
    )  # fmt: skip


def a_room(id: Any, total: int = 4) -> InstanceRoom:
    return InstanceRoom(id, Blocks(BIG, total), name=NAMES[id])


def test_a_job_is_placed_where_its_volume_is_also_when_another_fits_better() -> None:
    rooms = [a_room(HERE, 1), a_room(THERE, 8)]
    made = plan([a_gang(1, a_volume(instance_id=THERE))], rooms, now=9.0)
    assert [one.instance_id for one in made.assignments] == [THERE]


def test_nothing_is_launched_for_a_job_whose_volume_is_elsewhere() -> None:
    fleet = FleetId(UUID(int=5))
    offers, fleets = [Offer("dummy", "small", "here", BIG)], [FleetRoom(fleet, None)]
    gang = a_gang(1, a_volume(instance_id=HERE), cpu=3)
    full = replace(a_room(HERE), blocks=Blocks(BIG, 4, {ONE: (0, 1)}))
    made = plan([gang], [full, a_room(THERE)], offers, fleets, now=9.0)
    assert (made.launches, made.assignments) == ((), ())
    (why,) = made.left
    assert why.sentence == (
        "needs 3 CPUs, local-1 has 2 of 4 CPUs free; it can go nowhere else, since volume v1 is on local-1"
    )
    assert plan([replace(gang, only=None)], [full], offers, fleets, now=9.0).launches, "it is the volume that keeps it"


def test_of_two_in_one_plan_one_gets_what_is_for_one() -> None:
    """They were both waiting when it was given back; the second waits for the first, and is told so."""
    alone = a_volume(exclusive=True)
    made = plan([a_gang(1, alone), a_gang(2, alone), a_gang(3)], [a_room(HERE)], now=9.0)
    assert {one.job_id.int for one in made.assignments} == {101, 103}
    (why,) = made.left
    assert (why.code, why.sentence) == (WhyCode.VOLUME, "volume v1 goes to a run before it")


def test_one_that_cannot_be_placed_keeps_its_volume_from_nobody() -> None:
    alone = a_volume(exclusive=True)
    made = plan([a_gang(1, alone, cpu=64), a_gang(2, alone)], [a_room(HERE)], now=9.0)
    assert {one.job_id.int for one in made.assignments} == {102}


def test_two_that_share_one_that_is_nowhere_yet_do_not_settle_it_twice() -> None:
    """Both at once on two instances: the second commit would be refused, and its run left alone for a while."""
    shared = a_volume()
    made = plan([a_gang(1, shared), a_gang(2, shared)], [a_room(HERE, 1), a_room(THERE, 1)], now=9.0)
    assert [one.job_id.int for one in made.assignments] == [101]
    settled = plan([a_gang(2, replace(shared, instance_id=HERE))], [a_room(HERE), a_room(THERE)], now=9.0)
    assert [one.instance_id for one in settled.assignments] == [HERE]


def test_what_is_barred_waits_and_says_why() -> None:
    made = plan([a_gang(1, a_volume(state=S.DELETING))], [a_room(HERE)], now=9.0)
    assert made.assignments == ()
    assert made.left[0].sentence == "volume v1 is being deleted"
