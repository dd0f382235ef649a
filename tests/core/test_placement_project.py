"""An instance that serves one project is there for that project's jobs, and for nobody else's."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.gang import OnNoCapacity
from stoker.core.ids import ProjectId
from stoker.core.placement import plan
from stoker.core.why import WhyCode
from tests.core.placing import NEVER, NOW, gang, only, room, where

MINE, THEIRS, OTHER = (ProjectId(UUID(int=n)) for n in (1, 2, 3))


def test_a_job_goes_where_its_project_is_served() -> None:
    """Two hosts without root, each of another project, and one as root that serves all."""
    rooms = [room(1, project_id=THEIRS), room(2, project_id=MINE, held=3), room(3, held=3)]
    made = plan([gang(n, project_id=MINE) for n in (1, 2, 3)], rooms, now=NOW)
    assert sorted(where(made).values()) == [2, 3]
    assert only(made).code is WhyCode.BUSY


def test_a_job_of_another_project_waits_and_is_told_why() -> None:
    """A laptop without root: its agent serves one project, and a second one is made."""
    why = only(plan([gang(1, project_id=THEIRS)], [room(1, project_id=MINE)], now=NOW))
    assert why.code is WhyCode.OTHER_PROJECT
    assert why.sentence == "no instance serves its project: 1 serves another one only, as agents without root do"
    assert why.reasons == ()
    assert not why.fail_now


def test_it_fails_at_once_where_it_says_not_to_wait() -> None:
    waiting = [gang(1, project_id=THEIRS, on_no_capacity=OnNoCapacity.FAIL)]
    assert only(plan(waiting, [room(1, project_id=MINE)], now=NOW)).fail_now


def test_a_job_of_no_project_is_a_stranger_everywhere() -> None:
    assert only(plan([gang(1)], [room(1, project_id=MINE)], now=NOW)).code is WhyCode.OTHER_PROJECT


def test_what_keeps_it_from_those_it_may_use_is_told_first() -> None:
    """Its own host is full; that others have room on theirs is nothing to it."""
    why = only(plan([gang(1, project_id=MINE)], [room(1, project_id=THEIRS), room(2, held=4)], now=NOW))
    assert why.code is WhyCode.BUSY
    assert [one.instance_id.int for one in why.reasons] == [2]


def test_equal_jobs_of_two_projects_are_two_shapes() -> None:
    """That the first did not fit says nothing of the second."""
    waiting = [gang(1, project_id=OTHER), gang(2, project_id=MINE)]
    made = plan(waiting, [room(1, project_id=MINE)], now=NOW)
    assert where(made) == {200: 1}
    assert only(made).run_id.int == 1


def test_nothing_is_kept_for_whom_it_would_never_serve() -> None:
    """A large job of another project has waited for hours: a small one of ours still gets its place."""
    waiting = [gang(1, {"cpu": 4}, project_id=THEIRS), gang(2, project_id=MINE)]
    made = plan(waiting, [room(1, project_id=MINE, held=1)], now=10_000.0)
    assert where(made) == {200: 1}


def test_several_nodes_stay_among_the_instances_of_their_project() -> None:
    rooms = [room(1, project_id=MINE), room(2, project_id=THEIRS), room(3, project_id=MINE)]
    made = plan([gang(1, {}, {}, whole=True, project_id=MINE)], rooms, now=NOW)
    assert sorted(where(made).values()) == [1, 3]


PROJECTS = st.sampled_from([None, MINE, THEIRS, OTHER])


@settings(deadline=None)
@given(
    st.lists(st.tuples(PROJECTS, st.integers(1, 4), st.integers(1, 3)), max_size=12),
    st.lists(st.tuples(PROJECTS, st.integers(0, 4)), max_size=6),
)
def test_nobody_is_ever_placed_where_another_is_served(
    asked: list[tuple[ProjectId | None, int, int]], there: list[tuple[ProjectId | None, int]]
) -> None:
    """And whoever is alone in the queue and has room on an instance of theirs is placed."""
    gangs = [
        gang(n, *[{"cpu": cpu}] * nodes, project_id=project) for n, (project, cpu, nodes) in enumerate(asked, start=1)
    ]
    rooms = [room(n, held=held, project_id=project) for n, (project, held) in enumerate(there, start=1)]
    serves = {one.id: one.project_id for one in rooms}
    owner = {job: one.project_id for one in gangs for job, _ in one.jobs}
    made = plan(gangs, rooms, now=NOW, reserve_after_s=NEVER)
    for one in made.assignments:
        assert serves[one.instance_id] in (None, owner[one.job_id])
    for each in gangs:
        alone = plan([each], rooms, now=NOW, reserve_after_s=NEVER)
        open_to = [room for room in rooms if room.project_id in (None, each.project_id)]
        assert bool(alone.assignments) == bool(plan([each], open_to, now=NOW, reserve_after_s=NEVER).assignments)
        if not open_to and rooms:
            assert only(alone).code is WhyCode.OTHER_PROJECT
