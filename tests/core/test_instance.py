"""The table of the instance: blocks taken and given back, silence, and that no machine is ever forgotten."""

from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from stoker.core.block import Blocks
from stoker.core.ids import JobId
from stoker.core.instance import EVENTS, INSTANCE, deadline
from stoker.core.instance_facts import (
    COMING,
    LIVE,
    UP,
    CordonAsked,
    DeleteAsked,
    Destroy,
    Destroyed,
    Divided,
    DrainAsked,
    Examined,
    Gone,
    Heard,
    Instance,
    Launched,
    PreemptionNoticed,
    Refused,
    S,
    ShimAnswered,
    Silent,
    TellJobs,
    Tidings,
    Unwanted,
)
from stoker.core.job_facts import Freed, Taken
from stoker.core.limits import LAUNCH_S, LEAVING_GRACE_S, PERFORMANCE_S, PROVIDER_SILENCE_S
from stoker.core.machine import Event, TimeUp
from stoker.core.machine import Refused as NotPossible
from stoker.core.resources import Capacity
from tests.core.living import an_instance, walk

ONE, TWO = JobId(UUID(int=1)), JobId(UUID(int=2))
INTERRUPTED, GONE, PLACED = (TellJobs(one) for one in (Tidings.INTERRUPTED, Tidings.GONE, Tidings.PLACED))
HELD: dict[str, Any] = {"held": {1: (0,)}}
BOTH: dict[str, Any] = {"held": {1: (0,), 2: (1, 2)}}


def at(state: S, **fields: Any) -> Instance:
    return an_instance(state=state, **fields)


class Case(NamedTuple):
    instance: Instance
    event: Event
    to: S
    now: float = 0.0


CASES = [
    Case(at(S.PENDING), Launched("i-1"), S.PROVISIONING),
    Case(at(S.PENDING), Refused("no capacity"), S.TERMINATING),
    Case(at(S.PENDING), TimeUp(), S.TERMINATING, LAUNCH_S),
    Case(at(S.PROVISIONING, **HELD), ShimAnswered(), S.BUSY),
    Case(at(S.PROVISIONING), ShimAnswered(), S.IDLE),
    Case(at(S.PROVISIONING), TimeUp(), S.TERMINATING, 600.0),
    *(Case(at(state), Taken(ONE, (0,)), state) for state in COMING),
    *(Case(at(state, **HELD), Freed(ONE), state) for state in COMING),
    *(Case(at(state), Unwanted(), S.TERMINATING) for state in (*COMING, S.IDLE)),
    *(Case(at(state), DeleteAsked(), S.TERMINATING) for state in (*COMING, S.IDLE)),
    *(Case(at(state), DrainAsked(50.0), S.TERMINATING) for state in (*COMING, S.IDLE)),
    Case(at(S.IDLE), Taken(ONE, (0,)), S.BUSY),
    Case(at(S.IDLE), Divided(2), S.IDLE),
    Case(at(S.BUSY, **HELD), Taken(TWO, (1,)), S.BUSY),
    Case(at(S.BUSY, **HELD, drain_at=50.0), Freed(ONE), S.TERMINATING),
    Case(at(S.BUSY, **HELD), Freed(ONE), S.IDLE),
    Case(at(S.BUSY, **BOTH), Freed(ONE), S.BUSY),
    Case(at(S.BUSY, **HELD), DrainAsked(50.0), S.BUSY),
    Case(at(S.BUSY, **HELD), DeleteAsked(force=True), S.TERMINATING),
    Case(at(S.BUSY, **HELD, drain_at=50.0), TimeUp(), S.TERMINATING, 50.0),
    *(Case(at(state, unreachable_since=0.0), TimeUp(), S.TERMINATING, 1200.0) for state in UP),
    *(Case(at(state), CordonAsked(), state) for state in LIVE),
    *(Case(at(state), Silent(), state) for state in UP),
    *(Case(at(state, unreachable_since=0.0), Heard(), state) for state in UP),
    *(Case(at(state), Examined("its disk is nearly full"), state) for state in UP),
    *(Case(at(state), PreemptionNoticed(30.0), S.TERMINATING) for state in LIVE),
    *(Case(at(state), Gone(), S.TERMINATING) for state in LIVE),
    Case(at(S.TERMINATING, **HELD, destroy_at=50.0), Freed(ONE), S.TERMINATING),
    Case(at(S.TERMINATING, **BOTH, destroy_at=50.0), Freed(ONE), S.TERMINATING),
    Case(at(S.TERMINATING, **HELD, destroy_at=50.0), TimeUp(), S.TERMINATING, 50.0),
    Case(at(S.TERMINATING, **HELD, destroy_at=50.0), Gone(), S.TERMINATING),
    Case(at(S.TERMINATING), Launched("i-1"), S.TERMINATING),
    Case(at(S.TERMINATING), Destroyed(), S.TERMINATED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.instance.state}-{type(case.event).__name__}-{case.to}")
def test_the_transition(case: Case) -> None:
    """The rows of the contract's table, one situation each."""
    step = INSTANCE.step(case.instance, case.event, case.now)
    assert step.row is not None
    assert step.record.state is case.to


def test_every_row_has_its_case() -> None:
    """A row that no situation reaches is a row nobody has thought through."""
    reached = {INSTANCE.step(case.instance, case.event, case.now).row for case in CASES}
    assert [row.name for row in INSTANCE.rows if row not in reached] == []
    assert INSTANCE.shadowed() == []
    assert {type(case.event) for case in CASES} == set(EVENTS)


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """Taking what is not free, deleting what is at work, and the end of what nobody asked to end."""
    never = {(state.name, "Taken") for state in S} | {(state.name, "Destroyed") for state in LIVE}
    assert INSTANCE.refused() == never | {("BUSY", "DeleteAsked")}


def test_only_the_word_that_it_is_gone_finishes_it() -> None:
    """Termination is retried until it is confirmed: no clock and no person's impatience buries a machine."""
    assert INSTANCE.finished == {S.TERMINATED}
    last = [(row.source, row.event) for row in INSTANCE.rows if row.target is S.TERMINATED]
    assert last == [(S.TERMINATING, Destroyed)]
    dead = at(S.TERMINATED)
    assert all(INSTANCE.step(dead, case.event, 1e9).row is None for case in CASES if not isinstance(case.event, Taken))


@pytest.mark.parametrize("state", LIVE)
def test_nobody_confirms_the_end_of_a_machine_that_nobody_ended(state: S) -> None:
    with pytest.raises(NotPossible):
        INSTANCE.step(at(state), Destroyed(), 1.0)


def test_a_host_is_divided_anew_only_while_nobody_holds_a_part_of_it() -> None:
    """A job that has three of four blocks would otherwise have three of thirty-two."""
    divided = INSTANCE.step(at(S.IDLE, entered_at=5.0), Divided(2), 9.0).record
    assert (divided.blocks.total, divided.blocks.free_count, divided.entered_at) == (2, 2, 5.0)
    assert INSTANCE.step(at(S.BUSY, **HELD), Divided(2), 9.0).row is None
    assert INSTANCE.step(divided, Divided(2), 9.0).row is None, "said twice"


def test_the_row_exists_before_the_provider_is_called() -> None:
    assert an_instance().state is S.PENDING


@pytest.mark.parametrize(("owned", "sentence"), [(False, "no provider answered"), (True, "no host answered")])
def test_a_launch_that_nobody_answers_ends_like_one_that_is_refused(owned: bool, sentence: str) -> None:
    """The jobs that wait for the machine look for another; and because the provider may yet create what it was asked
    for, whatever carries our tag is destroyed."""
    instance = at(S.PENDING, **HELD, entered_at=100.0, owned=owned)
    assert deadline(instance) == 100.0 + LAUNCH_S
    assert INSTANCE.step(instance, TimeUp(), 99.0 + LAUNCH_S).row is None
    instance, effects, _ = walk(INSTANCE, instance, TimeUp(), now=100.0 + LAUNCH_S)
    assert (effects, instance.message) == ([INTERRUPTED, Destroy()], f"{sentence} within {LAUNCH_S:g} s")
    late, effects, _ = walk(INSTANCE, instance, Launched("i-late"))
    assert (late.state, late.handle, effects) == (S.TERMINATING, "i-late", [])


def test_a_host_that_somebody_named_is_waited_for_and_takes_nothing_before_it_is_known_what_it_has() -> None:
    """It may be switched off for a week. What it has is said with the word that it was reached."""
    unmet = replace(at(S.PENDING, owned=True), blocks=Blocks(Capacity(0.0, 0), 1))
    assert (deadline(unmet), unmet.open) == (None, False)
    assert INSTANCE.step(unmet, TimeUp(), 1e9).row is None
    capacity = Capacity(8.0, 4096)
    met, effects, _ = walk(INSTANCE, unmet, Launched("10.0.0.7", capacity, 4), now=50.0)
    assert (met.state, met.blocks, effects) == (S.PROVISIONING, Blocks(capacity, 4), [])
    assert (met.open, deadline(replace(met, entered_at=50.0))) == (True, 50.0 + met.provisioning_limit_s)


def test_a_call_that_hangs_is_made_once_more_before_the_machine_is_given_up() -> None:
    assert LAUNCH_S > PERFORMANCE_S


def test_the_jobs_that_wait_for_it_are_told_when_the_launch_is_accepted() -> None:
    instance, effects, _ = walk(INSTANCE, an_instance(), Taken(ONE, (0,), reserved=True), Launched("i-1"))
    assert (instance.handle, effects) == ("i-1", [PLACED])


def test_they_are_told_again_when_its_shim_answers() -> None:
    """Both came in one commit: the first wish is of a phase that is over, and would be dropped."""
    instance, effects, _ = walk(INSTANCE, at(S.PROVISIONING, **HELD), ShimAnswered())
    assert (instance.phase, effects) == ("BUSY", [PLACED])
    assert walk(INSTANCE, at(S.PROVISIONING), ShimAnswered())[1] == []


@pytest.mark.parametrize("state", [S.PROVISIONING, S.IDLE, S.BUSY])
def test_a_reservation_that_comes_after_the_launch_is_answered_at_once(state: S) -> None:
    """The placer saw it PENDING; by the time of the commit the launch was accepted, and that news has passed."""
    assert walk(INSTANCE, at(state), Taken(ONE, (0,), reserved=True))[1] == [PLACED]
    assert walk(INSTANCE, at(state), Taken(ONE, (0,)))[1] == []


def test_no_block_is_held_twice() -> None:
    with pytest.raises(NotPossible):
        INSTANCE.step(at(S.BUSY, **BOTH), Taken(JobId(UUID(int=3)), (2, 3)), 1.0)


@pytest.mark.parametrize("closed", [{"cordoned": True}, {"unreachable_since": 0.0}, {"health": "a GPU is gone"}])
@pytest.mark.parametrize("state", LIVE)
def test_nothing_is_placed_on_what_is_cordoned_or_silent_or_ill(state: S, closed: dict[str, Any]) -> None:
    instance = at(state, **closed)
    assert not instance.open
    with pytest.raises(NotPossible):
        INSTANCE.step(instance, Taken(ONE, (0,)), 1.0)


def test_what_is_wrong_with_a_host_is_told_once_and_ends_nothing_that_runs() -> None:
    """Its disk is nearly full: a job that is in the middle of something may never need it, the next one would."""
    busy = at(S.BUSY, **HELD)
    step = INSTANCE.step(busy, Examined("its disk is nearly full"), 5.0)
    ill = step.record
    assert (ill.state, ill.open, ill.health) == (S.BUSY, False, "its disk is nearly full")
    assert (step.effects, step.note) == ((), "unhealthy: its disk is nearly full")
    assert INSTANCE.step(ill, Examined("its disk is nearly full"), 6.0).row is None
    well = INSTANCE.step(ill, Examined(""), 7.0)
    assert (well.record.open, well.note) == (True, "well again")


def test_a_container_engine_comes_and_goes_and_what_runs_goes_on() -> None:
    busy = at(S.BUSY, **HELD)
    assert INSTANCE.step(busy, Examined("", False), 5.0).row is None
    step = INSTANCE.step(busy, Examined("", True), 5.0)
    there = step.record
    assert (there.blocks.capacity.docker, there.blocks.held, there.open) == (True, busy.blocks.held, True)
    assert (step.effects, step.note) == ((), "has a container engine")
    assert INSTANCE.step(there, Examined(""), 6.0).row is None, "nothing was said of it"
    away = INSTANCE.step(there, Examined("its disk is nearly full", False), 7.0)
    assert not away.record.blocks.capacity.docker
    assert away.note == "unhealthy: its disk is nearly full; its container engine does not answer"


def test_a_block_is_given_back_once() -> None:
    instance, _, _ = walk(INSTANCE, at(S.BUSY, **BOTH), Freed(TWO), Freed(TWO))
    assert (dict(instance.blocks.held), instance.version) == ({ONE: (0,)}, 1)


def test_a_machine_without_a_shim_in_time_is_sent_away() -> None:
    """Also when a job waits for it: it is interrupted, and the machine destroyed without grace for nobody."""
    instance = at(S.PROVISIONING, **HELD, entered_at=100.0, provisioning_limit_s=60.0)
    assert deadline(instance) == 160.0
    assert INSTANCE.step(instance, TimeUp(), 159.0).row is None
    instance, effects, _ = walk(INSTANCE, instance, TimeUp(), now=160.0)
    assert (effects, instance.message) == ([INTERRUPTED, Destroy()], "no shim answered within 60 s")


@pytest.mark.parametrize(
    "event", [PreemptionNoticed(30.0), DeleteAsked(), DrainAsked(900.0)], ids=lambda e: type(e).__name__
)
def test_a_machine_that_is_still_coming_is_destroyed_without_a_grace_for_nobody(event: Event) -> None:
    """A job waits for it, and nothing of the job runs: it must not wait for the end of a grace either."""
    for state in COMING:
        instance, effects, _ = walk(INSTANCE, at(state, **HELD), event)
        assert (effects, instance.destroy_at) == ([INTERRUPTED, Destroy()], None)


def test_a_refused_launch_is_destroyed_all_the_same() -> None:
    """It may have created something before it said no."""
    _, effects, _ = walk(INSTANCE, at(S.PENDING, **HELD), Refused("quota"))
    assert effects == [INTERRUPTED, Destroy()]


def test_a_launch_that_is_accepted_after_the_end_is_remembered() -> None:
    instance, effects, _ = walk(INSTANCE, an_instance(), DeleteAsked(), Launched("i-late"))
    assert (instance.state, instance.handle, effects[1:]) == (S.TERMINATING, "i-late", [Destroy()])


def test_what_is_at_work_is_only_deleted_by_force() -> None:
    busy = at(S.BUSY, **HELD)
    with pytest.raises(NotPossible):
        INSTANCE.step(busy, DeleteAsked(), 1.0)
    assert INSTANCE.step(busy, Unwanted("does not fit"), 1.0).row is None


def test_jobs_have_their_grace_before_it_is_destroyed() -> None:
    """Deleted by force: told at once, destroyed when the last one is gone or the grace is over."""
    leaving, effects, _ = walk(INSTANCE, at(S.BUSY, **BOTH), DeleteAsked(force=True), now=100.0)
    assert (effects, deadline(leaving)) == ([INTERRUPTED], 100.0 + LEAVING_GRACE_S)
    assert INSTANCE.step(leaving, TimeUp(), 219.0).row is None
    empty, effects, _ = walk(INSTANCE, leaving, Freed(ONE), Freed(TWO), now=110.0)
    assert (effects, deadline(empty), dict(empty.blocks.held)) == ([Destroy()], None, {})
    late, effects, _ = walk(INSTANCE, leaving, TimeUp(), now=220.0)
    assert (effects, deadline(late)) == ([Destroy()], None)
    assert walk(INSTANCE, late, Freed(ONE), Freed(TWO))[1] == []


def test_a_preempted_machine_gives_the_notice_to_its_jobs() -> None:
    leaving, effects, _ = walk(INSTANCE, at(S.BUSY, **HELD), PreemptionNoticed(30.0), now=100.0)
    assert (effects, deadline(leaving)) == ([TellJobs(Tidings.NOTICED)], 130.0)
    assert walk(INSTANCE, at(S.BUSY, **HELD), PreemptionNoticed())[1] == [INTERRUPTED, Destroy()]
    assert walk(INSTANCE, at(S.IDLE), PreemptionNoticed(30.0))[1] == [INTERRUPTED, Destroy()]


def test_a_machine_that_is_gone_before_its_notice_is_over_is_not_waited_for() -> None:
    """The provider was faster than it said: its jobs learn it now, not when the notice would have been over."""
    leaving, _, _ = walk(INSTANCE, at(S.BUSY, **HELD), PreemptionNoticed(120.0), now=100.0)
    leaving, effects, _ = walk(INSTANCE, leaving, Gone("terminated"), Gone("terminated"), now=110.0)
    assert (effects, deadline(leaving)) == ([GONE, Destroy()], None)


@pytest.mark.parametrize("state", LIVE)
def test_a_machine_that_is_gone_is_cleaned_up_and_its_jobs_are_told(state: S) -> None:
    instance, effects, _ = walk(INSTANCE, at(state), Gone("terminated by AWS"))
    assert (effects, instance.message) == ([GONE, Destroy()], "terminated by AWS")


def test_a_drained_machine_finishes_its_jobs_and_takes_no_new_ones() -> None:
    draining, effects, _ = walk(INSTANCE, at(S.BUSY, **BOTH), DrainAsked(500.0))
    assert (effects, draining.open, deadline(draining)) == ([TellJobs(Tidings.DRAINING)], False, 500.0)
    empty, effects, _ = walk(INSTANCE, draining, Freed(ONE), Freed(TWO))
    assert (empty.state, empty.message, effects) == (S.TERMINATING, "drained", [Destroy()])
    assert dict(empty.blocks.held) == {}


def test_jobs_that_are_still_there_when_the_drain_is_over_are_interrupted() -> None:
    draining, _, _ = walk(INSTANCE, at(S.BUSY, **HELD), DrainAsked(500.0))
    assert INSTANCE.step(draining, TimeUp(), 499.0).row is None
    over, effects, _ = walk(INSTANCE, draining, TimeUp(), now=500.0)
    assert (over.state, effects, deadline(over)) == (S.TERMINATING, [INTERRUPTED], 500.0 + LEAVING_GRACE_S)


def test_opening_a_draining_machine_again_calls_the_drain_off() -> None:
    """Otherwise new jobs would be placed on it, only to be interrupted at the old deadline."""
    instance, _, _ = walk(INSTANCE, at(S.BUSY, **HELD), DrainAsked(500.0), CordonAsked(on=False))
    assert (instance.open, deadline(instance)) == (True, None)
    assert walk(INSTANCE, instance, Freed(ONE))[0].state is S.IDLE


def test_cordoned_twice_is_cordoned_and_a_drain_stays_a_drain() -> None:
    instance, _, _ = walk(INSTANCE, at(S.IDLE), CordonAsked(), CordonAsked())
    assert (instance.cordoned, instance.version) == (True, 1)
    draining, _, _ = walk(INSTANCE, at(S.BUSY, **HELD), DrainAsked(500.0), CordonAsked())
    assert deadline(draining) == 500.0


def test_a_host_that_a_user_owns_may_be_silent_without_end() -> None:
    instance, effects, _ = walk(INSTANCE, at(S.BUSY, **HELD, owned=True), Silent(), now=50.0)
    assert (instance.unreachable_since, effects, deadline(instance)) == (50.0, [], None)
    assert INSTANCE.step(instance, TimeUp(), 1e9).row is None
    assert walk(INSTANCE, instance, Heard())[0].open


def test_an_idle_machine_of_a_provider_is_given_up_after_twenty_minutes() -> None:
    instance, _, _ = walk(INSTANCE, at(S.IDLE), Silent(), now=50.0)
    assert deadline(instance) == 50.0 + 20 * 60
    assert walk(INSTANCE, instance, TimeUp(), now=1250.0)[1] == [INTERRUPTED, Destroy()]


def test_jobs_are_given_up_before_their_machine_each_for_its_own_reason() -> None:
    """INSTANCE_UNREACHABLE is theirs to say at twenty minutes; the machine's end would make it a preemption."""
    instance, _, _ = walk(INSTANCE, at(S.BUSY, **HELD), Silent(), now=0.0)
    assert INSTANCE.step(instance, TimeUp(), PROVIDER_SILENCE_S).row is None
    at_last = deadline(instance)
    assert at_last is not None
    assert at_last > PROVIDER_SILENCE_S
    assert walk(INSTANCE, instance, TimeUp(), now=at_last)[0].state is S.TERMINATING


def test_what_still_stood_on_it_fell_with_it() -> None:
    """Confirmed gone while a job was being cleaned up there: the job is told and holds nothing any more."""
    buried, effects, _ = walk(INSTANCE, at(S.TERMINATING, **BOTH), Destroyed())
    assert (buried.state, effects, dict(buried.blocks.held)) == (S.TERMINATED, [GONE], {})
    assert buried.blocks.total == 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.instance.state}-{type(case.event).__name__}")
def test_a_deadline_that_has_passed_is_served(case: Case) -> None:
    """No timer spins: after TimeUp the record has changed, or waits for a later moment."""
    instance = INSTANCE.step(case.instance, case.event, case.now).record
    due = deadline(instance)
    if due is not None:
        step = INSTANCE.step(instance, TimeUp(), due)
        assert step.row is not None
        after = deadline(step.record)
        assert after is None or after > due
